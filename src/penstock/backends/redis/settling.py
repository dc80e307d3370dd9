"""What becomes of deliveries: acks, extensions, and failures, which are decided here and applied there.

A decision is applied to what the same lease still holds: its token, the seq of the lease's event, tells.
"""

from __future__ import annotations

import logging
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence

from penstock.backends.meters import QueueMeter
from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import Engine, Known
from penstock.backends.redis.hooking import Hooking
from penstock.backends.redis.looking import SLICE, Found, Looking
from penstock.backends.redis.records import CODES, StateRecord, stored_body
from penstock.backends.redis.transferring import DEAD as DEAD_LETTER
from penstock.backends.redis.transferring import Transfer, Transferring, as_arriving
from penstock.clock import to_ns
from penstock.codec.body import Body
from penstock.errors import PenstockError, QueueNotFound, StaleReceipt, StorageCorrupt, as_answer
from penstock.hooks.scripts import Verdict
from penstock.hooks.wire import Failure
from penstock.message import OK, Outcome, State, format_id, parse_receipt
from penstock.scheduling.retry import retry_delay_s

log = logging.getLogger("penstock")

NACKED, RELEASED = 6, 7
BACK, DEAD, DROPPED = b"b", b"x", b"o"
_ROW = struct.Struct(">Qc8s")
MOST = 1000

#: A message whose delivery failed.
Failed = tuple[bytes, StateRecord]
#: Microseconds until it comes back, or None for dead.
Decide = Callable[[StateRecord], int | None]
#: id, token, action, delay, reason
_Settled = tuple[bytes, int, bytes, int, str]
#: place, id, token
_Held = tuple[int, bytes, bytes]


