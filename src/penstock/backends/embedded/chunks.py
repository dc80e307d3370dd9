"""Writing chunks: bodies and ready rows of one queue, as the store will have them.

Large ones become tables, which the store takes in as they are. A table stays in the store until a compaction
meets it, so that small ones would pile up there: their rows go into one file, and are put like any others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.backends.bulk import Chunk
from penstock.backends.embedded import keys, staged
from penstock.backends.embedded.columns import arrow, arrow_compute
from penstock.backends.embedded.staged import ID_BYTES, MESSAGES, READY, ROWS, Rows, Waiting
from penstock.codec.vault import Seal
from penstock.kv.base import Row
from penstock.kv.table_file import Lines, TableFile

#: A chunk is closed when it has so many rows, or bytes of bodies.
CHUNK_ROWS = 131_072
CHUNK_BYTES = 64 << 20
#: From so many rows, or bytes of bodies, on a chunk has tables.
TABLE_ROWS = 4096
TABLE_BYTES = 1 << 20
#: Rows that are put into a table at a time where they did not come in order.
SORTED_AT_ONCE = 4096
#: What is kept of a row until its chunk is closed, besides its body: about so much.
ROW_BYTES = 250
#: How many times the work of a row whose id is its job's own is that of one whose id must be looked up.
LOOKED_UP = 8
#: The same of a row that waits or expires: it has rows of its own in other spaces.
TIMED = 16

#: Of a ready key: order and id.
SUFFIX_BYTES = keys.ORDER_AND_ID_BYTES

Ids = Literal["new", "ids", "dedup"]


class Lane(NamedTuple):
    """Order and id of its rows, one behind the other, and their values: one for each, or for all of them."""

    lane: bytes
    suffixes: bytes
    values: list[bytes]

    @property
    def rows(self) -> int:
        return len(self.suffixes) // SUFFIX_BYTES

    @property
    def value_rows(self) -> list[int]:
        """How many rows have each of the values."""
        return [self.rows] if len(self.values) == 1 else [1] * self.rows


def rows_of_work(rows: int, ids: Ids, timed: int) -> int:
    """How long rows are in coming, in plain ones, of which a slice has so many that others hardly wait."""
    return rows * (1 if ids == "new" else LOOKED_UP) + timed * (TIMED - 1)


class ChunkWriter:
    """One chunk in the making. Where all ids are its job's own, they come in order and nothing is kept."""

    def __init__(
        self, folder: Path, name: str, number: int, ids: Ids, seal: Seal | None, *, compress: bool
    ) -> None:
        self._path = folder / name
        self._name = name
        self._number = number
        self._prefix = keys.u32(number)
        self._ids_kind: Ids = ids
        self._seal = seal
        self._compress = compress
        self._table: TableFile | None = None
        #: In the order of rows, one or many in a piece.
        self._ids: list[bytes | memoryview] = []
        #: Ids and bodies that are in no table yet.
        self._kept: list[tuple[Any, list[Any]]] = []
        self._pending_ids: list[bytes] = []
        self._pending_bodies: list[bytes] = []
        self._seen: set[bytes] = set()
        self._repeated = 0
        #: By lane and value, order and id of its rows.
        self._ready: dict[tuple[bytes, bytes], list[bytes]] = {}
        #: Whether all rows came in order: then those of a lane need not be sorted.
        self._ordered = ids == "new"
        self._last_order_ns = 0
        self._delayed: list[Waiting] = []
        self._expiring: list[tuple[int, int]] = []
        self.rows = self.size_bytes = self._kept_bytes = 0

    @property
    def is_table(self) -> bool:
        """Whether it has a file open."""
        return self._table is not None

    @property
    def memory_bytes(self) -> int:
        """Roughly."""
        return self._kept_bytes + self.rows * ROW_BYTES

    @property
    def _is_large(self) -> bool:
        return self.rows >= TABLE_ROWS or self.size_bytes >= TABLE_BYTES

    @property
    def full(self) -> bool:
        work = rows_of_work(self.rows, self._ids_kind, self._timed)
        return work >= CHUNK_ROWS or self.size_bytes >= CHUNK_BYTES

    @property
    def _timed(self) -> int:
        return len(self._delayed) + len(self._expiring)

    def add_run(
        self,
        ids: Any,
        bodies: Sequence[Any],
        order_ns: int,
        lanes: Iterable[tuple[tuple[bytes, bytes], bytes]],
    ) -> None:
        """Ready rows of one order whose ids are the job's own and go up.

        A table of the ids, the parts of bodies, and by lane and value the order and ids of its rows.
        """
        self.flush()
        self.rows += len(ids)
        self._put(ids, bodies)
        self._ids.append(memoryview(ids).cast("B"))
        self._last_order_ns = max(self._last_order_ns, order_ns)
        for place, suffixes in lanes:
            self._add_ready(place, suffixes)

    def add(self, raw_id: bytes, body: bytes, place: tuple[bytes, bytes], order_ns: int) -> bool:
        """A ready row, with its lane and value; False for one whose id was here before."""
        if not self._add_body(raw_id, body):
            return False
        self._add_ready(place, order_ns.to_bytes(8, "big") + raw_id)
        if order_ns > self._last_order_ns:
            self._last_order_ns = order_ns
        return True

    def _add_ready(self, place: tuple[bytes, bytes], suffixes: bytes) -> None:
        known = self._ready.get(place)
        if known is None:
            self._ready[place] = [suffixes]
            return
        if known[-1][-SUFFIX_BYTES:] >= suffixes[:SUFFIX_BYTES]:
            self._ordered = False
        known.append(suffixes)

    def holds(self, raw_id: bytes) -> bool:
        """Whether it has such a row, which came with its id."""
        return raw_id in self._seen

    def add_delayed(self, raw_id: bytes, body: bytes, waiting: Waiting) -> bool:
        if not self._add_body(raw_id, body):
            return False
        self._delayed.append(waiting)
        return True

    def note_expiry(self, expires_at_ns: int) -> None:
        """The ready row that was just added expires."""
        self._expiring.append((self.rows - 1, expires_at_ns))

    def _add_body(self, raw_id: bytes, body: bytes) -> bool:
        if self._ids_kind != "new":
            if raw_id in self._seen:
                self._repeated += 1
                return False
            self._seen.add(raw_id)
        self._pending_ids.append(raw_id)
        self._pending_bodies.append(body)
        self._ids.append(raw_id)
        self.rows += 1
        return True

    def flush(self) -> None:
        """Rows that were added one by one, together."""
        if self._pending_ids:
            pa, ids, bodies = arrow(), self._pending_ids, self._pending_bodies
            self._pending_ids, self._pending_bodies = [], []
            self._put(table_of(b"".join(ids), ID_BYTES), [pa.array(bodies, pa.large_binary())])

    def _put(self, ids: Any, bodies: Sequence[Any]) -> None:
        if self._seal is not None:
            bodies = [self._sealed(self._seal, ids, _joined(bodies))]
        size = sum(part.nbytes for part in bodies)
        self.size_bytes += size
        if self._table is not None:
            self._put_lines(self._table, ids, bodies)
            return
        # A copy, for these may be a small part of a batch that could not be freed.
        self._kept.append((ids, [_joined(bodies)]))
        self._kept_bytes += size
        if self._ids_kind == "new" and self._is_large:  # In order: nothing needs to be kept any longer.
            self._table = self._open_table()

    def _sealed(self, seal: Seal, ids: Any, bodies: Any) -> Any:
        pa, prefix = arrow(), self._prefix
        row_keys = [prefix + one.tobytes() for one in ids]
        return pa.array(list(map(seal, row_keys, bodies.to_pylist())), pa.large_binary())

    def _put_lines(self, table: TableFile, ids: Any, bodies: Sequence[Any]) -> None:
        table.put(Lines([self._prefix], [len(ids)], ids, bodies))

    def _open_table(self) -> TableFile:
        """With what was kept, in order."""
        table = TableFile(str(self._path) + MESSAGES, compress=self._compress)
        kept, self._kept, self._kept_bytes = self._kept, [], 0
        for ids, bodies in kept if self._ids_kind == "new" else _in_order(kept):
            self._put_lines(table, ids, bodies)
        return table

    def finish(self) -> Chunk:
        """All of it in files, which are to be synced."""
        self.flush()
        ends = bytes(self._ids[0][:ID_BYTES]), bytes(self._ids[-1][-ID_BYTES:])
        # Those of the job's own go up: without a gap, unless rows were set aside or are in other queues.
        counted = self.rows if self._ids_kind == "new" and _steps(*ends) == self.rows - 1 else 0
        ids = ends[0] if counted else b"".join(self._ids)
        lanes = list(self._lanes())
        listed = [(one.lane, one.suffixes[:SUFFIX_BYTES], one.rows) for one in lanes]
        rows = Rows(ids, listed, self._last_order_ns, self._delayed, self._expiring, counted=counted)
        if self._table is None and not self._is_large:
            rows.bodies = [body for _, bodies in self._kept for body in bodies[0].to_pylist()]
            rows.ready = [
                (one.lane + suffix, value)
                for one in lanes
                for suffix, value in zip(_cut(one.suffixes), _each(one.values, one.rows), strict=True)
            ]
        else:
            (self._table or self._open_table()).finish()
            self._write_ready(lanes)
        size = staged.write_rows(Path(str(self._path) + ROWS), rows)
        if self._ids_kind != "new":
            ends = min(self._seen), max(self._seen)
        return Chunk(
            name=self._name,
            number=self._number,
            rows=self.rows,
            first=ends[0],
            last=ends[1],
            sizes_bytes=(self._size(MESSAGES), self._size(READY), size),
            ids=self._ids_kind,
            repeated=self._repeated,
            timed=self._timed,
        )

    def close(self) -> None:
        """What is not finished is no chunk."""
        if self._table is not None:
            self._table.close()

    def _size(self, ending: str) -> int:
        path = Path(str(self._path) + ending)
        return path.stat().st_size if path.exists() else 0

    def _write_ready(self, lanes: Sequence[Lane]) -> None:
        """The table of ready rows, if there are any."""
        if not lanes:
            return
        import numpy as np

        pa = arrow()
        table = TableFile(str(self._path) + READY, compress=self._compress)
        prefixes, rows = [self._prefix + one.lane for one in lanes], [one.rows for one in lanes]
        suffixes = table_of(b"".join(one.suffixes for one in lanes), SUFFIX_BYTES)
        values = pa.array([value for one in lanes for value in one.values], pa.large_binary())
        of_rows = np.repeat(np.arange(len(values)), [count for one in lanes for count in one.value_rows])
        table.put(Lines(prefixes, rows, suffixes, [values.take(of_rows)]))
        table.finish()

    def _lanes(self) -> Iterator[Lane]:
        """In order, and their rows too."""
        values: dict[bytes, list[bytes]] = {}
        for lane, value in self._ready:
            values.setdefault(lane, []).append(value)
        for lane in sorted(values):
            if len(values[lane]) == 1 and self._ordered:
                value = values[lane][0]
                suffixes = b"".join(self._ready[lane, value])
                yield Lane(lane, suffixes, [value])
            else:
                rows = self._merged(lane, values[lane])
                yield Lane(lane, b"".join(suffix for suffix, _ in rows), [value for _, value in rows])

    def _merged(self, lane: bytes, values: Sequence[bytes]) -> list[Row]:
        """The rows of a lane whose values differ, or that did not come in order."""
        return sorted(
            (suffix, value) for value in values for suffix in _cut(b"".join(self._ready[lane, value]))
        )


