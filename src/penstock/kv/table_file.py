"""RocksDB's sorted tables, written by columns: the driver's own writer takes a call for each row.

They are block-based tables of version 5 with nothing in them that may be left out: no filter,
and an index with whole keys. Nothing here reads one. That is RocksDB's part, which checks each block.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from penstock.codec.compression import compressed
from penstock.errors import BackendNotInstalled, StorageError
from penstock.kv.failures import translated

#: Larger than a store's own: what was ingested is mostly read from end to end. Compactions cut it anew.
BLOCK_BYTES = 32_768

_MAGIC = 0x88E241B785F4CFF7
_VERSION = 5
_XXH3 = 4
#: How a block is compressed, which its checksum covers by way of this factor.
_PLAIN, _ZSTD = 0, 7
_KIND_PRIME = 0x6B9083D9
#: Behind each key: that it is a put, and number 0, for which RocksDB takes the one that it gives the file.
_KEY_END = struct.pack("<Q", 1)
_FOOTER_BYTES = 53
#: Behind each block: how it is compressed, and its checksum.
_TRAILER = struct.Struct("<BI")
#: The end of a block in which only the first row has its whole key.
_ONE_RESTART = struct.pack("<2I", 0, 1)
#: Pieces that the system writes in one call.
_PIECES_AT_ONCE = 512

Piece = bytes | memoryview


class Lines(NamedTuple):
    """Rows, by what their keys begin with: of each beginning so many, then the rest of each key, and values.

    No beginning is that of another. The rests are a table of bytes, as wide as some whole words; values are
    in parts, one behind the other, each of them large binaries of Arrow, or one that all rows have.
    """

    prefixes: Sequence[bytes]
    rows: Sequence[int]
    suffixes: Any
    values: Sequence[Any] | bytes


class TableFile:
    """A table in the making; rows come in ascending order of their keys."""

    def __init__(self, path: str, *, compress: bool = False) -> None:
        self._path = path
        self._hash = _hash()
        self._compress = compress
        #: Of each block its last key, where it begins and its size.
        self._index: list[tuple[bytes, int, int]] = []
        self._last = b""
        self._at = self._rows = self._key_bytes = self._value_bytes = 0
        try:
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115 (`finish` and `close` do)
        except OSError as error:
            raise translated(error, path) from error

    def put(self, lines: Lines) -> None:
        """After a failure there will be no table."""
        try:
            if len(lines.suffixes):
                self._check_order(lines)
                self._write(self._blocks(lines))
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise translated(error, self._path) from error
            raise

    def _check_order(self, lines: Lines) -> None:
        """Nothing would be found again in a table that is not in order."""
        import numpy as np

        prefixes, rows, suffixes, _ = lines
        words = np.ascontiguousarray(suffixes).view(np.uint64)
        rises: Any = np.zeros(len(words) - 1, bool)
        for column in reversed(range(words.shape[1])):
            if (words[:, column] == words[0, column]).all():
                continue  # As most are: looking for that is cheaper than comparing them as numbers.
            numbers = words[:, column].view(">u8").astype(np.uint64)
            before, after = numbers[:-1], numbers[1:]
            rises = (before < after) | ((before == after) & rises)
        rises[np.cumsum(rows)[:-1] - 1] = True  # From one beginning to the next.
        in_order = rises.all() and all(
            one < other and not other.startswith(one) for one, other in pairwise(prefixes)
        )
        if not in_order or prefixes[0] + suffixes[0].tobytes() <= self._last:
            raise StorageError(f"rows for the table {self._path} are not in order")

    def _blocks(self, lines: Lines) -> list[Piece]:
        """As they are written. The first row of one, and of a prefix, has its whole key: others share."""
        import numpy as np

        prefixes, rows, suffixes, values = lines
        count, width = suffixes.shape
        if isinstance(values, bytes):
            sizes = np.full(count, len(values))
        else:
            sizes = sum(map(_sizes, values), np.zeros(count, np.int64))
        data, places = _entries(lines, sizes)
        sized, firsts = places[:-1], np.cumsum(rows) - rows
        if len(prefixes) > 1:
            sized = sized + np.repeat(np.cumsum([len(prefix) for prefix in prefixes]), rows)
        starts = np.searchsorted(sized, np.arange(sized[0], sized[-1] + 1, BLOCK_BYTES))
        at = np.union1d(starts, firsts)
        after = np.append(at[1:], count)
        written: list[Piece] = []
        pieces: list[Piece] = []
        restarts: list[int] = []
        size, last = 0, b""
        for new, owner, first, end, value_bytes, value_ends, until in zip(
            np.isin(at, starts).tolist(),
            (np.searchsorted(firsts, at, side="right") - 1).tolist(),
            _cut(suffixes[at]),
            _cut(suffixes[after - 1]),
            sizes[at].tolist(),
            places[at + 1].tolist(),
            places[after].tolist(),
            strict=True,
        ):
            if new and pieces:
                written += self._closed(pieces, restarts, size, last)
                pieces, restarts, size = [], [], 0
            prefix = prefixes[owner]
            head = b"\0%b%b%b%b%b" % (
                varint(len(prefix) + width + len(_KEY_END)),
                varint(value_bytes),
                prefix,
                first,
                _KEY_END,
            )
            restarts.append(size)
            rest = data[value_ends - value_bytes : until]  # Its value, then rows that share.
            pieces += (head, rest)
            size += len(head) + len(rest)
            last = prefix + end
        self._last = last
        self._rows += count
        self._key_bytes += sum(len(prefix) * rows_ for prefix, rows_ in zip(prefixes, rows, strict=True))
        self._key_bytes += count * (width + len(_KEY_END))
        self._value_bytes += int(sizes.sum())
        return written + self._closed(pieces, restarts, size, last)

    def _closed(self, pieces: list[Piece], restarts: list[int], size: int, last: bytes) -> list[Piece]:
        """A block as it is written, whose last key that is."""
        if len(restarts) == 1:
            tail = _ONE_RESTART
        else:
            tail = struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
        pieces.append(tail)
        kind, size = _PLAIN, size + len(tail)
        if self._compress and (packed := compressed(b"".join(pieces))) is not None:
            pieces = [varint(size), packed]
            kind, size = _ZSTD, len(pieces[0]) + len(packed)
        self._index.append((last, self._at, size))
        return self._summed(pieces, size, kind)

    def _summed(self, pieces: list[Piece], size: int, kind: int = _PLAIN) -> list[Piece]:
        """A block, how it is compressed and its checksum, to be written next."""
        digest = self._hash()
        for piece in pieces:
            digest.update(piece)
        self._at += size + 5
        pieces.append(_TRAILER.pack(kind, (digest.intdigest() ^ kind * _KIND_PRIME) & 0xFFFFFFFF))
        return pieces

    def _write(self, pieces: list[Piece]) -> None:
        for at in range(0, len(pieces), _PIECES_AT_ONCE):
            some = pieces[at : at + _PIECES_AT_ONCE]
            left = sum(map(len, some)) - os.writev(self._file.fileno(), some)
            while left:  # 2 GiB at a time; or the disk is full, which the next call says.
                rest = memoryview(b"".join(some))[-left:]
                left -= os.write(self._file.fileno(), rest)

    def _write_rows(self, rows: Sequence[tuple[bytes, bytes]]) -> bytes:
        """A block of few rows; its place."""
        out, restarts, at = bytearray(), [], self._at
        for key, value in rows:
            restarts.append(len(out))
            out += b"\0" + varint(len(key)) + varint(len(value)) + key + value
        out += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
        self._write(self._summed([bytes(out)], len(out)))
        return varint(at) + varint(len(out))

    def finish(self) -> None:
        """The end of the table; to be durable, the file must be synced."""
        try:
            self._finish()
        except OSError as error:
            raise translated(error, self._path) from error
        finally:
            self.close()

    def _finish(self) -> None:
        data_bytes = self._at
        index = self._write_rows(
            [(key + _KEY_END, varint(at) + varint(size)) for key, at, size in self._index]
        )
        properties = self._write_rows(
            [
                (b"rocksdb.block.based.table.index.type", bytes(4)),
                (b"rocksdb.block.based.table.prefix.filtering", b"0"),
                (b"rocksdb.block.based.table.whole.key.filtering", b"1"),
                (b"rocksdb.comparator", b"leveldb.BytewiseComparator"),
                (b"rocksdb.data.size", varint(data_bytes)),
                (b"rocksdb.external_sst_file.global_seqno", bytes(8)),
                (b"rocksdb.external_sst_file.version", struct.pack("<I", 2)),
                (b"rocksdb.format.version", varint(0)),
                (b"rocksdb.index.size", varint(self._at - data_bytes)),
                (b"rocksdb.num.data.blocks", varint(len(self._index))),
                (b"rocksdb.num.entries", varint(self._rows)),
                (b"rocksdb.raw.key.size", varint(self._key_bytes)),
                (b"rocksdb.raw.value.size", varint(self._value_bytes)),
            ]
        )
        listed = self._write_rows([(b"rocksdb.properties", properties)])
        footer = bytes([_XXH3]) + listed + index
        self._write([footer.ljust(_FOOTER_BYTES - 12, b"\0") + struct.pack("<IQ", _VERSION, _MAGIC)])

    def close(self) -> None:
        """What is not finished is no table."""
        self._file.close()


@lru_cache(maxsize=1024)
def varint(number: int) -> bytes:
    """A number as RocksDB writes it: seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _entries(lines: Lines, sizes: Any) -> tuple[memoryview, Any]:
    """The rows as blocks have them, where a key leaves out what it shares with the one before; their places.

    That is its prefix, and the bytes in which all suffixes of a prefix are alike. Numbers have as many bytes
    as the largest of them: a varint may be longer than it need be.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    prefixes, rows, suffixes, values = lines
    count, width = suffixes.shape
    same = _alike(rows, suffixes)
    lengths = _once(np.array([len(prefix) + same for prefix in prefixes]), rows)
    shared, size = len(varint(int(lengths.max()))), len(varint(int(sizes.max())))
    key_at = shared + 1 + size
    # What all of them have is there at once; the rest is put in by columns, for they are few.
    one = bytes(shared) + varint(width - same + len(_KEY_END)) + bytes(size + width - same) + _KEY_END
    if isinstance(values, bytes):
        one += values
    heads = np.frombuffer(bytearray(one) * count, np.uint8).reshape(count, len(one))
    _put_varints(heads[:, :shared], lengths)
    _put_varints(heads[:, shared + 1 : key_at], _once(sizes))
    for column in range(same, width):
        heads[:, key_at + column - same] = suffixes[:, column]
    if isinstance(values, bytes):
        return heads.data.cast("B"), np.arange(count + 1) * len(one)
    joined: Any = pc.binary_join_element_wise(_binaries(heads), *values, pa.scalar(b"", pa.large_binary()))
    return memoryview(joined.buffers()[2]), np.frombuffer(joined.buffers()[1], np.int64)[: count + 1]


def _cut(table: Any) -> list[bytes]:
    """The lines of a table of bytes."""
    raw, width = table.tobytes(), table.shape[1]
    return [raw[at : at + width] for at in range(0, len(raw), width)]


def _alike(rows: Sequence[int], suffixes: Any) -> int:
    """How many bytes all of a prefix begin with; but each has one of its own. They are in order."""
    import numpy as np

    ends = np.cumsum(rows)
    differing = suffixes[ends - rows] != suffixes[ends - 1]
    differing[:, -1] = True
    return int(differing.argmax(axis=1).min())


def _once(numbers: Any, times: Any = 1) -> Any:
    """Each so many times; or one of them, if all are the same."""
    import numpy as np

    return numbers[:1] if (numbers == numbers[0]).all() else np.repeat(numbers, times)


def _put_varints(columns: Any, numbers: Any) -> None:
    for at in range(columns.shape[1]):
        columns[:, at] = numbers >> 7 * at & 0x7F
    columns[:, :-1] |= 0x80


def _sizes(values: Any) -> Any:
    import numpy as np

    ends = np.frombuffer(values.buffers()[1], np.int64)
    return np.diff(ends[values.offset : values.offset + len(values) + 1])


def _binaries(table: Any) -> Any:
    """The lines of a table of bytes, as Arrow has them."""
    import numpy as np
    import pyarrow as pa

    rows, width = table.shape
    ends = np.arange(rows + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(ends.data), pa.py_buffer(np.ascontiguousarray(table).data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), rows, buffers)


def _hash() -> Any:
    try:
        import xxhash
    except ImportError as error:
        raise BackendNotInstalled("xxhash", "spark") from error
    return xxhash.xxh3_64
