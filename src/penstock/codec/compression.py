"""Payloads compressed with Zstandard: the only file that imports zstandard."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

from penstock.errors import StorageCorrupt

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor

LEVEL = 3


class _Contexts(threading.local):
    """Zstandard's working memory: dear to make, and good for one thread at a time."""

    def __init__(self) -> None:
        import zstandard  # Late: most processes compress nothing.

        self.compressor: ZstdCompressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor: ZstdDecompressor = zstandard.ZstdDecompressor()
        self.size_of = zstandard.frame_content_size
        self.error = zstandard.ZstdError


_contexts = functools.cache(_Contexts)


def compressed(payload: bytes) -> bytes | None:
    """The payload in fewer bytes; None if it has no fewer."""
    packed = _contexts().compressor.compress(payload)
    return packed if len(packed) < len(payload) else None


def decompressed(packed: bytes, limit_bytes: int) -> bytes:
    """The payload again. What claims to be longer than the limit is refused before it is given room."""
    size = decompressed_size(packed, limit_bytes)
    context = _contexts()
    try:
        payload = context.decompressor.decompress(packed, max_output_size=limit_bytes, allow_extra_data=False)
    except context.error as error:
        raise StorageCorrupt(f"a compressed payload does not decompress: {error}") from error
    if len(payload) != size:
        raise StorageCorrupt(f"a compressed payload has {len(payload)} bytes instead of {size}")
    return payload


def decompressed_size(packed: bytes, limit_bytes: int) -> int:
    """The size that a compressed payload claims; nothing is decompressed."""
    context = _contexts()
    try:
        size: int = context.size_of(packed)
    except context.error as error:
        raise StorageCorrupt(f"a compressed payload does not decompress: {error}") from error
    if not 0 <= size <= limit_bytes:
        raise StorageCorrupt(f"a compressed payload claims {size} bytes; the limit is {limit_bytes}")
    return size
