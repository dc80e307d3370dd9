"""One connection to a server, kept open between calls; used by one thread at a time."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPException
from typing import NamedTuple

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from penstock.backends.http.place import MSGPACK, Place
from penstock.backends.http.wire import ARROW

CONNECT_TIMEOUT_S = 10.0
#: A peer that has gone without a word is noticed, also by a call that may take as long as it likes.
_KEEPALIVE = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
]


class Gone(Exception):
    """There is no answer: the connection could not be made, or broke."""


class Answer(NamedTuple):
    """What the server said. `retry_after_s`: it did nothing, and may do it then."""

    status: int
    body: bytes
    retry_after_s: float | None
    is_ours: bool


class Line:
    """Who calls stays the same, whatever happens to the connection."""

    def __init__(self, place: Place, closed: threading.Event) -> None:
        self.caller = os.urandom(16).hex()
        self.number = 0
        #: Between a request and its answer: what comes next is not for another call.
        self.asking = False
        self._place = place
        self._closed = closed
        self._peer: HTTPConnection | None = None

    def ask(self, path: str, body: bytes, content_type: str, timeout_s: float | None) -> Answer:
        with self._going():
            response = self._sent(path, body, content_type, timeout_s)
            return self._whole(response)

    def stream(self, path: str, body: bytes, timeout_s: float | None) -> BaseHTTPResponse | Answer:
        """An answer that is read as it comes, or one that was not what was asked for.

        Whoever reads it to its end says so by `done`; what breaks meanwhile is translated by `reading`.
        """
        with self._going():
            response = self._sent(path, body, MSGPACK, timeout_s)
            if response.status == 200 and response.headers.get("content-type") == ARROW:
                return response
            return self._whole(response)

    def done(self) -> None:
        """The answer was read to its end."""
        self.asking = False

    @contextlib.contextmanager
    def _going(self) -> Iterator[None]:
        try:
            yield
        except (HTTPError, HTTPException, OSError) as error:
            self.hang_up()
            raise Gone(str(error) or type(error).__name__) from error

    reading = _going

    def _whole(self, response: BaseHTTPResponse) -> Answer:
        data = response.data
        self.done()
        after = response.headers.get("retry-after", "")
        return Answer(
            response.status,
            data,
            float(after) if after.isdecimal() else None,
            response.headers.get("content-type") == MSGPACK,
        )

    def _sent(self, path: str, body: bytes, content_type: str, timeout_s: float | None) -> BaseHTTPResponse:
        peer = self._peer
        if peer is None:
            peer = self._peer = self._connection()
        if peer.sock is None:
            peer.timeout = CONNECT_TIMEOUT_S
            peer.connect()
        peer.sock.settimeout(timeout_s)
        if self._closed.is_set():  # After it was connected: `close` cuts what is connected.
            raise Gone("closed")
        peer.timeout = timeout_s
        self.asking = True
        headers = {
            **self._place.headers,
            "content-type": content_type,
            "penstock-call": f"{self.caller}/{self.number}",
        }
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # A server that does not want the whole of it may have said why before it hung up.
            peer.request("POST", self._place.prefix + path, body, headers, preload_content=False)
        return peer.getresponse()

    def _connection(self) -> HTTPConnection:
        place = self._place
        if place.tls is None:
            return HTTPConnection(place.host, place.port, socket_options=_KEEPALIVE)
        return HTTPSConnection(place.host, place.port, socket_options=_KEEPALIVE, ssl_context=place.tls)

    def cut(self) -> None:
        """Whoever waits on the line, in another thread, waits no longer."""
        peer = self._peer
        sock = peer.sock if peer is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        self.asking = False
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()
