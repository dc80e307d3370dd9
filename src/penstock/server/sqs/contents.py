"""A message's attributes as headers and back: texts as they are, bytes in base64, types in one header."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Mapping

import msgspec

from penstock.message import OWNED_HEADER_PREFIX
from penstock.server.sqs.checks import has_forbidden, invalid
from penstock.server.sqs.digests import Attribute
from penstock.server.sqs.errors import SqsError
from penstock.server.sqs.shapes import AttributeValue

#: The header that has what SQS knows of a message besides its attributes' values; no attribute has its name.
HEADER = "sqs/note"
MOST_ATTRIBUTES = 10
#: Of a body that is no text, which only Penstock's own producers can send.
ENCODING = "Penstock.Encoding"
_NAME = re.compile(r"(?!(?i:aws\.|amazon\.))(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
#: With a label of one's own behind it, if that is wanted.
_TYPE = re.compile(r"(String|Number|Binary)(?:\..+)?", re.DOTALL)
MOST_TYPE = 256
_NUMBER = re.compile(r"[+-]?([0-9]{1,128}(\.[0-9]{0,128})?|\.[0-9]{1,128})([eE][+-]?[0-9]{1,3})?")


class Note(msgspec.Struct, omit_defaults=True):
    """What the header holds, as JSON."""

    types: dict[str, str] = {}
    trace: str | None = None
    sender: str = ""


_NO_NOTE = Note()


def checked(attributes: Mapping[str, AttributeValue]) -> list[Attribute]:
    """Name, type and value of each, as SQS accepts them."""
    if len(attributes) > MOST_ATTRIBUTES:
        raise SqsError("InvalidParameterValue", f"A message has at most {MOST_ATTRIBUTES} attributes.")
    return [_checked(name, value) for name, value in attributes.items()]


def _checked(name: str, given: AttributeValue) -> Attribute:
    if not _NAME.fullmatch(name) or name.startswith(OWNED_HEADER_PREFIX):
        raise invalid("MessageAttributeName", name, "It is reserved, or has characters that are not taken.")
    match = _TYPE.fullmatch(given.data_type)
    if match is None or len(given.data_type) > MOST_TYPE or has_forbidden(given.data_type):
        raise invalid("DataType", given.data_type, f"That of '{name}' must be String, Number or Binary.")
    value: str | bytes | None = given.binary_value if match[1] == "Binary" else given.string_value
    other = given.string_value if match[1] == "Binary" else given.binary_value
    if not value or other:
        raise invalid("MessageAttribute", name, f"It must have one value, not empty, of type {match[1]}.")
    if isinstance(value, str) and has_forbidden(value):
        raise invalid("MessageAttribute", name, "Its value has characters that are not taken.")
    if match[1] == "Number" and not _NUMBER.fullmatch(str(value)):
        raise invalid("MessageAttribute", name, "Its value is no number.")
    return name, given.data_type, value


def size(attributes: Collection[Attribute]) -> int:
    return sum(
        len(name) + len(kind.encode()) + len(value.encode() if isinstance(value, str) else value)
        for name, kind, value in attributes
    )


def headers(attributes: Collection[Attribute], trace: str | None, sender: str) -> dict[str, str]:
    """String is what a header is without a type of its own."""
    found = {
        name: value if isinstance(value, str) else base64.b64encode(value).decode()
        for name, _, value in attributes
    }
    note = Note({name: kind for name, kind, _ in attributes if kind != "String"}, trace, sender)
    if note != _NO_NOTE:
        found[HEADER] = msgspec.json.encode(note).decode()
    return found


def note_of(given: Mapping[str, str]) -> Note:
    text = given.get(HEADER)
    try:
        return _NO_NOTE if text is None else msgspec.json.decode(text, type=Note)
    except msgspec.DecodeError:
        return _NO_NOTE  # A header of somebody's own that happens to have the name.


def attributes_of(given: Mapping[str, str], note: Note) -> list[Attribute]:
    """Headers of Penstock's own producers too, where SQS could have them."""
    found: list[Attribute] = []
    for name, text in given.items():
        # Penstock's own are no attributes: who sends a message on could not send them along.
        if name.startswith(OWNED_HEADER_PREFIX):
            continue
        if not text or not _NAME.fullmatch(name) or has_forbidden(text):
            continue
        kind = note.types.get(name, "String")
        value: str | bytes = text
        if kind.startswith("Binary"):
            try:
                value = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                kind = "String"
        found.append((name, kind, value))
    return found


def wanted(attributes: Collection[Attribute], names: Collection[str]) -> list[Attribute]:
    """Those that a receiver asks for: by name, by `prefix.*`, or all."""
    if not attributes:
        return []
    if "All" in names or ".*" in names:
        return list(attributes)
    exact = frozenset(names)
    prefixes = tuple(name[:-1] for name in names if name.endswith(".*"))
    return [one for one in attributes if one[0] in exact or (prefixes and one[0].startswith(prefixes))]


def value_of(attribute: Attribute) -> AttributeValue:
    _, kind, value = attribute
    if isinstance(value, bytes):
        return AttributeValue(data_type=kind, binary_value=value)
    return AttributeValue(data_type=kind, string_value=value)


def body_of(payload: bytes) -> tuple[str, bool]:
    """The payload as text, and whether it is base64 because it was none."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), True
    return (base64.b64encode(payload).decode(), True) if has_forbidden(text) else (text, False)
