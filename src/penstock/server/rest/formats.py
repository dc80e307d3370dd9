"""JSON and MessagePack: how a request is read, and which of the two its answer is in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from penstock.backends.http.wire import ARROW
from penstock.errors import InvalidMessage
from penstock.server.rest.errors import Refusal


class Format(NamedTuple):
    """One way to write things down."""

    media_type: str
    encode: Callable[[Any], bytes]
    decode: Callable[..., Any]


JSON = Format("application/json", msgspec.json.encode, msgspec.json.decode)
MSGPACK = Format("application/msgpack", msgspec.msgpack.encode, msgspec.msgpack.decode)
FORMATS = (JSON, MSGPACK)
#: What a client may call them.
_NAMES = {one.media_type: one for one in FORMATS} | {"application/x-msgpack": MSGPACK}
_RANGES = ("*/*", "application/*")


def format_of_body(headers: Mapping[str, str]) -> Format:
    """As the content type says; JSON, if nothing does."""
    given = headers.get("content-type", JSON.media_type).partition(";")[0].strip().lower()
    found = _NAMES.get(given)
    if found is None:
        raise Refusal(415, f"accepted as Content-Type: {', '.join(_NAMES)}")
    return found


def is_arrow(headers: Mapping[str, str], name: str) -> bool:
    """Whether a header, `accept` or `content-type`, asks for a stream of Arrow before anything else."""
    return headers.get(name, "").partition(",")[0].partition(";")[0].strip().lower() == ARROW


def format_of_answer(headers: Mapping[str, str]) -> Format:
    """What the client likes best; where it likes all, that of its own body."""
    accepted = headers.get("accept", "").strip()
    if not accepted or is_arrow(headers, "accept"):
        return _own(headers)
    wanted = sorted((_preference(part) for part in accepted.split(",")), key=lambda one: -one[1])
    for name, quality in wanted:
        if quality > 0 and name in _RANGES:
            return _own(headers)
        if quality > 0 and name in _NAMES:
            return _NAMES[name]
    raise Refusal(406, f"the answer can be in {', '.join(_NAMES)}, and Accept names none of them")


def _own(headers: Mapping[str, str]) -> Format:
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    return _NAMES.get(given, JSON)


def _preference(part: str) -> tuple[str, float]:
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = next((p.removeprefix("q=") for p in parameters if p.startswith("q=")), "1")
    try:
        return name, float(quality)
    except ValueError:
        return name, 0.0


def read_body(body: bytes, headers: Mapping[str, str], kind: type) -> Any:
    """What is asked for. Nothing is as an object with nothing in it."""
    try:
        if not body:
            return msgspec.convert({}, kind)
        return format_of_body(headers).decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"the body: {error}") from None


def read_query(query: str, kind: type | None) -> Any:
    """The same from a query string. What may be there more than once is a list."""
    fields = {} if kind is None else {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidMessage(f"the query cannot be read: {error}") from None
    for name, value in pairs:
        if name not in fields:
            accepted = ", ".join(fields) or "none"
            raise InvalidMessage(f"there is no parameter {name!r:.60} here; accepted: {accepted}")
        if fields[name].default_factory is list:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidMessage(f"the parameter {name!r} is there twice")
        else:
            values[name] = value
    if kind is None:
        return None
    try:
        asked: Any = msgspec.convert(values, kind, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidMessage(f"the query: {error}") from None
    for name in values:
        if getattr(asked, name) is None:
            raise InvalidMessage(f"the parameter {name!r} is null; leave it out instead")
    return asked
