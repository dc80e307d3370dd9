"""Failed deliveries: nack, reject, and leases that ran out where a script decides.

A script runs with no lock held: what it is shown is read before, and what it decides is applied after, to
those messages that the same lease still holds. The lease's token is what tells.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from penstock.backends.arguments import check_reason
from penstock.backends.embedded import keys, leases
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.hooking import Hooking
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.leases import Decide, GiveBack, Leased, give_back, holding
from penstock.backends.embedded.lookup import NO_BODY, Found
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import StateRow, decode_state
from penstock.backends.embedded.sweep import (
    apply_due,
    apply_waiting,
    drop_rows,
    end_leases,
    has_enough,
    left_for_repair,
    may_gain,
)
from penstock.backends.embedded.transitions import drop_bodies, leave
from penstock.backends.embedded.undecided import Ended, Undecided
from penstock.backends.meters import FAILED
from penstock.clock import to_ns
from penstock.codec.body import check_duration, decode_body
from penstock.errors import StorageCorrupt
from penstock.event import Kind
from penstock.hooks.scripts import Verdict
from penstock.hooks.wire import Failure
from penstock.message import OK, Outcome

#: Ended leases of a queue that its script is asked about at a time.
SCRIPTED_SLICE = 100

Change = Callable[[Transaction, QueueState], list[Outcome]]

#: What was decided about each lease, by its token.
Verdicts = dict[int, Verdict]


class Failures:
    """What becomes of messages whose delivery failed."""

    def __init__(self, engine: Engine, hooking: Hooking) -> None:
        self._engine = engine
        self._hooking = hooking
        #: Numbers of queues whose ended leases a thread is at.
        self._busy: set[int] = set()

    def nack(self, queue: str, receipts: Sequence[str], delay_s: float | None, reason: str) -> Change:
        """A failure: what is then to be written, in one go."""
        check_reason(reason)
        if delay_s is not None:
            check_duration(delay_s, "delay_s")
        delay_ns = None if delay_s is None else to_ns(delay_s)
        apply_waiting(self._engine)
        settle = self._decided(queue, "nack", receipts, delay_s, reason)
        return lambda txn, q: leases.nack(txn, q, receipts, delay_ns, reason, settle)

    def reject(self, queue: str, receipts: Sequence[str], reason: str) -> Change:
        """The same for one that must not be tried again."""
        check_reason(reason)
        apply_waiting(self._engine)
        settle = self._decided(queue, "reject", receipts, None, reason)
        return lambda txn, q: leases.reject(txn, q, receipts, reason, settle)

    def _decided(
        self, queue: str, kind: str, receipts: Sequence[str], delay_s: float | None, reason: str
    ) -> GiveBack | None:
        """What the queue's script makes of these failures; None if it has none."""
        q = self._engine.queues.get(queue) if isinstance(queue, str) else None
        if q is None or q.settings.on_failure is None:
            return None
        with self._engine.lock:
            self._engine.check_usable()
            q = self._engine.queue(queue)
            held = holding(self._engine, q, receipts, [OK] * len(receipts))
            rows = [(raw_id, raw) for _, raw_id, raw in held]
            script, cases = q.settings.on_failure, self._cases(q, rows, kind, delay_s, reason)
        return settling(self._decide(q, script, cases))

    # -- leases that ran out

    def waiting(self, queue: str) -> bool:
        """Whether ended leases that concern this queue wait for a script. Call it with the lock held."""
        return bool(self._engine.undecided) and any(True for _ in self._concerned(queue))

    def release(self, queue: str, wanted: int) -> bool:
        """Before a lease: those that ended, until the queue has enough, or nothing more to gain.

        True if it seemed enough: should none of it be handed out, there may be more to release.
        """
        while self.end_leases(queue) and may_gain(self._engine, queue, Due.LEASE):
            if has_enough(self._engine, queue, wanted):
                return True
            while apply_due(self._engine, Due.LEASE):
                pass  # There may be more of them than were kept.
        return False

    def end_leases(self, queue: str | None = None) -> int:
        """A slice of the ended leases that wait for a script, in each queue that concerns this one, or in
        every queue; how many they were.
        """
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            qids = list(self._concerned(queue))
        done = 0
        for qid in qids:
            try:
                done += self._end_leases(qid)
            except StorageCorrupt as error:  # Its leases wait for a repair, those of the others do not.
                q = engine.by_qid.get(qid)
                if q is None:
                    raise
                engine.note_damage(q.name, error)
        return done

    def _concerned(self, queue: str | None) -> Iterator[int]:
        """Queues with ended leases that nobody is at, and whose end may make a message ready in this one."""
        for qid in self._engine.undecided:
            q = self._engine.by_qid.get(qid)
            if qid not in self._busy and (
                queue is None or q is None or queue in (q.name, q.settings.dead_letter)
            ):
                yield qid

    def _end_leases(self, qid: int) -> int:
        engine = self._engine
        with engine.lock:
            waiting = engine.undecided.get(qid)
            if waiting is None or qid in self._busy:
                return 0
            self._busy.add(qid)
            try:
                items = waiting.first(SCRIPTED_SLICE)
                q = engine.sound_queue(qid)
                script = None if q is None else q.settings.on_failure
                cases = [] if q is None else self._cases(q, self._ended(q, items), "lease_expired")
            except BaseException:
                self._busy.discard(qid)
                raise
        try:
            verdicts = {} if q is None else self._decide(q, script, cases)
            with engine.lock:
                self._apply(qid, items, verdicts)
                if engine.undecided.get(qid) is waiting:  # Else it was forgotten, to be found again.
                    self._decided_about(qid, waiting, items)
        finally:
            self._busy.discard(qid)
        return len(items)

    def _decided_about(self, qid: int, waiting: Undecided, items: list[Ended]) -> None:
        if not waiting.remove(items):
            del self._engine.undecided[qid]
            self._engine.look_again(Due.LEASE, waiting.more_from_ns)

    def _apply(self, qid: int, items: list[tuple[int, bytes]], verdicts: Verdicts) -> None:
        engine = self._engine
        q = engine.sound_queue(qid)
        if q is None and qid in engine.by_qid:
            return  # Damaged: a repair finds what is due of it.
        with left_for_repair(engine, Due.LEASE, q), engine.transaction() as txn:
            txn.changed = True
            if q is None:
                drop_rows(txn, Due.LEASE, qid, items)
            else:
                end_leases(txn, q, items, settling(verdicts))

    def _ended(self, q: QueueState, items: list[tuple[int, bytes]]) -> list[tuple[bytes, bytes]]:
        ids = [raw_id for _, raw_id in items]
        rows = self._engine.kv.get_many(
            [keys.state(q.qid, StateCode.LEASED, raw_id) for raw_id in ids], self._engine.state
        )
        return [(raw_id, raw) for raw_id, raw in zip(ids, rows, strict=True) if raw is not None]

    # -- scripts

    def _cases(
        self,
        q: QueueState,
        held: list[tuple[bytes, bytes]],
        kind: str,
        delay_s: float | None = None,
        reason: str = "",
    ) -> list[tuple[int, Failure]]:
        """What the script is shown, by token. What is damaged it is not: the queue's settings decide."""
        engine = self._engine
        bodies = engine.kv.get_many([q.prefix + raw_id for raw_id, _ in held], engine.messages)
        cases = []
        for (raw_id, raw), body in zip(held, bodies, strict=True):
            with contextlib.suppress(StorageCorrupt):
                row = decode_state(raw)
                if body is not None:
                    last = kind == "reject" or row.attempts >= q.settings.max_attempts
                    stored = decode_body(body)
                    failure = Failure(kind, reason, delay_s, row.consumer, row.attempts, last, raw_id, stored)
                    cases.append((row.seq, failure))
        return cases

    def _decide(self, q: QueueState, script: str | None, cases: list[tuple[int, Failure]]) -> Verdicts:
        if script is None or not cases:
            return {}
        verdicts = self._hooking.failed(q, script, [failure for _, failure in cases])
        return {
            token: verdict for (token, _), verdict in zip(cases, verdicts, strict=True) if verdict is not None
        }


