"""Rows without an owner, and what is not any one queue's: dedup rows, due hints, cursors, numbers."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.catalogue import Catalogue
from penstock.backends.embedded.checking.findings import Finding, Findings
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.keys import Due, Meta
from penstock.backends.embedded.rows import DEDUP_ROW, MARK, ROW_VERSION
from penstock.kv.base import Row

#: Spaces whose keys start with the number of a queue.
NUMBERED = ("messages", "ready", "state", "dedup", "held", "journal")
_OF_QUEUES = (Meta.COUNTERS, Meta.CURSOR, Meta.LANE_HINT)


class Numbers:
    """Rows of a number that no queue has, and that is not being dropped, are orphans."""

    def __init__(self, view: View, catalogue: Catalogue, findings: Findings) -> None:
        self._view = view
        self._catalogue = catalogue
        self._findings = findings
        self._said: set[tuple[str, int]] = set()
        self._worlds = {world.number for world in catalogue.worlds.values()}

    def is_queue(self, space: str, key: bytes, number: int) -> bool:
        """Whether a row is of a queue that there is; if it is of nothing, that is said once."""
        if number in self._catalogue.queues:
            return True
        if number not in self._catalogue.dropping:
            self._say(space, number, key)
        return False

    def check(self) -> None:
        known = {*self._catalogue.queues, *self._catalogue.dropping}
        for space in NUMBERED:
            numbered = known | self._worlds if space == "journal" else known
            at = b"\0\0\0\0"
            while (row := next(self._view.rows(space, at, None), None)) is not None:
                number = int.from_bytes(row[0][:4], "big")
                if number not in numbered:
                    self._say(space, number, row[0])
                if number == 0xFFFFFFFF:
                    break
                at = keys.u32(number + 1)
        for kind in _OF_QUEUES:
            prefix = keys.meta(kind)
            for key, _ in self._view.rows("meta", prefix, keys.after_prefix(prefix)):
                number = int.from_bytes(key[1:5], "big")
                if number not in known:
                    self._say(kind.name.lower(), number, key)

    def _say(self, what: str, number: int, key: bytes) -> None:
        if (what, number) in self._said:
            return
        self._said.add((what, number))
        space = what if what in (*NUMBERED, "due") else "meta"
        self._findings.row("orphan_rows", f"{what} rows of no queue", str(number), number, space, key)


def dedup_due_rows(view: View, catalogue: Catalogue, findings: Findings | None) -> Iterator[Row]:
    """The due rows that end the dedup windows; damaged dedup rows are reported."""
    for key, raw in view.rows("dedup", b"", None):
        number = int.from_bytes(key[:4], "big")
        if number not in catalogue.queues:
            continue
        if len(raw) != DEDUP_ROW.size or raw[0] != ROW_VERSION:
            if findings is not None:
                what = "dedup row does not decode"
                findings.row("dedup_damaged", what, catalogue.name_of(number), number, "dedup", key)
            continue
        yield keys.due(Due.DEDUP, DEDUP_ROW.unpack(raw)[1], number, key[4:]), MARK


def check_due_hints(view: View, next_due_ns: dict[Due, int], findings: Findings) -> None:
    """No row of a kind is earlier than its hint: it would never be looked at."""
    for kind in set(Due) - {Due.LINE}:
        stored = view.get("meta", keys.meta(Meta.DUE_HINT, bytes((kind,))))
        hint_ns = max(next_due_ns.get(kind, 0), int.from_bytes(stored[1:9], "big") if stored else 0)
        first = next(view.rows("due", bytes((kind,)), bytes((kind + 1,))), None)
        if first is not None and keys.parse_due(first[0])[1] < hint_ns:
            what = f"due rows of {kind.name.lower()} before the hint"
            findings.add(Finding("due_hint", what, "", kind.name.lower(), int(kind), b"", "due", first[0]))


def check_cursors(catalogue: Catalogue, findings: Findings) -> None:
    """A cursor cannot have read what was never recorded."""
    for number, key, row in catalogue.cursors:
        q = catalogue.queues.get(number)
        if q is not None and not 0 <= row.position < q.counters.next_seq:
            what = f"cursor stands at {row.position}; the last event is {q.counters.next_seq - 1}"
            findings.row("cursor_ahead", what, q.name, number, "meta", key)
