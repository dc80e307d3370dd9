"""One pass of `check` over a store at one moment: every invariant, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.backends.base import Progress
from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.catalogue import Catalogue
from penstock.backends.embedded.checking.findings import LOST, Finding, Findings
from penstock.backends.embedded.checking.journals import check_world, entry_rows
from penstock.backends.embedded.checking.ledger import Difference, Ledger
from penstock.backends.embedded.checking.meter import Meter
from penstock.backends.embedded.checking.orphans import (
    NUMBERED,
    Numbers,
    check_cursors,
    check_due_hints,
    dedup_due_rows,
)
from penstock.backends.embedded.checking.queues import QueueCheck, expected_rows
from penstock.backends.embedded.checking.throttles import check_throttles
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.keys import Due
from penstock.backends.embedded.load_rows import load_key
from penstock.backends.embedded.loads import Loads
from penstock.kv.base import Row
from penstock.kv.damage import Hole
from penstock.message import format_id

_VERBS = ("missing", "differs", "stray")


def check_once(engine: Engine, loads: Loads, findings: Findings, progress: Progress | None) -> Checker:
    """One pass over a snapshot: the lock is held only while that is taken."""
    with engine.lock:
        engine.check_usable()
        snapshot = engine.kv.snapshot()
        next_due_ns = {kind: engine.first_due_ns(kind) for kind in Due}
    view = View(snapshot, engine)
    try:
        checker = Checker(view, next_due_ns, findings, progress)
        checker.run()
        for number, why in loads.cut_off():
            findings.row(
                "load_cut_off", f"a bulk write cannot go on: {why}", "", number, "meta", load_key(number)
            )
        for loss in engine.kv.losses():
            findings.add_first(Finding(LOST, loss.what, where=loss.space, space=loss.space))
        return checker
    finally:
        view.release()
        snapshot.release()


class Checker:
    """Reads everything once; what is wrong goes to `findings`."""

    def __init__(
        self, view: View, next_due_ns: dict[Due, int], findings: Findings, progress: Progress | None
    ) -> None:
        self._view = view
        self._next_due_ns = next_due_ns
        self._findings = findings
        self._meter = Meter(progress)
        #: By space and start: parts are read several times.
        self._holes: dict[tuple[str, bytes], Hole] = {}
        self._odd: set[tuple[str, bytes]] = set()
        view.on_hole, view.on_malformed = self._hole, self._malformed
        self._catalogue = Catalogue(view, findings)
        self._numbers = Numbers(view, self._catalogue, findings)
        self.queues = len(self._catalogue.queues)
        self.messages = self.events = 0

    def run(self) -> None:
        due, held = Ledger(), Ledger()
        for q in sorted(self._catalogue.queues.values(), key=lambda q: q.name):
            check = QueueCheck(self._view, q, self._findings, self._meter)
            check.run({"due": due, "held": held})
            self.messages += check.messages
            self.events += check.events
        for key, value in dedup_due_rows(self._view, self._catalogue, self._findings):
            due.add(key, value)
        self._compare("due", due)
        self._compare("held", held)
        check_due_hints(self._view, self._next_due_ns, self._findings)
        check_cursors(self._catalogue, self._findings)
        self._check_worlds()
        check_throttles(self._view, self._catalogue, self._findings)
        self._numbers.check()
        for hole in self._holes.values():
            self._say_hole(hole)

    def _compare(self, space: str, ledger: Ledger) -> None:
        """An index that is not queue by queue, against what the queues' messages make one expect."""
        total = sum(sum(q.counters.counts) for q in self._catalogue.queues.values())
        for key, value in self._meter.over(self._owned(space), f"{space} rows", total):
            ledger.add(key, value)
        for difference in ledger.differences(lambda: self._expected(space), lambda: self._owned(space)):
            self._name(space, difference)

    def _owned(self, space: str) -> Iterator[Row]:
        """Rows of queues that there are; the others are looked at as orphans."""
        for row in self._view.rows(space, b"", None):
            if self._numbers.is_queue(space, row[0], _number(space, row[0])):
                yield row

    def _expected(self, space: str) -> Iterator[Row]:
        for q in self._catalogue.queues.values():
            yield from expected_rows(self._view, q, space)
        if space == "due":
            yield from dedup_due_rows(self._view, self._catalogue, None)

    def _name(self, space: str, difference: Difference) -> None:
        key, expected, found = difference
        raw_id = key[-16:]
        if raw_id in self._findings.unplaced:
            return
        verb = _VERBS[2 if expected is None else 0 if found is None else 1]
        number = _number(space, key)
        label = f"due row ({Due(key[0]).name.lower()})" if space == "due" else "held row"
        what = {
            "missing": f"{label} is missing",
            "differs": f"{label} has another value",
            "stray": f"{label} that nothing owns",
        }[verb]
        if space == "due" and key[0] == Due.DEDUP:
            raw_id = b""
        self._findings.row(
            f"{space}_{verb}", what, self._catalogue.name_of(number), number, space, key, raw_id
        )

    def _check_worlds(self) -> None:
        worlds, ledger, total = self._catalogue.worlds, Ledger(), 0
        for name, row in sorted(worlds.items()):
            total += check_world(self._view, name, row, self._findings)
        self.events += total
        rows = self._meter.over(entry_rows(self._view, worlds), "entries of worlds", total)
        for key, value in rows:
            ledger.add(key, value)
        for key, value in self._meter.over(self._view.rows("entries", b"", None), "ids of entries", total):
            ledger.add(key, value)
        for key, expected, found in ledger.differences(
            lambda: entry_rows(self._view, worlds), lambda: self._view.rows("entries", b"", None)
        ):
            verb = _VERBS[2 if expected is None else 0 if found is None else 1]
            what = {
                "missing": "an entry is not found by its id",
                "differs": "an entry's id leads elsewhere",
                "stray": "an id leads to no entry",
            }[verb]
            self._findings.add(
                Finding(
                    f"entry_{verb}",
                    what,
                    where=f"entry {format_id(key)}",
                    space="entries",
                    key=key,
                    value=expected or b"",
                )
            )

    # -- what cannot be read ------------------------------------------------------------------------

    def _hole(self, hole: Hole) -> None:
        self._holes.setdefault((hole.space, hole.start), hole)

    def _say_hole(self, hole: Hole) -> None:
        number = int.from_bytes(hole.start[:4], "big") if hole.space in NUMBERED else 0
        queue = self._catalogue.name_of(number) if number else ""
        self._findings.add_first(
            Finding("unreadable", hole.what, queue, hole.space, number, b"", hole.space, hole.start)
        )

    def _malformed(self, space: str, row: Row) -> None:
        if (space, row[0]) not in self._odd:
            self._odd.add((space, row[0]))
            what = f"a row of {space} has a key that cannot be"
            number = int.from_bytes(row[0][:4], "big")
            self._findings.row("key_malformed", what, "", number, space, row[0])


def _number(space: str, key: bytes) -> int:
    return keys.due_number(key) if space == "due" else int.from_bytes(key[:4], "big")
