"""The MD5 sums by which SQS's clients check what was stored and what they got."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

#: (name, data type, value): text, or bytes where the type is Binary.
Attribute = tuple[str, str, str | bytes]


def of_body(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def of_attributes(attributes: Iterable[Attribute]) -> str:
    """By name; name, type and value each with their length, and before the value what it is made of."""
    digest = hashlib.md5(usedforsecurity=False)
    for name, data_type, value in sorted(attributes, key=lambda one: one[0]):
        digest.update(_counted(name.encode()) + _counted(data_type.encode()))
        raw, mark = (value.encode(), b"\x01") if isinstance(value, str) else (value, b"\x02")
        digest.update(mark + _counted(raw))
    return digest.hexdigest()


def _counted(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "big") + raw
