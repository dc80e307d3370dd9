"""Journals: frames without gaps and with good checksums, counters that fit, entries found by their ids."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.findings import Finding, Findings
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import MARK
from penstock.backends.embedded.worlds import World
from penstock.codec.entry import decode_entries, decode_entry_head
from penstock.codec.frame import FrameHead, Run, decode_head, decode_runs
from penstock.errors import StorageCorrupt
from penstock.event import Entry
from penstock.kv.base import Row
from penstock.message import parse_id


class Walk:
    """The frames of one journal in order; what is wrong with them goes to `findings`, if there are any."""

    def __init__(self, view: View, name: str, number: int, base_seq: int, findings: Findings | None) -> None:
        self._view = view
        self._name = name
        self._number = number
        self._findings = findings
        self.seq = base_seq
        self.size_bytes = 0
        self.head: FrameHead | None = None

    def runs(self) -> Iterator[list[Run] | None]:
        """A queue's events by frame; None where some are missing."""
        for key, raw in self._frames():
            try:
                head, runs = decode_head(raw), list(decode_runs(raw))
            except StorageCorrupt as error:
                self._damaged(key, error)
                continue
            if self._out_of_place(key, head.first_seq, head.last_seq):
                continue
            if self._gap_before(head.first_seq):
                yield None
            self.seq, self.head = head.last_seq, head
            yield runs

    def entries(self) -> Iterator[tuple[list[Entry], int]]:
        """A world's entries by frame, and the vectors that the frame counts up to it."""
        for key, raw in self._frames():
            try:
                entries = list(decode_entries(raw, self._name))
                vectors = decode_entry_head(raw)[3]
                if not entries:
                    raise StorageCorrupt(f"frame of world {self._name!r} has no entries")
            except StorageCorrupt as error:
                self._damaged(key, error)
                continue
            if self._out_of_place(key, entries[0].seq, entries[-1].seq):
                continue
            self._gap_before(entries[0].seq)
            self.seq = entries[-1].seq
            yield entries, vectors

    def end(self, last_seq: int) -> bool:
        """Whether the journal ends before the last event that was recorded; says so."""
        return self._gap_before(last_seq + 1)

    def _frames(self) -> Iterator[Row]:
        for key, raw in self._view.rows("journal", keys.u32(self._number), keys.u32(self._number + 1)):
            self.size_bytes += len(raw)
            yield key, raw

    def _damaged(self, key: bytes, error: StorageCorrupt) -> None:
        # What it had is missing before the next good frame: only there is it known how much.
        self._say("frame_damaged", str(error), key, (self.seq + 1, int.from_bytes(key[4:], "big")))

    def _out_of_place(self, key: bytes, first: int, last: int) -> bool:
        if last == int.from_bytes(key[4:], "big") and first > self.seq:
            return False
        what = f"a frame of events {first} to {last} is at {int.from_bytes(key[4:], 'big')}, after {self.seq}"
        self._say("frame_misplaced", what, key, (first, last))
        return True

    def _gap_before(self, first: int) -> bool:
        if first <= self.seq + 1:
            return False
        span = (self.seq + 1, first - 1)
        self._say("frame_missing", f"events {span[0]} to {span[1]} are missing", b"", span)
        return True

    def _say(self, kind: str, what: str, key: bytes, span: tuple[int, int]) -> None:
        if self._findings is not None:
            where = f"frame at {int.from_bytes(key[4:], 'big')}" if key else f"events {span[0]} to {span[1]}"
            self._findings.add(
                Finding(kind, what, self._name, where, self._number, b"", "journal", key, span)
            )


def check_numbers(q: QueueState, walk: Walk, findings: Findings) -> None:
    """A queue's counters against its journal, once walked to the end."""
    c = q.counters
    counts = walk.head.counts if walk.head is not None else tuple(c.base_counts)
    waiting = (counts[0] + counts[1], *counts[2:])
    stored = (c.counts[0] + c.counts[1], *c.counts[2:])
    if waiting != stored:
        what = f"the journal says {waiting} waiting, leased, done, dead; the counters say {stored}"
        _say(q, what, findings)
    if walk.size_bytes != c.journal_bytes:
        _say(q, f"the journal has {walk.size_bytes} bytes; the counter says {c.journal_bytes}", findings)


def _say(q: QueueState, what: str, findings: Findings) -> None:
    findings.add(Finding("counters_differ", what, q.name, "counters", q.qid))


def check_world(view: View, name: str, row: World, findings: Findings) -> int:
    """A world's frames and numbers; how many entries it has."""
    walk = Walk(view, name, row.number, row.base_seq, findings)
    vectors, count = row.base_vectors, 0
    for entries, _ in walk.entries():
        vectors += sum(entry.vector is not None for entry in entries)
        count += len(entries)
    walk.end(row.next_seq - 1)
    if (walk.seq, walk.size_bytes, vectors) != (row.next_seq - 1, row.bytes, row.vectors):
        what = (
            f"seq, bytes and vectors are {walk.seq}, {walk.size_bytes}, {vectors}; "
            f"the world says {row.next_seq - 1}, {row.bytes}, {row.vectors}"
        )
        findings.add(Finding("world_counters", what, name, "counters", row.number))
    return count


def entry_rows(view: View, worlds: dict[str, World]) -> Iterator[Row]:
    """The rows that ids of entries must be found by."""
    for name, row in worlds.items():
        for entries, _ in Walk(view, name, row.number, row.base_seq, None).entries():
            for entry in entries:
                yield parse_id(entry.id or ""), MARK + keys.u32(row.number) + keys.u64(entry.seq)
