"""The outside of a sealed record: what can be told of one without any key. `vault` has the inside.

A record is: version E1 · length of the key id u8 · key id · salt · counter · ciphertext with its tag. Other
values start with their own version, so a store may hold both while it is being converted.
"""

from __future__ import annotations

from penstock.errors import DecryptFailed

SEALED_VERSION = 0xE1
SALT_BYTES = 16
COUNTER_BYTES = 8
_MARK = bytes((SEALED_VERSION,))


def head(key_id: str, salt: bytes) -> bytes:
    """The start of every record that one key sealed under one salt."""
    raw_id = key_id.encode()
    return bytes((SEALED_VERSION, len(raw_id))) + raw_id + salt


def place_of(name: str) -> bytes:
    """What binds a record to a kind of rows: its space, or whatever else they lie in."""
    return bytes((len(name),)) + name.encode()


def key_id_of(raw: bytes) -> str | None:
    """The key that a sealed record names; None for a value that is not sealed."""
    if raw[:1] != _MARK:
        return None
    return raw[2 : 2 + raw[1]].decode(errors="replace") if len(raw) > 1 else ""


def not_sealed(raw: bytes) -> bytes:
    """A plain value where all should be sealed, as one that does not open: under a key without a name."""
    return bytes((SEALED_VERSION, 0)) + raw


def refuse_sealed(raw: bytes, what: str) -> None:
    """Raise `DecryptFailed` for a record that reached a decoder as it is stored: it did not open."""
    if raw[:2] == _MARK + b"\0":
        raise DecryptFailed(
            f"{what} of {len(raw) - 2} bytes is plain, in a store in which all is sealed: it was put there "
            "past Penstock; restore it from a backup, or run check with repair"
        )
    if raw[:1] == _MARK:
        raise DecryptFailed(
            f"{what} of {len(raw)} bytes, sealed with key {key_id_of(raw)!r}, does not open: it was altered, "
            "or put in another record's place; restore it from a backup, or run check with repair"
        )
