"""Requests that arrive in one piece and in the plainest form, as nearly all do: read at once.

The parser has a call of ours for each header and each part of a request. What is read here needs none, and a
header line that came before is not even split again. Whatever is unusual in any way, or wrong, is the
parser's: it alone decides what is refused, and nothing that is read here would be read otherwise by it.
"""

from __future__ import annotations

import re
from typing import TypeVar

from penstock.server.head import Head

T = TypeVar("T")

_START = re.compile(rb"(GET|POST|PUT|DELETE|HEAD|PATCH) (/[!\"$-~]*) HTTP/1\.1")
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([!-~](?:[\t -~]*[!-~])?)")
#: Headers that say more than what they are called: the parser knows what.
_NOT_PLAIN = frozenset(
    (
        "connection",
        "expect",
        "http2-settings",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
#: Headers that clients send with every request: the same lines again, and nobody's secrets.
_SAME = frozenset(
    (
        "accept",
        "accept-encoding",
        "amz-sdk-request",
        "content-length",
        "content-type",
        "host",
        "user-agent",
        "x-amz-target",
        "x-amzn-query-mode",
    )
)
#: How many of those lines, and of what length, are remembered; the first lines of requests as well.
MOST_LINES = 1000
LONGEST_LINE = 300
#: Of a length that is plain.
MOST_DIGITS = 10

_lines: dict[bytes, tuple[str, str]] = {}
_starts: dict[bytes, tuple[str, str, str]] = {}


def read(data: bytes, most_header_bytes: int, most_body_bytes: int) -> tuple[Head, bytes] | None:
    """The one request that the bytes are, if they are one and plain."""
    end = data.find(b"\r\n\r\n", 0, most_header_bytes)
    if end < 0 or len(data) - end - 4 > most_body_bytes:
        return None
    first, *rest = data[:end].split(b"\r\n")
    start = _starts.get(first) or _start(first)
    if start is None:
        return None
    headers: dict[str, str] = {}
    known = _lines.get
    for line in rest:
        pair = known(line) or _line(line)
        if pair is None:
            return None
        headers[pair[0]] = pair[1]
    if len(headers) != len(rest) or "host" not in headers:
        return None
    length = headers.get("content-length", "0")
    if len(length) > MOST_DIGITS or not length.isdecimal() or int(length) != len(data) - end - 4:
        return None
    return Head(*start, headers), data[end + 4 :]


def _start(first: bytes) -> tuple[str, str, str] | None:
    match = _START.fullmatch(first)
    if match is None:
        return None
    path, _, query = match[2].decode().partition("?")
    start = match[1].decode(), path, query
    if len(first) <= LONGEST_LINE and not query:  # Which may be signed.
        _remember(_starts, first, start)
    return start


def _line(line: bytes) -> tuple[str, str] | None:
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    name = match[1].decode().lower()
    if name in _NOT_PLAIN and line.lower() != b"connection: keep-alive":
        return None
    pair = name, match[2].decode()
    if name in _SAME and len(line) <= LONGEST_LINE:
        _remember(_lines, line, pair)
    return pair


def _remember(kept: dict[bytes, T], line: bytes, what: T) -> None:
    if len(kept) >= MOST_LINES:
        kept.clear()  # Whoever made them all different has the cost of it.
    kept[line] = what
