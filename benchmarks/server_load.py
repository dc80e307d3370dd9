"""Lean HTTP clients for benchmarks of the server: many connections, one thread, requests made beforehand.

The machine has few cores, and the client runs on the same ones as what it measures. So there is no HTTP
library here: a loop over sockets sends bytes, looks for the end of an answer, and cuts receipts out of it.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

#: What one client does, again and again: it yields requests, is sent the answers' bodies, and returns how
#: many messages it has got through.
Script = Callable[[], Generator[bytes, bytes, int]]

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_WAIT_S = 30.0


@dataclass
class Measured:
    """What came of a load."""

    clients: int
    seconds: float = 0.0
    messages: int = 0
    #: Processor time of those who made the load.
    cpu_s: float = 0.0
    rounds_s: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Sequence[Measured], seconds: float) -> Measured:
        """What several did at the same time."""
        rounds_s = [one for part in parts for one in part.rounds_s]
        return cls(len(parts), seconds, sum(part.messages for part in parts), 0.0, rounds_s)

    @property
    def per_s(self) -> float:
        return self.messages / self.seconds

    def quantile_ms(self, which: float) -> float:
        ordered = sorted(self.rounds_s)
        return ordered[min(len(ordered) - 1, int(which * len(ordered)))] * 1000 if ordered else float("nan")


class _Client:
    """One connection, and where its script is."""

    def __init__(self, address: tuple[str, int], script: Script, selector: selectors.BaseSelector) -> None:
        self._address = address
        self._script = script
        self._selector = selector
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._steps = script()
        self.begun_s = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin the script anew."""
        self._steps = self._script()
        self.begun_s = time.perf_counter()
        self._send(next(self._steps))

    def _send(self, request: bytes) -> None:
        self._received.clear()
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=_WAIT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(self._socket, selectors.EVENT_READ, self)
        self._socket.sendall(request)

    def readable(self) -> int | None:
        """Read on. How many messages a finished script has got through; None: it is not finished."""
        assert self._socket is not None
        piece = self._socket.recv(1 << 18)
        self._received += piece
        body = self._body(ended=not piece)
        if body is None:
            return None
        try:
            request = self._steps.send(body)
        except StopIteration as stopped:
            return int(stopped.value)
        self._send(request)
        return None

    def _body(self, *, ended: bool) -> bytes | None:
        """The answer's body, once it is whole."""
        received = self._received
        at = received.find(b"\r\n\r\n")
        if at < 0:
            if ended:
                raise ConnectionError("A connection was closed without an answer.")
            return None
        head = bytes(received[: at + 2])
        body = received[at + 4 :]
        if _CHUNKED.search(head):
            if not body.endswith(b"0\r\n\r\n"):
                return None
        else:
            length = _LENGTH.search(head)
            if length is None and not ended:
                return None
            if length is not None and len(body) < int(length[1]):
                if ended:
                    raise ConnectionError("A connection was closed in the middle of an answer.")
                return None
        if head[9:12] != b"200":
            raise RuntimeError(f"A benchmark must not fail: {head[:200]!r} {bytes(body[:500])!r}")
        if ended or head.startswith(b"HTTP/1.0") or _CLOSES.search(head):
            self.close()
        return bytes(body)

    def close(self) -> None:
        if self._socket is not None:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None


def run(address: tuple[str, int], scripts: list[Script], warm_up_s: float, seconds: float) -> Measured:
    """Let every script run again and again on a connection of its own, and measure after a while."""
    selector = selectors.DefaultSelector()
    clients = [_Client(address, script, selector) for script in scripts]
    measured = Measured(len(clients))
    first_s = time.perf_counter() + warm_up_s
    last_s = first_s + seconds
    now_s = cpu_s = 0.0
    try:
        while now_s < last_s:
            ready = selector.select(_WAIT_S)
            if not ready:
                raise TimeoutError(f"No answer in {_WAIT_S} s.")
            for key, _ in ready:
                client: _Client = key.data
                messages = client.readable()
                if messages is None:
                    continue
                now_s = time.perf_counter()
                if now_s >= first_s:
                    cpu_s = cpu_s or time.process_time()
                    measured.messages += messages
                    measured.rounds_s.append(now_s - client.begun_s)
                client.restart()
        measured.seconds = time.perf_counter() - first_s
        measured.cpu_s = time.process_time() - cpu_s
    finally:
        for client in clients:
            client.close()
        selector.close()
    return measured