class Settling:
    """Settles deliveries of one store."""

    def __init__(
        self, engine: Engine, looking: Looking, hooking: Hooking, transferring: Transferring
    ) -> None:
        self._engine = engine
        self._looking = looking
        self._hooking = hooking
        self._transferring = transferring
        self.meters: defaultdict[str, QueueMeter] = defaultdict(QueueMeter)

    # -- by receipt

    def ack(self, queue: str, receipts: Sequence[str]) -> list[Outcome]:
        def act(q: Known) -> list[Outcome]:
            outcomes = [OK] * len(receipts)
            held = _parsed(q, receipts, outcomes)

            def ack_some(some: Sequence[_Held]) -> None:
                tokens, ids = b"".join([token for _, _, token in some]), [raw_id for _, raw_id, _ in some]
                _, now_us, answers, since = self._engine.run("ack", [q], tokens, *ids)
                for (place, _, _), answer in zip(some, answers, strict=False):
                    if answer == ord("0"):
                        outcomes[place] = stale(receipts[place])
                if since:
                    times = struct.unpack(f">{len(since) // 8}Q", since)
                    self.meters[q.name].services.observe_since(now_us * 1000, [one * 1000 for one in times])

            _in_slices(held, MOST, outcomes, ack_some)
            if not held:
                self._looking.find(q, [])
            return outcomes

        return self._engine.with_queue(queue, act)

    def extend(self, queue: str, receipts: Sequence[str], lease_us: int) -> list[Outcome]:
        def act(q: Known) -> list[Outcome]:
            # Extending twice is no contradiction: a repeated receipt has the first one's outcome.
            distinct = list(dict.fromkeys(map(str, receipts)))
            answers = [OK] * len(distinct)
            held = _parsed(q, distinct, answers)

            def extend_some(some: Sequence[_Held]) -> None:
                tokens, ids = b"".join([token for _, _, token in some]), [raw_id for _, raw_id, _ in some]
                reply = self._engine.run("extend", [q], lease_us, tokens, *ids)
                for (place, _, _), answer in zip(some, reply[2], strict=True):
                    if answer == ord("0"):
                        answers[place] = stale(distinct[place])

            _in_slices(held, MOST, answers, extend_some)
            if not held:
                self._looking.find(q, [])
            outcomes = dict(zip(distinct, answers, strict=True))
            return [outcomes[str(receipt)] for receipt in receipts]

        return self._engine.with_queue(queue, act)

    def nack(self, queue: str, receipts: Sequence[str], delay_s: float | None, reason: str) -> list[Outcome]:
        def act(q: Known) -> list[Outcome]:
            def decide(record: StateRecord) -> int | None:
                if record.attempts >= q.settings.max_attempts:
                    return None
                if delay_s is not None:
                    return to_ns(delay_s) // 1000
                with self._engine.lock:
                    return to_ns(retry_delay_s(q.settings.retry, record.attempts, self._engine.rng)) // 1000

            return self._fail(q, receipts, decide, "nack", delay_s, reason)

        return self._engine.with_queue(queue, act)

    def reject(self, queue: str, receipts: Sequence[str], reason: str) -> list[Outcome]:
        return self._engine.with_queue(
            queue, lambda q: self._fail(q, receipts, lambda record: None, "reject", None, reason)
        )

    def _fail(
        self,
        q: Known,
        receipts: Sequence[str],
        decide: Decide,
        kind: str,
        delay_s: float | None,
        reason: str,
    ) -> list[Outcome]:
        outcomes = [OK] * len(receipts)
        held = _parsed(q, receipts, outcomes)
        if not held:
            self._looking.find(q, [])

        def fail_some(some: Sequence[_Held]) -> None:
            places: dict[bytes, int] = {}
            failed: list[Failed] = []
            records = self._looking.records(q, [raw_id for _, raw_id, _ in some])
            for (place, raw_id, token), record in zip(some, records, strict=True):
                if record is None or not _holds(record, token) or raw_id in places:
                    outcomes[place] = stale(receipts[place])
                else:
                    places[raw_id] = place
                    failed.append((raw_id, record))
            for raw_id in self._settle(q, failed, decide, kind, delay_s, reason):
                outcomes[places[raw_id]] = stale(receipts[places[raw_id]])

        _in_slices(held, SLICE, outcomes, fail_some)
        return outcomes

    # -- leases that ran out

    def release(self, q: Known, failed: Sequence[Failed]) -> None:
        """A failure each, and READY again at once."""

        def decide(record: StateRecord) -> int | None:
            return None if record.attempts >= q.settings.max_attempts else 0

        self._settle(q, failed, decide, "lease_expired", None, "")

    # -- what is decided

    def _settle(
        self,
        q: Known,
        failed: Sequence[Failed],
        decide: Decide,
        kind: str,
        delay_s: float | None,
        reason: str,
    ) -> list[bytes]:
        """Apply what becomes of these; the ids of those whose lease was over by then."""
        verdicts = self._verdicts(q, failed, kind, delay_s, reason)
        settled: list[_Settled] = []
        dying: list[tuple[bytes, StateRecord, str]] = []
        for raw_id, record in failed:
            usual, verdict = decide(record), verdicts.get(record.seq)
            if verdict is not None and verdict.action == "drop":
                settled.append((raw_id, record.seq, DROPPED, 0, verdict.reason or reason))
            elif verdict is not None and verdict.action == "dead_letter":
                dying.append((raw_id, record, verdict.reason or reason or _usual_reason(kind)))
            elif usual is None:
                # No script lifts the limit on attempts, nor a consumer's word that there be no other.
                dying.append((raw_id, record, reason or _usual_reason(kind)))
            else:
                delay_us = usual if verdict is None else verdict.delay_ns // 1000
                settled.append((raw_id, record.seq, BACK, delay_us, reason))
        over, staying = self._bury(q, dying)
        settled += [(raw_id, record.seq, DEAD, 0, why) for raw_id, record, why in staying]
        return over + self._apply(q, settled, RELEASED if kind == "lease_expired" else NACKED)

    def _apply(self, q: Known, settled: Sequence[_Settled], kind: int) -> list[bytes]:
        over: list[bytes] = []
        for at in range(0, len(settled), SLICE):
            some = settled[at : at + SLICE]
            rows = b"".join(
                [_ROW.pack(token, action, delay.to_bytes(8, "big")) for _, token, action, delay, _ in some]
            )

            def sent(some: Sequence[_Settled] = some, rows: bytes = rows) -> list[Arg]:
                reasons = ((one[0], self._engine.sealed_reason(q, one[0], one[4])) for one in some)
                return [kind, rows, *(arg for pair in reasons for arg in pair)]

            answers = self._engine.run_sealed("settle", [q], sent)[2]
            over += [one[0] for one, answer in zip(some, answers, strict=True) if answer == ord("0")]
        return over

    def _bury(
        self, q: Known, dying: list[tuple[bytes, StateRecord, str]]
    ) -> tuple[list[bytes], list[tuple[bytes, StateRecord, str]]]:
        """(those whose lease was over, those that die at home): the others went to the dead-letter queue."""
        name = q.settings.dead_letter
        if name is None or not dying:
            return [], dying
        try:
            target = self._engine.queue(name)
        except QueueNotFound:
            return [], dying
        found = self._looking.find(q, [raw_id for raw_id, _, _ in dying])
        transfers: list[Transfer] = []
        by_id = {raw_id: (raw_id, record, why) for raw_id, record, why in dying}
        for (raw_id, record, why), one in zip(dying, found, strict=True):
            body = _body(q, raw_id, record, one)
            if body is not None:
                transfers.append(as_arriving(DEAD_LETTER, q.name, raw_id, record, body, why))
        answers = self._transferring.transfer(q, target, transfers, DEAD_LETTER)
        over = [t.raw_id for t, answer in zip(transfers, answers, strict=True) if answer == b"0"]
        went = {t.raw_id for t, answer in zip(transfers, answers, strict=True) if answer == b"1"}
        return over, [one for raw_id, one in by_id.items() if raw_id not in went and raw_id not in over]

    def _verdicts(
        self, q: Known, failed: Sequence[Failed], kind: str, delay_s: float | None, reason: str
    ) -> dict[int, Verdict]:
        """What the queue's script says of these failures, by token."""
        if q.settings.on_failure is None or not failed:
            return {}
        cases: list[tuple[int, Failure]] = []
        found = self._looking.find(q, [raw_id for raw_id, _ in failed])
        for (raw_id, record), one in zip(failed, found, strict=True):
            body = _body(q, raw_id, record, one)
            if body is not None:
                last = kind == "reject" or record.attempts >= q.settings.max_attempts
                case = Failure(kind, reason, delay_s, record.consumer, record.attempts, last, raw_id, body)
                cases.append((record.seq, case))
        verdicts = self._hooking.failed(q, [case for _, case in cases])
        return {
            token: verdict for (token, _), verdict in zip(cases, verdicts, strict=True) if verdict is not None
        }


