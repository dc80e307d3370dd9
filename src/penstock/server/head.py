"""The head of a request: what is known before its body, and what the parser takes though it is wrong."""

from __future__ import annotations

from typing import NamedTuple

#: Headers by which it is decided what a request is: two of one would be two requests.
ONCE = ("host", "transfer-encoding")


class Head(NamedTuple):
    """What is known of a request before its body."""

    method: str
    path: str
    query: str
    headers: dict[str, str]


def wrong(version: str, head: Head) -> tuple[int, str] | None:
    """The status and the words for what is no request of HTTP/1.1; None if it is one."""
    headers = head.headers
    if version not in ("1.0", "1.1"):
        return 400, "this is not a request of HTTP/1.1"
    if version == "1.1" and "host" not in headers:
        return 400, "a request of HTTP/1.1 has the header `Host`"
    if head.method == "CONNECT" or not head.path.startswith("/"):
        return 400, "the target of a request must be a path"
    if "transfer-encoding" not in headers:
        return None
    if version == "1.0":
        return 400, "a request of HTTP/1.0 has no Transfer-Encoding"
    if words(headers["transfer-encoding"]) != ["chunked"]:
        return 501, "accepted for Transfer-Encoding: chunked"
    return None


def words(value: str) -> list[str]:
    """Of a header that is a list."""
    return [word.strip().lower() for word in value.split(",")]


def target(url: str) -> str:
    """The path and query, also of a URL as it is sent to a proxy."""
    if not url.startswith(("http://", "https://")):
        return url
    _, slash, rest = url.partition("//")[2].partition("/")
    return slash + rest