def settling(verdicts: Verdicts) -> GiveBack:
    """Gives messages back as a script decided; those of which it said nothing as usual."""

    def settle(
        txn: Transaction, q: QueueState, failed: Leased, decide: Decide, kind: Kind, reason: str
    ) -> None:
        back: Leased = []
        dropped: Leased = []
        dead: dict[str, Leased] = defaultdict(list)
        for raw_id, row in failed:
            verdict = verdicts.get(row.seq)
            if verdict is None or verdict.action == "retry":
                back.append((raw_id, row))
            elif verdict.action == "drop":
                dropped.append((raw_id, row))
            else:
                dead[verdict.reason or reason].append((raw_id, row))

        def decided(row: StateRow) -> int | None:
            # No script lifts the limit on attempts, nor a consumer's word that there be no other.
            usual, verdict = decide(row), verdicts.get(row.seq)
            return usual if usual is None or verdict is None else txn.now_ns + verdict.delay_ns

        give_back(txn, q, back, decided, kind, reason)
        for why, those in dead.items():
            give_back(txn, q, those, lambda row: None, kind, why)
        if dropped:
            _drop(txn, q, dropped, [verdicts[row.seq].reason or reason for _, row in dropped])

    return settle


def _drop(txn: Transaction, q: QueueState, dropped: Leased, reasons: list[str]) -> None:
    """Gone, without having been done."""
    ids = [raw_id for raw_id, _ in dropped]
    attempts = [row.attempts for _, row in dropped]
    consumers = [row.consumer for _, row in dropped]
    for raw_id, row in dropped:
        leave(txn, q, Found(raw_id, StateCode.LEASED, row, NO_BODY, fresh=False))
    drop_bodies(txn, q, ids, q.counters.next_seq)
    txn.record(q, Kind.DROPPED, ids, attempts, 0, consumers, reasons)
    q.counters.failed_total += len(ids)
    txn.rates.append((q, FAILED, len(ids)))
