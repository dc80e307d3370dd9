"""Requests that are read without the parser: exactly those that it would read the same way."""

from __future__ import annotations

from typing import Any

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.server import plain
from penstock.server.head import target

MOST = 16 * 1024


class Parsed:
    """What the parser makes of bytes: every request in them, and whether it is content."""

    def __init__(self, data: bytes) -> None:
        self.requests: list[tuple[str, str, str, dict[str, str], bytes]] = []
        self.is_good = True
        self.is_between = True
        parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.is_good = False
        self.version, self.keeps = parser.get_http_version(), parser.should_keep_alive()

    def on_message_begin(self) -> None:
        self.url, self.body, self.is_between = b"", b"", False
        self.headers: list[tuple[str, str]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        path, _, query = target(self.url.decode("latin-1")).partition("?")
        method = self._parser.get_method().decode()
        assert len(dict(self.headers)) == len(self.headers), "a header that is there twice is not plain"
        self.requests.append((method, path, query, dict(self.headers), self.body))
        self.is_between = True


def read(data: bytes) -> Any:
    found = plain.read(data, MOST, MOST)
    if found is None:
        return None
    head, body = found
    return (*head, body)


def agreed(data: bytes) -> bool:
    """Whether it was read as plain; then the parser reads one whole request, this one, and keeps alive."""
    found = read(data)
    if found is None:
        return False
    parsed = Parsed(data)
    assert parsed.is_good
    assert parsed.is_between
    assert (parsed.version, parsed.keeps) == ("1.1", True)
    assert parsed.requests == [found]
    return True


def request(*headers: str, start: str = "POST / HTTP/1.1", body: str = "") -> bytes:
    return "\r\n".join([start, *headers, "", body]).encode("latin-1")


HOST = "Host: 127.0.0.1:9324"


@pytest.mark.parametrize(
    "data",
    [
        request(HOST),
        request(HOST, "Content-Length: 3", body="abc"),
        request(HOST, "Content-Length: 003", body="abc"),
        request(HOST, "connection: keep-alive", "X-Amz-Target: AmazonSQS.SendMessage"),
        request(HOST, "User-Agent:none", "Authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature=c"),
        request(HOST, start="GET /v1/queues/a%20b?limit=10&x=%2F HTTP/1.1"),
        request(HOST, start="DELETE /a HTTP/1.1"),
        request(HOST, "X-Tab: a\tb"),
    ],
)
def test_what_clients_send_is_plain(data: bytes) -> None:
    assert agreed(data)
    assert agreed(data), "nor is it read otherwise when it comes again"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POST / HTTP/1.1\r\n",
        request(),
        request(HOST, HOST),
        request(HOST, start="POST / HTTP/1.0"),
        request(HOST, start="POST http://here/ HTTP/1.1"),
        request(HOST, start="OPTIONS * HTTP/1.1"),
        request(HOST, start="POST /a b HTTP/1.1"),
        request(HOST, start="POST /a#b HTTP/1.1"),
        request(HOST, start="POST /\xe9 HTTP/1.1"),
        request(HOST, start="post / HTTP/1.1"),
        request(HOST, "Content-Length: 2", body="abc"),
        request(HOST, "Content-Length: 4", body="abc"),
        request(HOST, "Content-Length: +3", body="abc"),
        request(HOST, f"Content-Length: {'0' * 5000}3", body="abc"),
        request(HOST, "Content-Length: \xb2", body="ab"),
        request(HOST, "Content-Length: 3", "content-length: 3", body="abc"),
        request(HOST, body="abc"),
        request(HOST, "Transfer-Encoding: chunked", body="0\r\n\r\n"),
        request(HOST, "Connection: close"),
        request(HOST, "Connection: keep-alive, upgrade", "Upgrade: h2c"),
        request(HOST, "Expect: 100-continue", "Content-Length: 3", body="abc"),
        request(HOST, "Trailer: x"),
        request(HOST, "X-A : b"),
        request(HOST, "X-A: b "),
        request(HOST, "X-A:  b"),
        request(HOST, "X-A:"),
        request(HOST, "X-A: b", " c"),
        request(HOST, "X-A: b\0"),
        request(HOST, "X-A: \xe9"),
        request(HOST, "X-A: b\nX-B: c"),
        request(HOST, ": b"),
        request(HOST, "X-A"),
        b"\r\n" + request(HOST),
        request(HOST) + request(HOST),
    ],
)
def test_whatever_is_unusual_is_the_parsers(data: bytes) -> None:
    assert read(data) is None


def test_what_is_larger_than_its_limits_is_the_parsers() -> None:
    data = request(HOST, "Content-Length: 3", body="abc")
    head_bytes = len(data) - 3 - 4
    assert plain.read(data, head_bytes + 4, 3) is not None
    assert plain.read(data, head_bytes + 3, 3) is None
    assert plain.read(data, head_bytes + 4, 2) is None


_NAMES = st.sampled_from(
    ["Host", "host", "X-A", "Content-Length", "Connection", "X-Amz-Target", "Te", "x\0", ""]
)
_VALUES = st.one_of(
    st.sampled_from(["3", "0", "a", "keep-alive", "close", "AmazonSQS.SendMessage", "3, 3"]),
    st.text(st.characters(max_codepoint=255), max_size=6),
)
_LINES = st.lists(
    st.tuples(_NAMES, st.sampled_from([": ", ":", " : ", ":\t", ""]), _VALUES).map("".join), max_size=5
)
_STARTS = st.one_of(
    st.sampled_from(["POST / HTTP/1.1", "GET /a?b=c HTTP/1.1", "PUT /a HTTP/1.0", "GET  / HTTP/1.1"]),
    st.text(st.characters(max_codepoint=255), max_size=20).map(lambda path: f"GET /{path} HTTP/1.1"),
)


@given(_STARTS, _LINES, st.sampled_from(["", "a", "abc", "abcd", "0\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"]))
@example("POST / HTTP/1.1", [HOST, "Content-Length: 3"], "abc")
def test_no_request_is_read_otherwise_than_by_the_parser(start: str, lines: list[str], body: str) -> None:
    for more in ([], [HOST]):
        agreed(request(*lines, *more, start=start, body=body))


def test_lines_that_are_all_different_take_no_more_room_than_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "MOST_LINES", 10)
    for n in range(100):
        assert agreed(request(HOST, f"User-Agent: {n}", start=f"GET /{n} HTTP/1.1"))
        assert len(plain._lines) <= 10
        assert len(plain._starts) <= 10
    assert not any(b"secret" in line for line in plain._lines)
    assert agreed(request(HOST, "Authorization: Bearer secret", start="GET /?token=secret HTTP/1.1"))
    assert not any(b"secret" in line for line in (*plain._lines, *plain._starts))