def _joined(parts: Sequence[Any]) -> Any:
    pa = arrow()
    return arrow_compute().binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _in_order(kept: list[tuple[Any, list[Any]]]) -> Iterator[tuple[Any, list[Any]]]:
    """Ids and bodies, by id, some at a time; what is given is taken away."""
    import numpy as np

    ids = np.concatenate([ids for ids, _ in kept])
    bodies = arrow().concat_arrays([bodies[0] for _, bodies in kept])
    kept.clear()
    order = np.argsort(ids.view(f"S{ID_BYTES}").ravel())
    for at in range(0, len(order), SORTED_AT_ONCE):
        some = order[at : at + SORTED_AT_ONCE]
        yield ids[some], [bodies.take(some)]


def _steps(first: bytes, last: bytes) -> int:
    return int.from_bytes(last, "big") - int.from_bytes(first, "big")


def table_of(raw: bytes, width: int) -> Any:
    """Bytes as a table with lines of that many."""
    import numpy as np

    return np.frombuffer(raw, np.uint8).reshape(-1, width)


def _each(values: list[bytes], rows: int) -> list[bytes]:
    return values * rows if len(values) == 1 else values


def _cut(suffixes: bytes) -> list[bytes]:
    return [suffixes[at : at + SUFFIX_BYTES] for at in range(0, len(suffixes), SUFFIX_BYTES)]
