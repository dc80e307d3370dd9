"""The head of an answer, as bytes."""

from __future__ import annotations

from http import HTTPStatus

from penstock.server.endpoint import Response

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
#: What has no body by its nature.
_BODILESS = (204, 304)


def header(response: Response, date: str, form: str, keeps: bool, version: str = "1.1") -> bytes:
    """`date` and `form` are lines: when, and how the body's end is found."""
    lines = [_STATUS_LINES[response.status], date]
    if response.status not in _BODILESS:
        lines.append(f"content-type: {response.content_type}\r\n{form}")
    for name, value in response.headers:
        lines.append(f"{name}: {value}\r\n")
    if not keeps:
        lines.append("connection: close\r\n")
    elif version == "1.0":
        lines.append("connection: keep-alive\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("latin-1", "replace")
