"""Leasing with long-poll: release what is due, hand out what is ready, or sleep until there is something."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from penstock.backends.arguments import check_lease_s
from penstock.backends.embedded import healing, lanes, leases
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.failures import Failures
from penstock.backends.embedded.group_commit import give_way
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.sweep import SLICE, apply_due, release_for
from penstock.clock import NS_PER_S, to_ns
from penstock.codec.body import check_duration
from penstock.message import Delivery, check_count, checked_name

log = logging.getLogger("penstock")


class _Next(Enum):
    """What comes before an answer, outside of the command: others may be waiting for it."""

    #: Scripts have to be asked about leases that ended.
    SCRIPTS = auto()
    #: What was looked at is enough for one command, and nothing of it could be handed out.
    AGAIN = auto()


class Polling:
    """Leases from the queues of one store."""

    def __init__(self, engine: Engine, failures: Failures) -> None:
        self._engine = engine
        self._failures = failures

    def lease(
        self,
        listening: Callable[[], bool],
        queue: str,
        max_messages: int,
        lease_s: float | None,
        wait_s: float,
        consumer: str,
    ) -> list[Delivery]:
        check_duration(wait_s, "wait_s")
        if lease_s is not None:
            check_lease_s(lease_s)
        check_count(max_messages, "max_messages")
        if consumer != "":
            checked_name(consumer, "consumer")
        engine = self._engine
        if max_messages == 0:
            return []
        deadline_ns = engine.clock.now_ns() + to_ns(wait_s)
        settled = seemed_enough = False
        while listening():
            command = partial(self._lease_now, queue, max_messages, lease_s, consumer, settled=settled)
            answer = engine.durably(command)
            if answer is _Next.SCRIPTS:
                seemed_enough, settled = self._failures.release(queue, max_messages), True
            elif answer is _Next.AGAIN:
                give_way()
            elif not answer and seemed_enough:
                settled = seemed_enough = False
            elif answer or engine.clock.now_ns() >= deadline_ns:
                return answer
            else:
                settled = False
                self._wait(queue, deadline_ns)
        # It may have been woken in the place of one that still waits.
        with engine.lock:
            if queue in engine.queues:
                engine.queues[queue].arrived.notify()
        return []

    def watch(self, queue: str, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told` whenever a waiting poll would wake, from whichever thread; the answer ends it."""
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            q = engine.queue(queue)
            q.arrived.told.append(told)
            engine.waiting.add(q)
            q.waiters += 1

        def stop() -> None:
            with engine.lock:
                if told in q.arrived.told:
                    q.arrived.told.remove(told)
                    self._waited(q)

        return stop

    def due_in_s(self, queue: str) -> float:
        """How long nothing can be leased unless something happens that who watches is told of."""
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            q = engine.queue(queue)
            now_ns = engine.clock.now_ns()
            if q.lease_may_succeed(now_ns):
                return 0.0
            until_ns = min(engine.earliest_due_ns(), q.watched_release_ns())
            return max(0, until_ns - now_ns) / NS_PER_S

    def _waited(self, q: QueueState) -> None:
        q.waiters -= 1
        if not q.waiters:
            self._engine.waiting.discard(q)

    def _lease_now(
        self, queue: str, max_messages: int, lease_s: float | None, consumer: str, *, settled: bool
    ) -> list[Delivery] | _Next:
        engine = self._engine
        apply_due(engine, Due.TTL)
        seemed_enough = release_for(engine, queue, max_messages)
        if engine.undecided and not settled and self._waits_for_script(queue):
            return _Next.SCRIPTS
        with engine.lock:  # Kept until they are set aside: someone else would take them too.
            try:
                answer = self._hand_out(queue, max_messages, lease_s, consumer)
            except healing.DamagedBodies as damaged:
                if not damaged.rows:
                    raise
                log.error("%s: moved to quarantine", damaged)
                with engine.transaction() as txn:
                    healing.set_aside(txn, engine.queue(queue), damaged.rows)
                return _Next.AGAIN
        return _Next.AGAIN if not answer and seemed_enough else answer

    def _waits_for_script(self, queue: str) -> bool:
        with self._engine.lock:
            return self._failures.waiting(queue)

    def _hand_out(
        self, queue: str, max_messages: int, lease_s: float | None, consumer: str
    ) -> list[Delivery] | _Next:
        """Again if what seemed ready had expired, or there are lanes yet to be found."""
        engine = self._engine
        with engine.transaction() as txn:
            q = engine.queue(queue)
            counts = q.counters.counts
            lease_ns = to_ns(q.settings.lease_s if lease_s is None else lease_s)
            deliveries: list[Delivery] = []
            looked = 0
            while counts[StateCode.READY] > 0 and (wanted := q.room(max_messages - len(deliveries))):
                more = leases.lease(txn, q, wanted, lease_ns, consumer)
                if more is None and q.ready.discovered:
                    break  # What is ready has to wait: for tokens, or for others of its key.
                deliveries += more or ()
                looked += wanted if q.ready.discovered else lanes.DISCOVERY_SLICE
                if looked - len(deliveries) >= SLICE:
                    break  # Enough for one write.
            q.tell_waiters()
            if engine.calls.answering and deliveries:  # Their receipts are enough to find them again.
                txn.answered([delivery.receipt for delivery in deliveries])
            return deliveries if deliveries or not looked else _Next.AGAIN

    def _wait(self, queue: str, deadline_ns: int) -> None:
        """Sleep until work arrives, something falls due, or the deadline passes."""
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            q = engine.queue(queue)
            now_ns = engine.clock.now_ns()
            until_ns = min(deadline_ns, engine.earliest_due_ns(), q.watched_release_ns())
            if q.lease_may_succeed(now_ns) or until_ns <= now_ns:
                return
            engine.waiting.add(q)
            q.waiters += 1
            try:
                engine.clock.wait(q.arrived, until_ns - now_ns)
            finally:
                self._waited(q)
