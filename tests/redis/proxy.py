"""A small TCP proxy before a server: it can cut, hold up, or end TLS, so that tests have bad networks."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from types import TracebackType

HOST = "127.0.0.1"


class Proxy:
    """Passes bytes on between clients and a port of this machine, until told otherwise."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._target = port
        self._tls = tls
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._open = threading.Event()
        self._open.set()
        self._cut_after: int | None = None
        self._refusing = False
        self.accepted = 0
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    # -- what tests do

    def cut(self) -> None:
        """End every connection that there is."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _end(end)

    def cut_after(self, count: int) -> None:
        """End the connection that first gets so many bytes of an answer, in the middle of it."""
        with self._lock:
            self._cut_after = count

    def refuse(self, refusing: bool = True) -> None:
        """Whether new connections are ended at once."""
        self._refusing = refusing

    def hold(self) -> None:
        """Answers come no further than here, until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._refusing = True
        self._open.set()
        _end(self._listener)
        self.cut()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- threads

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            self.accepted += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            server = socket.create_connection((HOST, self._target))
        except OSError:  # The client does not trust us, or brings no certificate; or there is no server.
            _end(client)
            return
        with self._lock:
            self._pairs.append((client, server))
        threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
        self._pass_answers(server, client)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        _end(target)

    def _pass_answers(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                with self._lock:
                    cut, self._cut_after = self._cut_after, None
                if cut is not None:
                    target.sendall(data[:cut])
                    _end(source)
                    break
                target.sendall(data)
        _end(target)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        end.close()
