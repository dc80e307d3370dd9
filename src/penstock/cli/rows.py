"""What `--json` writes of each thing: the names of the API, and times in ISO 8601 beside their `_ns`."""

from __future__ import annotations

import base64
import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.cli.text import iso
from penstock.event import Event
from penstock.message import Delivery, Message

Row = dict[str, Any]

#: Fields of the API's structs that are its inner form, and the properties that users read instead.
_INNER = frozenset({"raw_id", "token"})
_PROPERTIES: dict[type, tuple[str, ...]] = {
    Message: ("id",),
    Delivery: ("id", "receipt"),
    Event: ("message_id",),
}


def row(value: msgspec.Struct) -> Row:
    """A struct of the API as a JSON object."""
    found: Row = {name: getattr(value, name) for name in _PROPERTIES.get(type(value), ())}
    for name in value.__struct_fields__:
        if name not in _INNER:
            found.update(_field(name, getattr(value, name)))
    return found


def _field(name: str, value: Any) -> Row:
    if isinstance(value, bytes):
        return bytes_field(name, value)
    if name.endswith("_ns"):
        return {name: value, name.removesuffix("_ns"): iso(value)}
    return {name: _plain(value)}


def bytes_field(name: str, value: bytes) -> Row:
    """Bytes under their name if they are UTF-8, under `…_base64` if not: the form that `enqueue` reads."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def bytes_of(found: Row, name: str) -> bytes:
    """The other way round."""
    text = found.get(name)
    return base64.b64decode(found[f"{name}_base64"]) if text is None else str(text).encode()


def _plain(value: Any) -> Any:
    match value:
        case msgspec.Struct():
            return row(value)
        case enum.Enum():
            return value.value
        case Mapping():
            return {name: _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case Exception():
            return str(value)
        case _:
            return value
