"""Checks a store against itself: records against rows and rows against records, counters, journals.

Each slice is one script, so that writers beside it are never taken for damage.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from penstock.backends.base import CheckReport, Problem, Progress
from penstock.backends.redis.engine import AT_ONCE, BETWEEN, Engine, Known
from penstock.backends.redis.journal import PAGE
from penstock.backends.redis.quarantine import Quarantine
from penstock.backends.redis.records import Counters, decode_counters, decode_events, decode_head
from penstock.backends.redis.recovering import Recovering
from penstock.backends.redis.repairing import Repairing
from penstock.backends.redis.runs import runs_if_told
from penstock.backends.redis.transferring import Transferring
from penstock.backends.redis.worlds import Worlds
from penstock.codec.body import decode_body
from penstock.errors import (
    BackendUnavailable,
    InvalidConfig,
    PenstockError,
    QueueNotFound,
    StorageCorrupt,
    StorageError,
)
from penstock.event import Event, Kind
from penstock.message import format_id, state_after

log = logging.getLogger("penstock")

#: Takes a problem: its kind, the queue, and where in it.
Note = Callable[[str, str, str], None]

#: Of very many problems only the first are listed.
LISTED = 1000

#: Keys that are gone through: records, bodies, indexes, dedup ids, heads of lanes, transfers.
PARTS = ("s", "m", "z", "d", "l", "g", "y", "t", "h", "a", "u", "p", "o", "v")
#: What a stream's group has pending, too.
STREAM_PARTS = (*PARTS, "e", "r")
#: What all lines of a queue have together.
SHARED_PARTS = frozenset(("m", "u", "p", "r"))

#: kind of problem -> severity, what is wrong
_KINDS: dict[str, tuple[str, str]] = {
    "record": ("damage", "state record does not decode"),
    "body missing": ("damage", "message has no body"),
    "body damaged": ("damage", "message body does not decode"),
    "body of nothing": ("orphan", "body has no state record"),
    "shares": ("index", "entry is not held by as many groups as is counted"),
    "not pending": ("index", "leased message is not pending in the stream, or for another consumer"),
    "pending of nothing": ("orphan", "pending entry is of no leased message"),
    "ready row missing": ("index", "ready message is not in the line"),
    "held row missing": ("index", "held body is not in the index"),
    "state row missing": ("index", "message is not in the index of its state"),
    "ttl row missing": ("index", "message is not in the index of expiries"),
    "buried row missing": ("index", "dead letter is not in the index of dead letters"),
    "dedup row missing": ("index", "dedup id is not in the index of windows"),
    "row of nothing": ("orphan", "index row leads to no message"),
    "row of another": ("orphan", "index row does not agree with its message"),
    "head of nothing": ("index", "lane has a head, but no messages"),
    "head": ("index", "head of a lane is another message"),
    "flow missing": ("index", "lane is never served"),
    "flow of a full key": ("index", "lane of a full key is served"),
    "counter": ("index", "counter is not what is counted"),
    "counters": ("index", "counters do not decode, or are missing"),
    "transfer": ("index", "a transfer to another queue was interrupted"),
    "transfer missing": ("index", "message is on its way, but nobody knows where to"),
    "transfer of nothing": ("orphan", "transfer has no messages"),
    "locked": ("index", "a repair has not ended"),
    "row": ("damage", "row of the catalogue does not decode"),
    "elsewhere": ("index", "stream has another name than is configured"),
    "journal gap": ("damage", "journal has a gap"),
    "journal frame": ("damage", "journal frame does not decode"),
    "journal counts": ("damage", "journal does not lead to what is counted"),
    "world": ("damage", "world is not what its record says"),
}


#: What is gone on with, or set right where it is configured.
_NOT_REPAIRED = frozenset(("transfer", "elsewhere"))


class _Trimmed(Exception):
    """Frames that were to be read are gone, as they may be."""


class Checking:
    """Checks and repairs one store."""

    def __init__(
        self, engine: Engine, quarantine: Quarantine, worlds: Worlds, transferring: Transferring
    ) -> None:
        self._engine = engine
        self._transferring = transferring
        self._worlds = worlds
        self._recovering = Recovering(engine, worlds, quarantine)
        self._repairing = Repairing(engine, quarantine)

    def check(self, repair: bool, progress: Progress | None) -> CheckReport:
        report = self._look(progress)
        if not repair or report.ok:
            return report
        actions = self._gone_on(report.problems)
        broken = sorted({p.queue for p in report.problems if p.queue and p.kind not in _NOT_REPAIRED})
        actions.update({name: self._repaired(name) for name in broken})
        problems = [
            Problem(p.what, p.queue, p.where, p.kind, p.severity, actions.get(p.queue, "left alone"))
            for p in report.problems
        ]
        again = self._look(None)
        return CheckReport(
            problems, report.queues, again.messages, again.events, report.counts, len(again.problems)
        )

    def _gone_on(self, problems: Sequence[Problem]) -> dict[str, str]:
        """Carry out transfers that were interrupted; what was done, by queue."""
        names = sorted({problem.queue for problem in problems if problem.kind == "transfer"})
        for name in names:
            with contextlib.suppress(QueueNotFound):
                self._engine.with_queue(name, self._transferring.resume_all)
        return dict.fromkeys(names, "transfers carried out")

    def _repaired(self, name: str) -> str:
        """What was done to a queue; a failure is its own, and told of it."""
        try:
            recovered = self._recovering.recover(name)
            return "; ".join(filter(None, (recovered, self._repairing.repair(name))))
        except StorageError as error:
            log.error("queue %r could not be repaired: %s", name, error)
            return f"not repaired: {error}"

    def reindex(self, progress: Progress | None) -> CheckReport:
        names = list(self._engine.all_queues())
        for place, name in enumerate(names):
            self._repairing.repair(name)
            if progress is not None:
                progress("queues", place + 1, len(names))
        return self._look(None)

    def _look(self, progress: Progress | None) -> CheckReport:
        rows, damaged = self._engine.rows()
        problems: list[Problem] = []
        kinds: Counter[str] = Counter()
        messages = events = 0

        def note(kind: str, queue: str, where: str) -> None:
            severity, what = _KINDS[kind]
            kinds[kind] += 1
            if len(problems) < LISTED:
                problems.append(Problem(what, queue, where, kind, severity))

        for name, error in damaged.items():
            note("elsewhere" if isinstance(error, InvalidConfig) else "row", name, str(error))
        for place, name in enumerate(rows):
            try:
                counted = self._lines(name, note)
                messages, events = messages + counted[0], events + counted[1]
            except QueueNotFound:
                pass  # Deleted meanwhile; one that has the name since is sound, or the next check's.
            except (StorageError, BackendUnavailable) as error:
                note(*self._why(name, error))
            if progress is not None:
                progress("queues", place + 1, len(rows))
        for world, where in self._worlds.problems():
            note("world", "", f"{world}: {where}")
        return CheckReport(problems, len(rows) + len(damaged), messages, events, dict(kinds))

    def _lines(self, name: str, note: Note) -> tuple[int, int]:
        """A queue with the lines of all its groups."""
        further = self._engine.queue(name).further_lines
        counted = [self._read(name, note)]
        for line in further:
            with contextlib.suppress(QueueNotFound):  # The group was dropped meanwhile.
                counted.append(self._read(line, note))
        return sum(one[0] for one in counted), sum(one[1] for one in counted)

    def _read(self, name: str, note: Note) -> tuple[int, int]:
        """One queue; one that is being repaired is not waited for, one that changes all the time is."""
        try:
            return self._engine.with_queue(name, lambda q: self._queue(q, note), AT_ONCE)
        except BackendUnavailable:
            if self._is_locked(name):
                raise
            return self._engine.with_queue(name, lambda q: self._queue(q, note))

    def _is_locked(self, name: str) -> bool:
        try:
            queue, _, group = name.partition(BETWEEN)
            raw = self._engine.server.command("GET", self._engine.keys.queue(queue, group)[0])
            return raw is not None and decode_counters(raw).settings < 0
        except StorageError:
            return False

    def _why(self, name: str, error: PenstockError) -> tuple[str, str, str]:
        return ("locked" if self._is_locked(name) else "counters"), name, str(error)

    def _queue(self, q: Known, note: Note) -> tuple[int, int]:
        """(messages, events)"""
        runs = runs_if_told(self._engine.server)
        raw = self._engine.server.command("GET", q.keys[0])
        if raw is not None:
            decode_counters(raw)  # Damaged ones may look like a queue in repair, which is waited for.
        found: list[tuple[str, str]] = []
        for part in STREAM_PARTS if self._engine.keys.store_kind == "stream" else PARTS:
            if not (q.is_view and part in SHARED_PARTS):
                found += self._part(q, part)
        wrong, counters, messages = self._counted(q)
        found += wrong
        found += self._journal(q, counters)
        if runs_if_told(self._engine.server) != runs:
            return self._queue(q, note)  # Another run of the server has another order: some were passed over.
        for kind, where in found:
            note(kind, q.name, f"group {q.group!r}: {where}" if q.is_view else where)
        return messages, counters.seq - counters.base_seq

    def _counted(self, q: Known) -> tuple[list[tuple[str, str]], Counters, int]:
        """What is wrong with the counters, what they are, and how many messages there are."""
        sent = 0, int(len(q.groups) > 1), int(q.is_view)
        _, _, _, wrong, (raw, messages) = self._engine.run("audit", [q], "c", *sent)
        return list(_problems(wrong)), decode_counters(raw), messages

    def _part(self, q: Known, part: str) -> Iterator[tuple[str, str]]:
        cursor = b"0"
        while True:
            _, _, cursor, wrong, looked = self._engine.run("audit", [q], part, cursor, int(len(q.groups) > 1))
            yield from _problems(wrong)
            for at in range(0, len(looked), 2):
                try:
                    decode_body(self._engine.opened_body(q, looked[at], looked[at + 1]))
                except StorageCorrupt:
                    yield "body damaged", _where(looked[at])
            if cursor == b"0":
                return

    def _journal(self, q: Known, counters: Counters) -> list[tuple[str, str]]:
        """What is wrong with it; from the base of now, where it was trimmed since the counters were read."""
        while True:
            try:
                return list(self._followed(q, counters))
            except _Trimmed:
                counters = self._counted(q)[1]

    def _frames(self, q: Known, seq: int) -> list[bytes]:
        _, _, base, frames, _ = self._engine.run("events", [q], seq, "", PAGE)
        if base > seq:
            raise _Trimmed
        return list(frames)

    def _followed(self, q: Known, counters: Counters) -> Iterator[tuple[str, str]]:
        """From its base to the counters, frame by frame; frames that came since are not looked at."""
        c = counters
        wrong: list[tuple[str, str]] = []
        seq, total = c.base_seq, c.base_delayed + c.base_ready + c.base_leased + c.base_done + c.base_dead

        def read(raw_id: bytes, reason: bytes) -> str:
            return self._engine.opened_reason(q, raw_id, reason)

        counts: tuple[int, ...] = (c.base_delayed, c.base_ready, c.base_leased, c.base_done, c.base_dead)
        while seq < c.seq:
            frames = self._frames(q, seq)
            if not frames:
                yield "journal gap", f"nothing behind {seq}, but {c.seq} were written"
                return
            for raw in frames:
                try:
                    head, events = decode_head(raw), list(decode_events(raw, 0, read))
                except StorageCorrupt as error:
                    yield "journal frame", str(error)
                    return
                if head.first_seq != seq + 1:
                    yield "journal gap", f"{head.first_seq} follows {seq}"
                repaired = any(event.kind == Kind.REPAIRED for event in events)
                total += sum(map(_change, events))
                if repaired:
                    wrong.clear()  # A repair has counted anew: what was wrong before is known.
                elif total != sum(head.counts):
                    where = f"at {head.last_seq}: {total} messages, not {sum(head.counts)}"
                    wrong.append(("journal counts", where))
                total, seq, counts = sum(head.counts), head.last_seq, head.counts
        yield from wrong
        now = (c.delayed + c.ready, c.leased, c.done, c.dead)
        if seq == c.seq and (counts[0] + counts[1], *counts[2:]) != now:
            yield "journal counts", f"at {seq}: {counts}, but counted are {now}"


def _change(event: Event) -> int:
    """How many messages more a queue has by it."""
    if event.kind == Kind.ENQUEUED:
        return 1
    return -1 if state_after(event) is None else 0


def _problems(wrong: list[bytes]) -> Iterator[tuple[str, str]]:
    for at in range(0, len(wrong), 2):
        yield wrong[at].decode(), _where(wrong[at + 1])


def _where(raw: bytes) -> str:
    if len(raw) == 16:
        return format_id(raw)
    if len(raw) == 18 and raw[1:2] == b" ":
        return f"{raw[:1].decode()} {format_id(raw[2:])}"
    return raw.decode(errors="replace")
