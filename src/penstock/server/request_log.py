"""Request logs: one JSON object a line, written by a thread of its own, so that a slow disk delays nobody.

Nothing that a client sends is in them but the names of a queue, an operation and a principal that are known.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from penstock.clock import NS_PER_S
from penstock.errors import InvalidConfig
from penstock.server.endpoint import About, Response

#: Lines that wait to be written; those beyond are counted, and the count is written instead.
MOST_LINES = 100_000
#: How long a line waits for others that are written with it.
FLUSH_EVERY_S = 0.1


class RequestLog:
    """To a file, which may be moved away (`-`: standard error), or nowhere (`off`)."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._is_on = target != "off"
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._ending = threading.Event()
        self._file: Any = None
        self._encode = msgspec.json.Encoder().encode
        if self._is_on:
            try:
                self._open()
            except OSError as error:
                raise InvalidConfig(
                    f"the request log {target} cannot be written: {error.strerror}; name another file with "
                    "--log, `-` for standard error, or off"
                ) from None
            self._thread = threading.Thread(target=self._run, name="penstock-request-log", daemon=True)
            self._thread.start()

    def write(
        self,
        now_ns: int,
        request_id: str,
        interface: str,
        about: About,
        response: Response,
        seconds: float,
        in_bytes: int,
        client: str,
    ) -> None:
        if not self._is_on:
            return
        self._add(
            {
                "time": _time(now_ns),
                "id": request_id,
                "interface": interface,
                "operation": about.operation,
                "queue": about.queue,
                "status": response.status,
                "duration_ms": round(seconds * 1000, 3),
                "bytes_in": in_bytes,
                # Of an answer in pieces it is not known yet.
                "bytes_out": len(response.body) if isinstance(response.body, bytes) else None,
                "principal": about.principal,
                "client": client,
            }
        )

    def refused(self, now_ns: int, request_id: str, status: int, client: str) -> None:
        """A request that was not read whole."""
        if self._is_on:
            line = {
                "time": _time(now_ns),
                "id": request_id,
                "refused": True,
                "status": status,
                "client": client,
            }
            self._add(line)

    def close(self) -> None:
        """What waits is written first."""
        if self._is_on:
            self._ending.set()
            self._thread.join(5.0)

    def _add(self, line: dict[str, object]) -> None:
        if len(self._lines) < MOST_LINES:
            self._lines.append(self._encode(line))
        else:
            self._dropped += 1

    # -- in the thread

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ending.wait(FLUSH_EVERY_S)
            # Taken one by one: others may be added meanwhile, and none of them may be lost.
            lines = [self._lines.popleft() for _ in range(len(self._lines))]
            dropped, self._dropped = self._dropped, 0
            if dropped:
                lines.append(self._encode({"dropped_lines": dropped}))
            if lines:
                self._put(b"\n".join([*lines, b""]))

    def _put(self, text: bytes) -> None:
        try:
            self._open()
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            self._dropped += text.count(b"\n")
            if self._target != "-":
                print(f"penstock: the request log cannot be written: {error.strerror}", file=sys.stderr)  # noqa: T201

    def _open(self) -> None:
        """The file, anew where it was moved away."""
        if self._target == "-":
            self._file = sys.stderr.buffer
            return
        if self._file is not None:
            try:
                there, ours = os.stat(self._target), os.fstat(self._file.fileno())
                if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                    return
            except FileNotFoundError:
                pass
            self._file.close()
        descriptor = os.open(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file = os.fdopen(descriptor, "ab")


def _time(now_ns: int) -> str:
    seconds, rest_ns = divmod(now_ns, NS_PER_S)
    return f"{_second(seconds)}.{rest_ns // 1_000_000:03}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
