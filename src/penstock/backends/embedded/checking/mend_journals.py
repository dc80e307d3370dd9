"""Mending journals: bad frames go to quarantine, and a placeholder names what is missing.

A journal stays without gaps, and cursors stay valid: where events were lost, events of kind `repaired`
stand for them, which concern no message and say why.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.findings import Finding
from penstock.backends.embedded.checking.journals import Walk
from penstock.backends.embedded.checking.recount import MISSING_AT_END, stored_counters
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.quarantine import keep
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import MARK, packed
from penstock.backends.embedded.worlds import World, decode_world
from penstock.codec.entry import decode_entries, decode_entry_head, encode_entries
from penstock.codec.frame import decode_head, decode_runs, encode_frame, encode_run
from penstock.errors import StorageCorrupt
from penstock.event import HOLE, NOBODY, Entry, Kind

#: Events of one placeholder frame.
EVENTS_PER_FRAME = 10_000
#: The kind of an entry that stands for one which was lost.
LOST_ENTRY = "_penstock.lost"


def mend_journal(engine: Engine, finding: Finding, worlds: dict[int, str]) -> None:
    """One finding about a frame of a queue or a world, looked at again in the live store."""
    with engine.lock, engine.transaction() as txn:
        world = worlds.get(finding.number)
        q = engine.by_qid.get(finding.number)
        if world is not None:
            _WorldFrames(txn, world, finding).mend()
        elif q is not None:
            try:
                _load(engine, q)
            except StorageCorrupt:
                return  # A frame that was put in its place just now is beyond the counters: those come first.
            _QueueFrames(txn, q, finding).mend()
    if q is not None:
        with engine.lock:
            q.unload()


def _load(engine: Engine, q: QueueState) -> None:
    """A frame far off makes a queue unusable; here it is the one to be mended."""
    view = View(engine.kv, engine)
    try:
        q.load(engine, stored_counters(view, q))
    finally:
        view.release()


class _Frames:
    """What queues' and worlds' journals have in common."""

    def __init__(self, txn: Transaction, name: str, number: int, finding: Finding) -> None:
        self._txn = txn
        self._name = name
        self._number = number
        self._finding = finding
        self._engine = txn.engine

    def mend(self) -> None:
        finding = self._finding
        if finding.kind == "frame_missing":
            self._stand_in(*finding.span)
            return
        raw = self._read(finding.key)
        if raw is None:
            finding.action = "found in order"
            return
        right = self._right_key(raw)
        if right == finding.key:
            # Another has its place, or it reaches into another's.
            right = None if finding.kind == "frame_misplaced" else right
        if right is not None and right != finding.key and self._read(right) is None:
            self._txn.changed = True
            self._txn.put(right, raw, self._engine.journal)
            self._txn.delete(finding.key, self._engine.journal)
            finding.action = "moved to its place"
        elif right is None or right != finding.key:
            keep(self._txn, self._name, "journal", finding.key, raw, finding.what)
            finding.action = "moved to quarantine"

    def _read(self, key: bytes) -> bytes | None:
        return self._engine.kv.get(key, self._engine.journal)

    def _right_key(self, raw: bytes) -> bytes | None:
        """Where a frame belongs; None if it cannot be read."""
        raise NotImplementedError

    def _stand_in(self, first: int, last: int) -> None:
        raise NotImplementedError

    def _still_missing(self, first: int, last: int) -> bool:
        """No frame has come, or been there all along, that reaches into the gap."""
        lower, upper = keys.journal(self._number, first), keys.u32(self._number + 1)
        for _, raw in self._engine.kv.scan(self._engine.journal, lower, upper, limit=1):
            return self._first_seq(raw) > last
        return True

    def _first_seq(self, raw: bytes) -> int:
        raise NotImplementedError

    def _before(self, first: int) -> bytes | None:
        lower, upper = keys.u32(self._number), keys.journal(self._number, first)
        rows = self._engine.kv.scan(self._engine.journal, lower, upper, reverse=True, limit=1)
        return next((raw for _, raw in rows), None)


def _spans(first: int, last: int) -> Iterator[tuple[int, int]]:
    for at in range(first, last + 1, EVENTS_PER_FRAME):
        yield at, min(last, at + EVENTS_PER_FRAME - 1)


class _QueueFrames(_Frames):
    def __init__(self, txn: Transaction, q: QueueState, finding: Finding) -> None:
        super().__init__(txn, q.name, q.qid, finding)
        self._q = q

    def _right_key(self, raw: bytes) -> bytes | None:
        try:
            for _ in decode_runs(raw):
                pass
            return keys.journal(self._number, decode_head(raw).last_seq)
        except StorageCorrupt:
            return None

    def _first_seq(self, raw: bytes) -> int:
        return decode_head(raw).first_seq

    def _stand_in(self, first: int, last: int) -> None:
        txn, q, c = self._txn, self._q, self._q.counters
        first = max(first, c.base_seq + 1)
        if first > last or last >= c.next_seq or not self._still_missing(first, last):
            self._finding.action = "found in order"
            return
        txn.mark(q)
        if last - first >= MISSING_AT_END:
            self._finding.action = "left: too many events are missing"
            if last == c.next_seq - 1:  # The counter is what is wrong.
                c.next_seq = first
                self._finding.action = "counter set back"
            return
        before = self._before(first)
        head = decode_head(before) if before is not None else None
        at_end = last == c.next_seq - 1
        counts = c.counts if at_end else list(head.counts) if head is not None else c.base_counts
        at_ns = head.at_ns if head is not None else txn.now_ns
        for start, end in _spans(first, last):
            ids = [NOBODY] * (end - start + 1)
            run = encode_run(Kind.REPAIRED, at_ns, ids, reason="lost: its frame was damaged", extra=HOLE)
            frame = encode_frame(start, len(ids), at_ns, counts, [run])
            txn.put(keys.journal(q.qid, end), frame, self._engine.journal)
        self._finding.action = "placeholder put in its place"


class _WorldFrames(_Frames):
    def __init__(self, txn: Transaction, world: str, finding: Finding) -> None:
        super().__init__(txn, world, finding.number, finding)
        raw = txn.engine.kv.get(keys.meta(Meta.WORLD, world.encode()), txn.engine.meta)
        self._row = decode_world(raw) if raw is not None else World(finding.number)

    def _right_key(self, raw: bytes) -> bytes | None:
        try:
            entries = list(decode_entries(raw, self._name))
        except StorageCorrupt:
            return None
        return keys.journal(self._number, entries[-1].seq) if entries else None

    def _first_seq(self, raw: bytes) -> int:
        return decode_entry_head(raw)[1]

    def _stand_in(self, first: int, last: int) -> None:
        txn, row = self._txn, self._row
        first = max(first, row.base_seq + 1)
        if first > last or last >= row.next_seq or not self._still_missing(first, last):
            self._finding.action = "found in order"
            return
        txn.changed = True
        if last - first >= MISSING_AT_END:
            self._finding.action = "left: too many entries are missing"
            if last == row.next_seq - 1:
                row.next_seq = first
                txn.put(keys.meta(Meta.WORLD, self._name.encode()), packed(row), self._engine.meta)
                self._finding.action = "counter set back"
            return
        before = self._before(first)
        vectors = decode_entry_head(before)[3] if before is not None else row.base_vectors
        at_ns = decode_entry_head(before)[2] if before is not None else txn.now_ns
        for start, end in _spans(first, last):
            seqs = range(start, end + 1)
            ids = [self._engine.ids.one(txn.now_ns) for _ in seqs]
            entries = [Entry(LOST_ENTRY, labels=["its frame was damaged"]) for _ in seqs]
            raw = encode_entries(entries, ids, start, at_ns, vectors)
            txn.put(keys.journal(self._number, end), raw, self._engine.journal)
            for seq, raw_id in zip(seqs, ids, strict=True):
                txn.put(raw_id, MARK + keys.u32(self._number) + keys.u64(seq), self._engine.entries)
        self._finding.action = "placeholder put in its place"


def mend_world_counters(engine: Engine, finding: Finding) -> None:
    """A world's numbers, from its frames."""
    with engine.lock, engine.transaction() as txn:
        key = keys.meta(Meta.WORLD, finding.queue.encode())
        raw = engine.kv.get(key, engine.meta)
        if raw is None:
            return
        row = decode_world(raw)
        view = View(engine.kv, engine)
        try:
            walk = Walk(view, finding.queue, row.number, row.base_seq, None)
            row.vectors = row.base_vectors
            for entries, _ in walk.entries():
                row.vectors += sum(entry.vector is not None for entry in entries)
            row.next_seq, row.bytes = max(walk.seq, row.base_seq) + 1, walk.size_bytes
        finally:
            view.release()
        txn.changed = True
        txn.put(key, packed(row), engine.meta)
        finding.action = "counted anew"