def _body(q: Known, raw_id: bytes, record: StateRecord, found: Found | None) -> Body | None:
    """None for a damaged one, which must not keep the queue from going on: it dies where it is."""
    try:
        return None if found is None else stored_body(record, found[1])
    except StorageCorrupt as error:
        log.error("queue %r, message %s cannot be settled as others: %s", q.name, format_id(raw_id), error)
        return None


def stale(receipt: object) -> Outcome:
    return Outcome(StaleReceipt(str(receipt)[:80]))


def _usual_reason(kind: str) -> str:
    return "lease ran out" if kind == "lease_expired" else ""


def _holds(record: StateRecord, token: bytes) -> bool:
    is_held = record.code == CODES[State.LEASED] and not record.transfer
    return is_held and record.seq.to_bytes(8, "big") == token


def _parsed(q: Known, receipts: Sequence[str], outcomes: list[Outcome]) -> list[tuple[int, bytes, bytes]]:
    """(place, id, token) of every receipt that can be of this queue; the others are answered."""
    held = []
    start = q.token_start
    for place, receipt in enumerate(receipts):
        parsed = parse_receipt(receipt)
        if parsed is None or parsed[1][:4] != start:
            outcomes[place] = stale(receipt)
        else:
            held.append((place, parsed[0], parsed[1][4:]))
    return held


def _slices(held: Sequence[_Held], size: int = MOST) -> list[Sequence[_Held]]:
    return [held[at : at + size] for at in range(0, len(held), size)]


def _in_slices(
    held: Sequence[_Held], size: int, outcomes: list[Outcome], act: Callable[[Sequence[_Held]], None]
) -> None:
    """Where a slice fails after others are done, it and the rest have the error: they are not hidden."""
    done = 0
    for some in _slices(held, size):
        try:
            act(some)
        except PenstockError as error:
            if not done:
                raise
            failure = Outcome(as_answer(error))
            for place, _, _ in held[done:]:
                outcomes[place] = failure
            return
        done += len(some)
