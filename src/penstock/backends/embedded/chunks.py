"""Writing chunks: bodies and ready rows of one queue, as the store will have them.

Large ones become tables, which the store takes in as they are. A table stays in the store until a compaction
meets it, so that small ones would pile up there: their rows go into one file, and are put like any others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock.backends.bulk import Chunk
from penstock.backends.embedded import keys, staged
from penstock.backends.embedded.staged import ID_BYTES, MESSAGES, READY, ROWS, Rows, Waiting
from penstock.backends.tables.incoming import arrow, arrow_compute
from penstock.codec.vault import Seal
from penstock.kv.base import Row
from penstock.kv.rocksdb import write_filtered
from penstock.kv.table_file import Lines, Piece, TableFile

#: A chunk is closed when it has so many rows, or bytes of bodies.
CHUNK_ROWS = 131_072
CHUNK_BYTES = 64 << 20
#: From so many rows, or bytes of bodies, on a chunk has tables.
TABLE_ROWS = 4096
TABLE_BYTES = 1 << 20
#: Rows that are put into a table at a time where they did not come in order.
SORTED_AT_ONCE = 4096
#: Ready rows that are put into a table at a time: few enough to stay in the processor's cache.
READY_AT_ONCE = 8192
#: What is kept of a row until its chunk is closed, besides its body: about so much.
ROW_BYTES = 250
#: How many times the work of a row whose id is its job's own is that of one whose id must be looked up.
LOOKED_UP = 8
#: The same of a row that waits or expires: it has rows of its own in other spaces.
TIMED = 16

#: Of a ready key: order and id.
SUFFIX_BYTES = keys.ORDER_AND_ID_BYTES

Ids = Literal["new", "ids", "dedup"]
#: Lane and value of a ready row.
Place = tuple[bytes, bytes]


class Lane(NamedTuple):
    """Order and id of its rows, one behind the other, and their values: one for each, or for all of them."""

    lane: bytes
    suffixes: Piece
    values: list[bytes]

    @property
    def rows(self) -> int:
        return len(self.suffixes) // SUFFIX_BYTES

    def parts(self) -> Iterator[Lane]:
        """Of so many rows at most."""
        if self.rows <= READY_AT_ONCE:
            yield self
            return
        for at in range(0, self.rows, READY_AT_ONCE):
            end = at + READY_AT_ONCE
            values = self.values if len(self.values) == 1 else self.values[at:end]
            yield Lane(self.lane, self.suffixes[at * SUFFIX_BYTES : end * SUFFIX_BYTES], values)

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
        self._ids: list[Piece] = []
        #: Ids and bodies that are in no table yet.
        self._kept: list[tuple[Any, list[Any]]] = []
        self._pending_ids: list[bytes] = []
        self._pending_bodies: list[bytes] = []
        self._seen: set[bytes] = set()
        self._repeated = 0
        #: By lane and value, order and id of its rows.
        self._ready: dict[Place, list[Piece]] = {}
        #: Those of runs are sorted by that once for all: the ends of ids, and numbers of places.
        self._runs: list[tuple[Any, Any]] = []
        self._run_order_ns, self._runs_start = 0, 0
        self._numbers: dict[Place, int] = {}
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
        places: Sequence[Place],
        at: Any,
    ) -> None:
        """Ready rows of one order whose ids are the job's own and go up.

        A table of the ids, the parts of bodies, some places, and which of them each row has.
        """
        import numpy as np

        self.flush()
        if order_ns != self._run_order_ns:
            self._sort_runs()
        self.rows += len(ids)
        self._put(ids, bodies)
        self._ids.append(memoryview(ids).cast("B"))
        self._last_order_ns = max(self._last_order_ns, order_ns)
        known = self._numbers
        numbers = np.array([known.setdefault(place, len(known)) for place in places], np.uint32)
        words = ids.view(np.uint64)
        self._run_order_ns, self._runs_start = order_ns, int(words[0, 0])  # All ids of a job begin alike.
        self._runs.append((words[:, 1], numbers[at]))

    def _sort_runs(self) -> None:
        """By lane and value."""
        if not self._runs:
            return
        import numpy as np

        (rests, numbers), places = map(np.concatenate, zip(*self._runs, strict=True)), list(self._numbers)
        self._runs, self._numbers = [], {}
        # Small numbers are sorted by their digits.
        small = numbers.astype(np.uint16) if len(places) <= 1 << 16 else numbers
        by_place = np.argsort(small, kind="stable")
        words = np.empty((len(rests), SUFFIX_BYTES // 8), np.uint64)
        words[:, 0] = np.frombuffer(keys.u64(self._run_order_ns), np.uint64)
        words[:, 1] = self._runs_start
        words[:, 2] = rests.take(by_place)
        raw = words.data.cast("B")
        ends = np.cumsum(np.bincount(numbers, minlength=len(places))) * SUFFIX_BYTES
        for place, (start, end) in zip(places, pairwise([0, *ends.tolist()]), strict=True):
            if end > start:
                self._add_ready(place, raw[start:end])

    def add(self, raw_id: bytes, body: bytes, place: Place, order_ns: int) -> bool:
        """A ready row, with its lane and value; False for one whose id was here before."""
        if not self._add_body(raw_id, body):
            return False
        if self._runs:
            self._sort_runs()
        self._add_ready(place, order_ns.to_bytes(8, "big") + raw_id)
        if order_ns > self._last_order_ns:
            self._last_order_ns = order_ns
        return True

    def _add_ready(self, place: Place, suffixes: Piece) -> None:
        known = self._ready.get(place)
        if known is None:
            self._ready[place] = [suffixes]
            return
        if bytes(known[-1][-SUFFIX_BYTES:]) >= bytes(suffixes[:SUFFIX_BYTES]):
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

    def _write_bodies(self) -> None:
        """The table of bodies. The ids that others bring are looked up in it, one by one."""
        if self._ids_kind != "ids":
            (self._table or self._open_table()).finish()
            return
        rows = (row for ids, bodies in _in_order(self._kept) for row in self._rows_of(ids, bodies[0]))
        write_filtered(str(self._path) + MESSAGES, rows, compress=self._compress)

    def _rows_of(self, ids: Any, bodies: Any) -> Iterator[Row]:
        prefix = self._prefix
        return ((prefix + one.tobytes(), body) for one, body in zip(ids, bodies.to_pylist(), strict=True))

    def finish(self) -> Chunk:
        """All of it in files, which are to be synced."""
        self.flush()
        self._sort_runs()
        ends = bytes(self._ids[0][:ID_BYTES]), bytes(self._ids[-1][-ID_BYTES:])
        # Those of the job's own go up: without a gap, unless rows were set aside or are in other queues.
        counted = self.rows if self._ids_kind == "new" and _steps(*ends) == self.rows - 1 else 0
        ids = ends[0] if counted else b"".join(self._ids)
        lanes = list(self._lanes())
        listed = [(one.lane, bytes(one.suffixes[:SUFFIX_BYTES]), one.rows) for one in lanes]
        rows = Rows(ids, listed, self._last_order_ns, self._delayed, self._expiring, counted=counted)
        if self._table is None and not self._is_large:
            rows.bodies = [body for _, bodies in self._kept for body in bodies[0].to_pylist()]
            rows.ready = [
                (one.lane + suffix, value)
                for one in lanes
                for suffix, value in zip(_cut(one.suffixes), _each(one.values, one.rows), strict=True)
            ]
        else:
            self._write_bodies()
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
        table = TableFile(str(self._path) + READY, compress=self._compress)
        some: list[Lane] = []
        rows = 0
        for one in (part for lane in lanes for part in lane.parts()):
            # The parts of a lane are no neighbours in what is put: no two beginnings are the same.
            if some and (rows + one.rows > READY_AT_ONCE or some[-1].lane == one.lane):
                table.put(self._ready_lines(some))
                some, rows = [], 0
            some.append(one)
            rows += one.rows
        table.put(self._ready_lines(some))
        table.finish()

    def _ready_lines(self, lanes: Sequence[Lane]) -> Lines:
        prefixes, rows = [self._prefix + one.lane for one in lanes], [one.rows for one in lanes]
        suffixes = table_of(b"".join(one.suffixes for one in lanes), SUFFIX_BYTES)
        given = [value for one in lanes for value in one.values]
        if len(set(given)) == 1:
            return Lines(prefixes, rows, suffixes, given[0])
        import numpy as np

        of_rows = np.repeat(np.arange(len(given)), [count for one in lanes for count in one.value_rows])
        return Lines(prefixes, rows, suffixes, [arrow().array(given, arrow().large_binary()).take(of_rows)])

    def _lanes(self) -> Iterator[Lane]:
        """In order, and their rows too."""
        values: dict[bytes, list[bytes]] = {}
        for lane, value in self._ready:
            values.setdefault(lane, []).append(value)
        for lane in sorted(values):
            if len(values[lane]) == 1 and self._ordered:
                value = values[lane][0]
                pieces = self._ready[lane, value]
                yield Lane(lane, pieces[0] if len(pieces) == 1 else b"".join(pieces), [value])
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


def _cut(suffixes: Piece) -> list[bytes]:
    return [bytes(suffixes[at : at + SUFFIX_BYTES]) for at in range(0, len(suffixes), SUFFIX_BYTES)]
