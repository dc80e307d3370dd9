"""Reindex: everything that is derived, thrown away and built again from bodies, states and journals.

A row of `meta` says that it is under way. A store that is opened with that row in it finishes first.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator

from penstock.backends.base import CheckReport, Progress
from penstock.backends.embedded import keys
from penstock.backends.embedded.admin import Admin
from penstock.backends.embedded.checking.catalogue import Catalogue
from penstock.backends.embedded.checking.evidence import last_events, restored
from penstock.backends.embedded.checking.findings import Finding, Findings
from penstock.backends.embedded.checking.folding import Fold
from penstock.backends.embedded.checking.journals import entry_rows
from penstock.backends.embedded.checking.mend_indexes import mend_counters
from penstock.backends.embedded.checking.mend_journals import mend_world_counters
from penstock.backends.embedded.checking.meter import Meter
from penstock.backends.embedded.checking.orphans import dedup_due_rows
from penstock.backends.embedded.checking.recount import folded, parts_of
from penstock.backends.embedded.checking.standing import (
    body_of,
    index_rows,
    place,
    standings,
)
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import MARK, encode_state
from penstock.backends.embedded.worlds import SYSTEM_WORLD, Worlds
from penstock.errors import StorageError
from penstock.event import Entry
from penstock.kv.base import Row

log = logging.getLogger("penstock")

#: Spaces that hold nothing which is not derived.
DERIVED = ("ready", "due", "held", "entries")
_HINTS = (Meta.LANE_HINT, Meta.DUE_HINT)
#: Rows of one write, and messages whose journal is searched at a time.
ROWS_AT_ONCE = 5000
SpaceRow = tuple[str, bytes, bytes]

_MARKER = keys.meta(Meta.REINDEX)


def is_unfinished(engine: Engine) -> bool:
    """Whether a reindex was under way when the store was last used."""
    return engine.kv.get(_MARKER, engine.meta) is not None


class Reindex:
    """One reindex. It holds the lock from beginning to end: without its indexes a store answers nothing."""

    def __init__(self, engine: Engine, worlds: Worlds, admin: Admin) -> None:
        self._engine = engine
        self._worlds = worlds
        self._admin = admin
        self._findings = Findings()
        self._messages = self._rows = 0

    def run(self, progress: Progress | None) -> CheckReport:
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            try:
                self._begin()
                catalogue = self._rebuild(progress)
                self._end()
            except BaseException:
                # By an interrupt, say: from half an index nothing may be answered.
                engine.stop(StorageError("a reindex was cut short, and goes on when the store is opened"))
                raise
        problems = [finding.problem for finding in self._findings.kept]
        counts = self._findings.counts
        events = sum(q.counters.next_seq - 1 - q.counters.base_seq for q in catalogue.queues.values())
        return CheckReport(
            problems, len(catalogue.queues), self._messages, events, dict(counts), sum(counts.values())
        )

    def _rebuild(self, progress: Progress | None) -> Catalogue:
        engine = self._engine
        view = View(engine.kv, engine)
        try:
            catalogue = Catalogue(view, self._findings)
            meter = Meter(progress)
            for q in sorted(catalogue.queues.values(), key=lambda q: q.name):
                self._queue(view, q, meter)
            self._put_all(_in_space("due", dedup_due_rows(view, catalogue, None)))
            entries = meter.over(entry_rows(view, catalogue.worlds), "entries of worlds", 0)
            self._put_all(_in_space("entries", entries))
        finally:
            view.release()
        self._admin.load()
        engine.load_due_hints()
        for number in catalogue.queues:
            finding = Finding("counters_differ", "indexes rebuilt")
            mend_counters(engine, number, [finding])
        for name in catalogue.worlds:
            mend_world_counters(engine, Finding("world_counters", "", name))
        return catalogue

    def _begin(self) -> None:
        engine = self._engine
        log.warning("reindex: rebuilding the indexes of the store")
        batch = engine.kv.batch()
        batch.put(_MARKER, MARK, engine.meta)
        for kind in _HINTS:
            batch.delete_range(keys.meta(kind), keys.meta(kind + 1), engine.meta)
        engine.kv.write(batch, sync=True)
        engine.writes += 1
        for name in DERIVED:
            engine.kv.clear(name)
        engine.take_handles()

    def _end(self) -> None:
        engine = self._engine
        engine.kv.sync()
        with engine.lock, engine.transaction() as txn:
            txn.changed = True
            txn.delete(_MARKER, engine.meta)
            body = f'{{"messages": {self._messages}, "rows": {self._rows}}}'.encode()
            if not engine.catalogue_lost:  # Else the system journal's old rows may still be brought back.
                self._worlds.append_in(txn, SYSTEM_WORLD, [Entry("reindexed", body)])
        engine.kv.sync()
        log.warning("reindex: done, %d messages, %d rows", self._messages, self._rows)

    # -- queues -------------------------------------------------------------------------------------

    def _queue(self, view: View, q: QueueState, meter: Meter) -> None:
        parts = parts_of(view, q)
        for part in range(parts):
            fold = folded(view, q, part, parts)
            lacking: list[bytes] = []
            self._put_all(self._index_rows(view, q, fold, lacking, meter))
            for at in range(0, len(lacking), ROWS_AT_ONCE):
                self._put_all(self._restored(view, q, lacking[at : at + ROWS_AT_ONCE]))

    def _index_rows(
        self, view: View, q: QueueState, fold: Fold, lacking: list[bytes], meter: Meter
    ) -> Iterator[SpaceRow]:
        """Rows of the messages that can be placed; ids of those whose state row is lost go to `lacking`."""
        for standing in meter.over(standings(view, q), f"messages of {q.name}", sum(q.counters.counts)):
            if not fold.covers(standing.raw_id):
                continue
            self._messages += 1
            placed = place(q, standing, body_of(standing.body))
            gone = standing.body is None or fold.says_gone(standing)
            if placed is None or gone:
                kind = "body_missing" if standing.body is None else "body_left" if gone else "body_damaged"
                what = "left out of the indexes: run check with repair"
                self._findings.message(kind, what, q.name, q.qid, standing.raw_id)
            elif fold.says_state_row(standing):
                lacking.append(standing.raw_id)
            else:
                yield from index_rows(q, placed)

    def _restored(self, view: View, q: QueueState, ids: list[bytes]) -> Iterator[SpaceRow]:
        """State rows that the journal has and the store has not, with what follows from them."""
        evidence = last_events(view, q, ids)
        for raw_id in ids:
            body = body_of(view.get("messages", q.prefix + raw_id))
            last = evidence.last.get(raw_id)
            placed = None if body is None or last is None else restored(q, raw_id, body, last)
            if placed is not None:
                yield "state", keys.state(q.qid, placed.code, raw_id), encode_state(placed.row)
                yield from index_rows(q, placed)

    def _put_all(self, rows: Iterable[SpaceRow]) -> None:
        """In writes of a bounded size."""
        kv = self._engine.kv
        rows = iter(rows)
        while chunk := list(itertools.islice(rows, ROWS_AT_ONCE)):
            batch = kv.batch()
            for space, key, value in chunk:
                batch.put(key, value, kv.space(space))
            kv.write(batch)
            self._engine.writes += 1
            self._rows += len(chunk)


def _in_space(space: str, rows: Iterable[Row]) -> Iterator[SpaceRow]:
    for key, value in rows:
        yield space, key, value
