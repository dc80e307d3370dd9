"""What `check` answers: a report of one pass, or of the passes of a repair."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.backends.base import CheckReport, Progress
from penstock.backends.embedded import quarantine
from penstock.backends.embedded.admin import Admin
from penstock.backends.embedded.checking.checker import check_once
from penstock.backends.embedded.checking.findings import Finding, Findings
from penstock.backends.embedded.checking.reindex import Reindex, is_unfinished
from penstock.backends.embedded.checking.repair import Repair
from penstock.backends.embedded.checking.salvage import TRUTH
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.loads import Loads
from penstock.backends.embedded.worlds import SYSTEM_WORLD, Worlds
from penstock.event import Entry


class Checkup:
    """Check and repair of one store."""

    def __init__(self, engine: Engine, worlds: Worlds, admin: Admin, loads: Loads) -> None:
        self._engine = engine
        self._worlds = worlds
        self._admin = admin
        self._loads = loads

    def check(self, *, repair: bool, progress: Progress | None) -> CheckReport:
        if repair:
            self._loads.go_on()
            return Repair(self._engine, self._worlds, self._admin, self._loads).run(progress)
        findings = Findings()
        checker = check_once(self._engine, self._loads, findings, progress)
        return CheckReport(
            [finding.problem for finding in findings.kept],
            checker.queues,
            checker.messages,
            checker.events,
            dict(findings.counts),
            sum(findings.counts.values()),
        )

    def drop(self, ids: Sequence[str]) -> int:
        """Forget items of the quarantine; the system journal keeps what they were."""
        with self._engine.lock, self._engine.transaction() as txn:
            dropped = quarantine.drop(txn, ids)
            entries = [Entry("quarantine_dropped", msgspec.json.encode(item), [item.id]) for item in dropped]
            self._worlds.append_in(txn, SYSTEM_WORLD, entries)
            txn.answered(len(dropped))
        return len(dropped)

    def reindex(self, progress: Progress | None) -> CheckReport:
        """Not over parts that cannot be read: the old indexes may be all that tells of what is in them."""
        findings = self._unreadable()
        if findings.kept:
            counts = dict(findings.counts)
            return CheckReport(
                [finding.problem for finding in findings.kept], 0, 0, 0, counts, sum(counts.values())
            )
        return Reindex(self._engine, self._worlds, self._admin).run(progress)

    def _unreadable(self) -> Findings:
        """The unreadable parts of everything that indexes are made of."""
        findings = Findings()
        with self._engine.lock:
            self._engine.check_usable()
            snapshot = self._engine.kv.snapshot()
        view = View(snapshot, self._engine)
        view.on_hole = lambda hole: findings.add(
            Finding(
                "unreadable",
                hole.what,
                where=hole.space,
                action="left as it is, and nothing was rebuilt: run check with repair first",
            )
        )
        try:
            for space in TRUTH:
                for _ in view.rows(space, b"", None):
                    pass
        finally:
            view.release()
            snapshot.release()
        return findings

    def finish_reindex(self) -> None:
        """At opening: take up a reindex that was cut short."""
        if is_unfinished(self._engine):
            Reindex(self._engine, self._worlds, self._admin).run(None)
