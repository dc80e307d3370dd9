"""Repair: passes of check, each followed by mending what it found, until a pass finds nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from penstock.backends.base import CheckReport, Progress
from penstock.backends.embedded.admin import Admin
from penstock.backends.embedded.checking.checker import Checker, check_once
from penstock.backends.embedded.checking.findings import LISTED, LOST, Finding, Findings
from penstock.backends.embedded.checking.mend_catalogue import CatalogueMender
from penstock.backends.embedded.checking.mend_indexes import mend_counters, mend_index
from penstock.backends.embedded.checking.mend_journals import mend_journal, mend_world_counters
from penstock.backends.embedded.checking.mend_messages import settle_all
from penstock.backends.embedded.checking.reindex import DERIVED, Reindex
from penstock.backends.embedded.checking.salvage import Salvage
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.loads import Loads
from penstock.backends.embedded.worlds import SYSTEM_WORLD, World, Worlds
from penstock.errors import StorageCorrupt
from penstock.event import Entry

#: Findings that one pass keeps for mending; those beyond are found again by the next.
FOUND_AT_ONCE = 50_000
PASSES = 200
#: How often the same finding is mended before it is left as it is, and what builds on it goes on without.
TRIES = 3

#: In this order: each kind is mended only when nothing is left that it builds on. So every mending can rely
#: on the rows above it, and what was only a consequence is gone by the next pass.
_STAGES = (
    frozenset(("unreadable",)),
    frozenset(
        (
            "queue_damaged",
            "world_damaged",
            "orphan_rows",
            "cursor_damaged",
            "row_damaged",
            "load_cut_off",
            "row_unknown",
            "key_malformed",
            "next_number",
        )
    ),
    frozenset(("counters_damaged",)),
    frozenset(("frame_damaged", "frame_misplaced")),
    frozenset(("frame_missing",)),
    frozenset(("world_counters",)),
    frozenset(("throttle_damaged", "throttle_missing")),  # Made anew from a journal that can be read by then.
)
_UNREADABLE, _CATALOGUE, _DAMAGED_COUNTERS, _THROTTLES = 0, 1, 2, 6
_COUNTERS = "counters_differ"


class Repair:
    """One repair of a store. The lock is held for a bounded piece of work at a time."""

    def __init__(self, engine: Engine, worlds: Worlds, admin: Admin, loads: Loads) -> None:
        self._engine = engine
        self._loads = loads
        self._worlds = worlds
        self._admin = admin
        self._found: dict[tuple[object, ...], Finding] = {}
        self._counts: Counter[str] = Counter()
        self._tries: Counter[tuple[object, ...]] = Counter()

    def run(self, progress: Progress | None) -> CheckReport:
        self._engine.next_number = None
        passes = 0
        while True:
            findings = Findings(FOUND_AT_ONCE)
            checker = check_once(self._engine, self._loads, findings, progress)
            self._note(findings)
            hopeful = [
                finding
                for finding in findings.kept
                if finding.kind != LOST and self._tries[_identity(finding)] < TRIES
            ]
            if not hopeful or passes == PASSES:
                return self._report(checker, findings)
            passes += 1
            self._mend(hopeful)

    def _note(self, findings: Findings) -> None:
        for kind, count in findings.counts.items():
            self._counts[kind] = max(self._counts[kind], count)
        for at, finding in enumerate(findings.kept):
            known = self._found.get(_identity(finding))
            if known is not None:
                findings.kept[at] = known
            elif len(self._found) < LISTED:
                self._found[_identity(finding)] = finding

    def _mend(self, found: list[Finding]) -> None:
        engine = self._engine
        for stage, kinds in enumerate(_STAGES):
            chosen = [finding for finding in found if finding.kind in kinds]
            if chosen:
                self._tries.update(map(_identity, chosen))
                self._mend_stage(stage, chosen)
                break
        else:
            self._mend_rows(found)
        with engine.lock:
            # Whatever memory had of the rows that were mended is read anew.
            self._admin.load()
            engine.buckets.forget()
            engine.load_due_hints()
            engine.next_number = None

    def _mend_stage(self, stage: int, found: list[Finding]) -> None:
        engine = self._engine
        if stage == _UNREADABLE:
            self._salvage(found)
            return
        if stage == _DAMAGED_COUNTERS:
            for number, group in _by_number(found):
                mend_counters(engine, number, group)
            return
        mender = CatalogueMender(engine, self._worlds)
        with engine.lock:
            worlds = {row.number: name for name, row in self._world_rows()}
        # Worlds first: among them may be the one that has the names of the queues.
        for finding in sorted(
            found, key=lambda one: one.space != "journal" or not mender.is_world(one.number)
        ):
            if stage in (_CATALOGUE, _THROTTLES):
                mender.mend(finding)
            elif finding.kind == "world_counters":
                mend_world_counters(engine, finding)
            else:
                mend_journal(engine, finding, worlds)

    def _world_rows(self) -> list[tuple[str, World]]:
        try:
            return list(self._worlds.all())
        except StorageCorrupt:
            return []

    def _salvage(self, found: list[Finding]) -> None:
        """Spaces with unreadable parts are written anew, or rebuilt if they are derived."""
        engine, spaces = self._engine, {finding.space for finding in found}
        with engine.lock:
            worlds = {name: row.number for name, row in self._world_rows()}
            Salvage(engine, worlds).run(spaces)
            self._admin.load()
            if spaces & set(DERIVED):
                Reindex(engine, self._worlds, self._admin).run(None)
        for finding in found:
            finding.action = "rebuilt" if finding.space in DERIVED else "written anew without it"

    def _mend_rows(self, found: list[Finding]) -> None:
        """Messages and index rows; counters of queues in which nothing else was found."""
        engine = self._engine
        messages = [finding for finding in found if finding.raw_id]
        for number, group in _by_number(messages):
            settle_all(engine, number, group)
        rows = [finding for finding in found if not finding.raw_id and finding.kind != _COUNTERS]
        if rows:
            with engine.lock, engine.transaction() as txn:
                for finding in rows:
                    mend_index(txn, finding)
        busy = {finding.number for finding in messages}
        counters = [finding for finding in found if finding.kind == _COUNTERS and finding.number not in busy]
        self._tries.update(map(_identity, (*messages, *rows, *counters)))
        for number, group in _by_number(counters):
            mend_counters(engine, number, group)

    # -- what was done ------------------------------------------------------------------------------

    def _report(self, checker: Checker, last: Findings) -> CheckReport:
        remaining = sum(last.counts.values()) - last.counts[LOST]
        if remaining == 0:
            self._settle_losses(last)
        left = {_identity(finding) for finding in last.kept}
        for identity, finding in self._found.items():
            if identity in left:
                finding.action = "left as it is"
            elif not finding.action:
                finding.action = "gone with what caused it"
        remaining = sum(last.counts.values())
        if self._counts and not self._engine.catalogue_lost:
            self._record(remaining)
        problems = [finding.problem for finding in self._found.values()]
        return CheckReport(
            problems,
            checker.queues,
            checker.messages,
            checker.events,
            dict(self._counts),
            remaining,
        )

    def _settle_losses(self, last: Findings) -> None:
        """Everything else is mended: what was lost is no news from now on."""
        engine = self._engine
        with engine.lock:
            engine.kv.forget_losses()
            engine.catalogue_lost = False
        for finding in [finding for finding in last.kept if finding.kind == LOST]:
            last.kept.remove(finding)
            finding.action = "what other rows tell of it was brought back; what is left of it is in lost"
        del last.counts[LOST]

    def _record(self, remaining: int) -> None:
        """Sum it up in the system journal."""
        body = msgspec.json.encode({"found": dict(self._counts), "remaining": remaining})
        queues = sorted({finding.queue for finding in self._found.values() if finding.queue})[:100]
        with self._engine.lock, self._engine.transaction() as txn:
            self._worlds.append_in(txn, SYSTEM_WORLD, [Entry("repaired", body, queues)])


def _identity(finding: Finding) -> tuple[object, ...]:
    what = "" if finding.kind == _COUNTERS else finding.what
    return finding.kind, finding.number, finding.raw_id, finding.space, finding.key, what


def _by_number(found: Iterable[Finding]) -> Iterable[tuple[int, list[Finding]]]:
    groups: dict[int, list[Finding]] = {}
    for finding in found:
        groups.setdefault(finding.number, []).append(finding)
    return groups.items()
