"""One HTTP/1.1 connection: bytes in, whole requests out, answers back; every limit on what a client may do.

A request is read whole before anyone is asked to answer it, and requests of one connection are answered one
after the other, each when the client has taken the one before. `Door` has what all connections have together.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import httptools

from penstock.server import plain
from penstock.server.endpoint import About, Request, Response
from penstock.server.head import ONCE, Head, target, words, wrong
from penstock.server.headers import header

if TYPE_CHECKING:
    from penstock.server.door import Door

#: After the first of them, a body must come at least this fast.
MIN_BYTES_PER_S = 16 * 1024
#: What is read of a body before it is looked who sends it: so small bodies cost no second look.
STRANGERS_BYTES = 64 * 1024
#: Requests that one connection may send ahead of their answers; those beyond are not answered.
MAX_AHEAD = 64
#: So much of an answer is sent before it is looked whether the client takes it.
PIECE_BYTES = 256 * 1024
#: How long bytes that nobody wants are still taken, so that the client reads why.
LINGER_S = 1.0

#: The headers of an offer to speak something else.
_OFFERS = ("connection", "upgrade", "http2-settings")


class _Refused(Exception):
    """Ends the parsing of a request that was refused."""


class App(Protocol):
    """Who answers."""

    async def answer(self, request: Request) -> Response: ...

    def new_id(self) -> str: ...

    def admit(self, head: Head, certificate: str | None, client: str) -> Response | None:
        """Before a large body is read: None if it may come, else the answer; counted and logged."""
        ...

    def refuse(self, status: int, what: str, head: Head | None, client: str) -> Response:
        """The answer to what was not read, or not whole; counted and logged."""
        ...

    def hung_up(self) -> None:
        """Somebody came who was not even told that there are too many; counted."""
        ...


class Connection(asyncio.Protocol):
    """One of them. The parser calls the `on_…` methods."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._client = ""
        self._certificate: str | None = None
        self._is_open = False
        #: The rest of what comes is thrown away: the client has been answered, or is too far gone.
        self._is_deaf = False
        #: Everything has been written, and the connection closes when it is sent.
        self._is_ending = False
        #: While a request is read: since when. Otherwise when the last answer was given.
        self._since_s = 0.0
        self._is_reading = False
        #: What comes next is not taken before what came is answered.
        self._is_paused = False
        self._is_upgrading = False
        #: The client has sent all that it will: it may have gone.
        self._has_ended = False
        #: With what has arrived the connection ends.
        self._is_last = False
        self._head: Head | None = None
        self._head_bytes = 0
        #: A body in many small pieces takes no more room than one in a few.
        self._body = bytearray()
        self._held_bytes = 0
        self._ahead: deque[_Read] = deque()
        self._is_answering = False
        #: The answering is yet to begin: when all that has arrived is read.
        self._is_due = False
        self._writable: asyncio.Future[None] | None = None
        self._stuck_since_s = 0.0

    # -- of the transport -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        door = self._door
        self._transport = cast(asyncio.Transport, transport)
        self._is_open = True
        peer = transport.get_extra_info("peername")
        self._client = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
        self._certificate = _certificate_name(transport)
        self._since_s = asyncio.get_running_loop().time()
        door.connections.add(self)
        if door.is_stopping:
            self.abort()
        elif len(door.connections) > door.limits.max_connections:
            self._refuse(503, f"there are {door.limits.max_connections} connections; try again later")

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        self._door.gone(self)
        self._let_go()
        for _ in range(len(self._ahead)):
            self._release(self._ahead.popleft().request)
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if not self._is_reading and self._read_plain(data):
            return
        self._begin()
        if self._head is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            if not self._is_deaf:  # Else it is a refusal of ours that ended the parsing.
                self._refuse(400, "this is not a request of HTTP/1.1")
        if self._head is None and self._head_bytes > self._door.limits.max_header_bytes + len(data):
            self._refuse_header()
        self._answer()

    def _read_plain(self, data: bytes) -> bool:
        """Whether it was a request that needs no parser, which has nothing of an earlier one."""
        door = self._door
        limits = door.limits
        room_bytes = min(
            STRANGERS_BYTES, limits.max_body_bytes, limits.max_total_body_bytes - door.body_bytes
        )
        found = plain.read(data, limits.max_header_bytes, room_bytes)
        if found is None:
            return False
        head, body = found
        door.body_bytes += len(body)
        self._arrived(head, body, "1.1", keeps=True)
        self._answer()
        return True

    def _begin(self) -> None:
        """The time of a request counts from its first byte on."""
        if not self._is_reading:
            self._is_reading = True
            self._since_s = asyncio.get_running_loop().time()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Nothing else is spoken here: the request is read again as if that had not been offered."""
        parser = self._parser
        kept = [(name, value) for name, value in self._headers.items() if name not in _OFFERS]
        if "close" in words(self._headers.get("connection", "")):
            kept.append(("connection", "close"))
        start = f"{parser.get_method().decode()} {self._url.decode('latin-1')}"
        lines = [f"{start} HTTP/{parser.get_http_version()}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in kept]
        self._parser = httptools.HttpRequestParser(self)
        self._is_upgrading, self._is_reading = False, False
        self.data_received("".join([*lines, "\r\n"]).encode("latin-1") + rest)

    def eof_received(self) -> bool:
        """What has arrived is answered. Whoever has gone looks the same: nothing is leased for it."""
        self._has_ended = self._is_last = True
        return self._is_answering and self._transport.can_write_eof()  # With TLS both ways end.

    def pause_writing(self) -> None:
        loop = asyncio.get_running_loop()
        self._writable = loop.create_future()
        self._stuck_since_s = loop.time()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # -- of the parser --------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begin()
        self._head = None
        self._url = b""
        self._headers: dict[str, str] = {}
        self._exact_bytes = 0
        self._is_admitted = False

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._head is not None:
            return  # Behind a body in chunks: nobody has looked at it when the request was let in.
        known = name.decode("latin-1").lower()
        if known in ONCE and known in self._headers:
            self._refuse(400, f"a request has one header `{known}`, and this one has several")
            raise _Refused
        self._headers[known] = value.decode("latin-1")

    def _count(self, size_bytes: int) -> None:
        self._exact_bytes += size_bytes
        if self._exact_bytes > self._door.limits.max_header_bytes:
            self._refuse_header()
            raise _Refused

    def on_headers_complete(self) -> None:
        path, _, query = target(self._url.decode("latin-1")).partition("?")
        method, headers = self._parser.get_method().decode(), self._headers
        version = self._parser.get_http_version()
        self._head = Head(method, path, query, headers)
        self._head_bytes = 0
        self._is_upgrading = self._parser.should_upgrade()
        refusal = wrong(version, self._head)
        if refusal is not None:
            self._refuse(*refusal)
            raise _Refused
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._door.limits.max_body_bytes:
            self._too_large()
            raise _Refused
        if length.isdecimal() and int(length) > STRANGERS_BYTES:
            self._admit()
        if (
            headers.get("expect", "").lower() == "100-continue"
            and version != "1.0"
            and not self._is_answering | self._is_upgrading
        ):
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, piece: bytes) -> None:
        door = self._door
        self._body += piece
        self._held_bytes += len(piece)
        door.body_bytes += len(piece)
        if len(self._body) > STRANGERS_BYTES and not self._is_admitted:
            self._admit()
        if len(self._body) > door.limits.max_body_bytes:
            self._too_large()
            raise _Refused
        if door.body_bytes > door.limits.max_total_body_bytes:
            self._refuse(503, "the server holds as many bytes of requests as it may; try again later")
            raise _Refused

    def _admit(self) -> None:
        assert self._head is not None
        self._is_admitted = True
        answer = self._door.app.admit(self._head, self._certificate, self._client)
        if answer is not None:
            self._turn_away(answer)
            raise _Refused

    def on_message_complete(self) -> None:
        head = self._head
        if head is None or self._is_upgrading:
            return
        body = bytes(self._body)
        # From here on the request answers for its bytes.
        self._held_bytes -= len(body)
        self._body, self._head = bytearray(), None
        self._is_reading = False
        version, keeps = self._parser.get_http_version(), self._parser.should_keep_alive()
        self._arrived(head, body, version, keeps=keeps)
        if len(self._ahead) > MAX_AHEAD:
            # Those before are answered, and then the connection ends.
            self._release(self._ahead.pop().request)
            self._refuse(503, f"{MAX_AHEAD} requests were sent ahead of their answers")
            raise _Refused

    def _arrived(self, head: Head, body: bytes, version: str, *, keeps: bool) -> None:
        door = self._door
        request = Request(
            door.app.new_id(),
            *head,
            body,
            self._client,
            self._certificate,
            self._listening,
            About(),
        )
        door.heard(self)
        self._ahead.append(_Read(request, version, keeps))
        if self._is_answering:
            self._is_paused = True
            self._transport.pause_reading()
        else:
            self._is_answering = self._is_due = True

    # -- answering ------------------------------------------------------------------------------

    def _listening(self) -> bool:
        return self._is_writable() and not self._has_ended

    def _is_writable(self) -> bool:
        return self._is_open and not self._transport.is_closing()

    def _answer(self) -> None:
        """When all that has arrived is read: who is answered meanwhile goes on where he was."""
        if self._is_due:
            self._is_due = False
            self._door.run(self._answer_all())

    async def _answer_all(self) -> None:
        while self._ahead and self._is_open:
            request, version, keeps = self._ahead.popleft()
            try:
                response = await self._door.app.answer(request)
                if version == "1.0" and not isinstance(response.body, bytes):
                    keeps = False  # Its end is the connection's.
                is_last = self._is_last or self._door.is_stopping
                keeps = keeps and (not is_last or bool(self._ahead))
                await self._send(response, keeps, request.method, version)
                # Who does not take one answer gets no other: they would pile up here.
                if self._writable is not None:
                    await self._writable
            finally:
                self._release(request)
            if not keeps:
                self._hang_up()
                return
        self._is_answering = False
        self._since_s = asyncio.get_running_loop().time()
        if self._is_deaf:  # What came after was refused: there is no next request.
            self._hang_up()
        elif self._is_open:
            self._is_paused = False
            self._transport.resume_reading()

    async def _send(self, response: Response, keeps: bool, method: str, version: str) -> None:
        body = response.body
        if isinstance(body, bytes):
            if self._is_writable():
                head = header(response, self._door.date(), f"content-length: {len(body)}\r\n", keeps, version)
                if method == "HEAD":
                    self._transport.write(head)
                elif len(body) <= PIECE_BYTES:
                    self._transport.write(head + body)
                else:
                    await self._send_large(head, body)
            return
        try:
            if self._is_writable():
                form = "transfer-encoding: chunked\r\n" if version != "1.0" else ""
                self._transport.write(header(response, self._door.date(), form, keeps, version))
                if method != "HEAD":
                    await self._send_pieces(body, chunked=bool(form))
                    self._transport.write(b"0\r\n\r\n" if form else b"")
        except BaseException:
            # Half of an answer must not look like a whole one.
            self.abort()
            raise
        finally:
            if hasattr(body, "aclose"):
                await body.aclose()

    async def _send_large(self, head: bytes, body: bytes) -> None:
        """It goes as the client takes it: each piece has its time."""
        self._transport.write(head + body[:PIECE_BYTES])
        rest = memoryview(body)
        for at in range(PIECE_BYTES, len(body), PIECE_BYTES):
            await self._drained()
            if not self._is_writable():
                return
            self._transport.write(rest[at : at + PIECE_BYTES])

    async def _send_pieces(self, pieces: AsyncIterator[bytes], *, chunked: bool) -> None:
        async for piece in pieces:
            if piece:
                self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await self._drained()
            if not self._is_writable():
                return

    async def _drained(self) -> None:
        """Until the client has taken most of what was written."""
        if self._writable is not None:
            await self._writable

    # -- ends -----------------------------------------------------------------------------------

    def look(self, now_s: float) -> None:
        """Cut a client that dawdles: in sending, in reading its answer, or by doing nothing."""
        limits = self._door.limits
        if self._writable is not None:
            if now_s - self._stuck_since_s > limits.read_timeout_s:
                self.abort()
        elif self._is_ending:
            if now_s - self._since_s > limits.read_timeout_s:
                self.abort()
        elif self._is_reading and not self._is_deaf and not self._is_paused:
            allowed_s = limits.read_timeout_s + len(self._body) / MIN_BYTES_PER_S
            if now_s - self._since_s > allowed_s:
                self._refuse(408, f"the request did not arrive whole within {allowed_s:.0f} s")
        elif not self._is_answering and now_s - self._since_s > limits.idle_timeout_s:
            self._transport.close()

    def finish(self) -> None:
        """The server stops: what has not arrived whole is not waited for."""
        if not self._is_answering:
            self._transport.close()
            # With TLS it is not closed before the client says so too, and who idles says nothing.
            asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    def retire(self) -> None:
        """What it began with is no longer good: it ends with the request that it is at."""
        self._is_last = True
        if not self._is_reading:
            self.finish()

    def abort(self) -> None:
        self._is_deaf = True
        self._transport.abort()

    def _refuse_header(self) -> None:
        most = self._door.limits.max_header_bytes
        self._refuse(431, f"the header is larger than {most} bytes")

    def _too_large(self) -> None:
        most = self._door.limits.max_body_bytes
        self._refuse(413, f"the body is larger than {most} bytes; send it in parts")

    def _refuse(self, status: int, what: str) -> None:
        if not self._is_deaf:
            self._turn_away(self._door.app.refuse(status, what, self._head, self._client))

    def _turn_away(self, response: Response) -> None:
        self._is_deaf = True
        assert isinstance(response.body, bytes)
        # Where an earlier request's answer is due first, the client gets that, and no more.
        if not self._is_answering:
            form = f"content-length: {len(response.body)}\r\n"
            self._transport.write(header(response, self._door.date(), form, keeps=False) + response.body)
            self._hang_up()

    def _hang_up(self) -> None:
        """After what was written is sent. Bytes that were on their way would turn it into a reset."""
        loop = asyncio.get_running_loop()
        self._is_deaf, self._is_ending, self._since_s = True, True, loop.time()
        self._let_go()
        if not self._is_open:
            return
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            with suppress(OSError):
                self._transport.write_eof()
            loop.call_later(LINGER_S, self._transport.close)
        else:
            self._transport.close()

    def _let_go(self) -> None:
        """Of a body that was not read to its end."""
        self._door.body_bytes -= self._held_bytes
        self._body, self._held_bytes = bytearray(), 0

    def _release(self, request: Request) -> None:
        self._door.body_bytes -= len(request.body)


class _Read(NamedTuple):
    """A request that has arrived, and how it wants its answer."""

    request: Request
    version: str
    keeps: bool


def _certificate_name(transport: asyncio.BaseTransport) -> str | None:
    """The common name of the client's certificate, which the handshake has verified."""
    connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate = connection.getpeercert() if connection is not None else None
    for part in (certificate or {}).get("subject", ()):
        for pair in part:
            if pair[0] == "commonName":
                return str(pair[1])
    return None
