"""The mixed load of the crash suites: every kind of call, chosen by a seed, written down as it goes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from penstock import Entry, NewMessage
from penstock import Outcome as ItemOutcome
from penstock.queue import Queue
from tests.crash.record import Delivered, Intent, Log, NewItem, Outcome, parse_payload, payload
from tests.crash.system import System

WORLD = "world"
#: Leases and delays end inside a round, or in the next one; journals of "keep" are cut all the time.
SHARED: dict[str, dict[str, Any]] = {
    "work-dead": {"lease_s": 0.1, "journal_retention_s": None},
    "work": {"lease_s": 0.1, "max_attempts": 3, "dead_letter": "work-dead", "journal_retention_s": None},
    "moved": {"lease_s": 0.2, "journal_retention_s": None},
    "fifo": {"fifo": True, "lease_s": 0.1, "max_attempts": 2, "journal_retention_s": None},
    "keep": {
        "lease_s": 0.1,
        "max_attempts": 2,
        "retention_s": 0.1,
        "dedup_window_s": 0.05,
        "journal_retention_s": 0.3,
        "journal_max_bytes": 20_000,
    },
}
#: Dedup windows of these outlast a store of the suites: the oracle knows the first id for good.
REMEMBERS_DEDUP = ("work",)
THREADS = 4
#: More than one slice of a bulk operation.
BULK = 700
ARCHIVE = ("keep", "archive")
#: A lease token is its queue's number and the seq of its event.


def side(thread: int) -> str:
    """A queue that one thread alone uses, so that the oracle knows what a purge must find."""
    return f"side-{thread}"


def temporary(thread: int) -> str:
    """A queue that one thread makes and deletes, again and again."""
    return f"temp-{thread}"


def set_up(system: System, log: Log) -> None:
    """Make the queues that are not there; a crash may have come between two of them."""
    there = {settings.name for settings in system.queues()}
    names = [*SHARED, *(side(thread) for thread in range(THREADS))]
    for n, name in enumerate(name for name in names if name not in there):
        log.write(Intent(n=n, op="create", queue=name))
        settings = SHARED.get(name, {"journal_retention_s": None})
        system.create_queue(name, **settings)
        log.write(Outcome(n=n))


class Worker:
    """One thread of the load. What it holds is forgotten in a crash, as a real worker's would be."""

    def __init__(
        self,
        system: System,
        log: Log,
        rng: Random,
        round_number: int,
        thread: int,
        *,
        heavy: bool,
        waits: bool,
    ) -> None:
        self._system = system
        self._log = log
        self._rng = rng
        self._thread = thread
        self._heavy = heavy
        self._waits = waits
        self._prefix = f"{round_number}.{thread}"
        self._calls = 0
        self._tags = 0
        self._held: dict[str, list[tuple[str, Delivered]]] = {}
        self._own: dict[str, list[str]] = {"work": [], "moved": []}
        self._side: dict[str, tuple[str, int]] = {}
        self._has_temporary = any(s.name == temporary(thread) for s in system.queues())
        table: list[tuple[int, Callable[[], None]]] = [
            (30, self._enqueue),
            (25, self._lease),
            (30, self._finish),
            (6, self._move),
            (4, self._redrive),
            (4, self._fill_side),
            (3, self._upsert),
            (2, self._empty_side),
            (3, self._change_temporary),
            (2, self._sweep),
            (4, self._read_on),
            (2, self._put_state),
            (2, self._append),
            (4, self._look),
        ]
        self._weights, self._steps = zip(*table, strict=True)

    def step(self) -> None:
        """One call, or none where there is nothing to call it on."""
        self._rng.choices(self._steps, self._weights)[0]()

    # -- the log --------------------------------------------------------------------------------

    def _intend(self, op: str, queue: str = "", **what: Any) -> int:
        self._calls += 1
        self._log.write(Intent(n=self._calls, op=op, queue=queue, **what))
        return self._calls

    def _returned(self, n: int, **what: Any) -> None:
        self._log.write(Outcome(n=n, **what))

    # -- producing ------------------------------------------------------------------------------

    def _new(self, queue: str, version: int = 1) -> tuple[NewItem, NewMessage]:
        rng = self._rng
        self._tags += 1
        tag = f"{self._prefix}.{self._tags}"
        message = NewMessage(payload(tag, version, self._filler()), fairness_key=rng.choice(["", "a", "b"]))
        if rng.random() < 0.2:
            message.headers = {"type": "job"}
        if queue in ("work", "keep"):
            message.priority = rng.choice([4, 4, 4, 0, 9])
            message.delay_s = rng.choice([0, 0, 0, 0, 0.001, 0.02, 0.2])
            message.ttl_s = rng.choice([None] * 15 + [0.05])
            if rng.random() < 0.1:
                message.dedup_id = f"{self._thread}.{rng.randrange(15)}"
        if rng.random() < 0.3:
            message.id = str(uuid.UUID(int=rng.getrandbits(128)))
        return NewItem(tag, version, message.id, message.dedup_id, message.ttl_s is not None), message

    def _filler(self) -> bytes:
        sizes = [10_000, 100_000, 200_000] if self._heavy else [0, 10, 100, 100, 1000, 20_000]
        return self._rng.randbytes(self._rng.choice(sizes))

    def _store(self, queue: str, count: int) -> list[tuple[str, str]]:
        """Enqueue a batch; (id, tag) of what was stored."""
        new = [self._new(queue) for _ in range(count)]
        n = self._intend("enqueue", queue, items=[item for item, _ in new])
        results = self._system.queue(queue).enqueue_many([message for _, message in new])
        self._returned(
            n,
            errors=[_error(result) for result in results],
            ids=[result.id for result in results],
            duplicates=[result.duplicate for result in results],
        )
        pairs = zip(results, new, strict=True)
        return [(r.id, item.tag) for r, (item, _) in pairs if r.id is not None and not r.duplicate]

    def _enqueue(self) -> None:
        queue = self._rng.choice(["work", "work", "work", "keep", "fifo"])
        stored = self._store(queue, self._rng.randint(1, 12))
        if queue in self._own:
            self._own[queue] += [message_id for message_id, _ in stored]

    def _fill_side(self) -> None:
        count = BULK if self._rng.random() < 0.1 and not self._heavy else self._rng.randint(1, 10)
        self._side |= {message_id: (tag, 1) for message_id, tag in self._store(side(self._thread), count)}

    def _upsert(self) -> None:
        """New versions of own messages, which nobody leases."""
        if not self._side:
            return
        chosen = self._rng.sample(sorted(self._side), min(3, len(self._side)))
        items = [NewItem(*self._next_version(message_id), message_id) for message_id in chosen]
        n = self._intend("upsert", side(self._thread), items=items)
        results = self._system.queue(side(self._thread)).upsert(
            [NewMessage(payload(i.tag, i.version, self._filler()), id=i.given_id) for i in items]
        )
        self._returned(n, errors=[_error(result) for result in results], ids=[r.id for r in results])

    def _next_version(self, message_id: str) -> tuple[str, int]:
        tag, version = self._side[message_id]
        self._side[message_id] = (tag, version + 1)
        return self._side[message_id]

    # -- consuming ------------------------------------------------------------------------------

    def _lease(self) -> None:
        rng = self._rng
        name = rng.choice(["work", "work", "work", "keep", "keep", "fifo", "moved", "work-dead"])
        n = self._intend("lease", name)
        wait_s = 0.005 if self._waits and rng.random() < 0.1 else 0
        found = self._system.queue(name).lease(rng.randint(1, 15), wait_s=wait_s, consumer=f"c{self._thread}")
        deliveries = [
            Delivered(d.id, int.from_bytes(d.token[4:], "big"), parse_payload(d.payload)[0], d.attempts)
            for d in found
        ]
        self._returned(n, deliveries=deliveries)
        held = [(d.receipt, delivered) for d, delivered in zip(found, deliveries, strict=True)]
        self._held.setdefault(name, []).extend(held)

    def _finish(self) -> None:
        names = [name for name, held in self._held.items() if held]
        if not names:
            return
        name = self._rng.choice(names)
        held = self._held[name]
        count = self._rng.randint(1, 8)
        mine, self._held[name] = held[:count], held[count:]
        op = self._rng.choices(["ack", "nack", "reject", "extend", "forget"], [60, 20, 7, 8, 5])[0]
        if op == "forget":
            return
        n = self._intend(op, name, leases=[delivered for _, delivered in mine])
        outcomes = self._end(self._system.queue(name), op, [receipt for receipt, _ in mine])
        self._returned(n, errors=[_error(outcome) for outcome in outcomes])
        if op == "extend":
            self._held[name] += [one for one, o in zip(mine, outcomes, strict=True) if o.ok]

    def _end(self, queue: Queue, op: str, receipts: list[str]) -> Sequence[ItemOutcome]:
        if op == "ack":
            return queue.ack(receipts)
        if op == "nack":
            return queue.nack(receipts, self._rng.choice([None, 0, 0.001, 0.05]), reason="again")
        if op == "reject":
            return queue.reject(receipts, reason="never")
        return queue.extend(receipts, self._rng.choice([0.001, 0.1, 0.3]))

    # -- bulk -----------------------------------------------------------------------------------

    def _move(self) -> None:
        source, target = self._rng.choice([("work", "moved"), ("moved", "work")])
        ids = self._own[source][-20:]
        if ids:
            self._own[source] = self._own[source][:-20]
            self._move_ids(source, ids, target)
            self._own[target] += ids

    def _move_ids(self, source: str, ids: list[str], target: str) -> None:
        n = self._intend("move", source, ids=ids, target=target)
        outcomes = self._system.queue(source).move(ids, target)
        self._returned(n, errors=[_error(outcome) for outcome in outcomes])

    def _redrive(self) -> None:
        name = self._rng.choice(["work-dead", "work-dead", "keep", "fifo"])
        target = "moved" if name == "work-dead" and self._rng.random() < 0.2 else None
        n = self._intend("redrive", name, target=target or "")
        self._returned(n, number=self._system.queue(name).redrive(self._rng.randint(1, 40), target))

    def _empty_side(self) -> None:
        name = side(self._thread)
        if self._side and self._rng.random() < 0.3:
            ids, self._side = list(self._side), {}
            self._move_ids(name, ids, "moved")
            return
        self._side = {}
        n = self._intend("purge", name)
        self._returned(n, number=self._system.queue(name).purge())

    # -- queues, cursors, state -----------------------------------------------------------------

    def _change_temporary(self) -> None:
        name = temporary(self._thread)
        if not self._has_temporary:
            n = self._intend("create", name)
            self._system.create_queue(name, dedup_window_s=1)
            self._has_temporary = True
            self._returned(n)
        elif self._rng.random() < 0.6:
            self._store(name, BULK if self._rng.random() < 0.1 and not self._heavy else 5)
        else:
            n = self._intend("delete", name)
            self._system.delete_queue(name)
            self._has_temporary = False
            self._returned(n)

    def _sweep(self) -> None:
        n = self._intend("sweep")
        self._returned(n, number=self._system.sweep(self._rng.randint(1, 20)))

    def _read_on(self) -> None:
        """Cursors have one reader each: thread 0 and, required, thread 1."""
        if self._thread > 1:
            return
        name, cursor_name = (("work", "reader"), ARCHIVE)[self._thread]
        cursor = self._system.queue(name).cursor(cursor_name, required=(name, cursor_name) == ARCHIVE)
        before, events = cursor.position, cursor.read(200)
        seqs = [event.seq for event in events]
        assert seqs == list(range(before + 1, before + 1 + len(seqs))), f"{name} after {before}: {seqs}"
        if events:
            n = self._intend("commit", name, name=cursor_name, number=seqs[-1])
            cursor.commit(seqs[-1])
            self._returned(n)

    def _put_state(self) -> None:
        value = f"{self._prefix}.{self._calls}"
        n = self._intend("state", name=f"key-{self._thread}", value=value)
        self._system.state.put(f"key-{self._thread}", value.encode())
        self._returned(n)

    def _append(self) -> None:
        bodies = [f"{self._prefix}.{self._calls}.{i}" for i in range(self._rng.randint(1, 3))]
        n = self._intend("append", ids=bodies)
        entries = [Entry("note", body.encode(), vector=[0.5, 1.0]) for body in bodies]
        self._returned(n, ids=list(self._system.journal(WORLD).append(entries)))

    def _look(self) -> None:
        """Readers beside the writers: whatever they see is whole."""
        queue = self._system.queue(self._rng.choice([*SHARED, side(self._thread)]))
        for message in [*queue.peek(5), *queue.list(self._rng.choice(["leased", "delayed"]), limit=5).items]:
            parse_payload(message.payload)
        assert min(queue.stats().ready, queue.length()) >= 0


def _error(result: Any) -> str:
    return "" if result.error is None else type(result.error).__name__
