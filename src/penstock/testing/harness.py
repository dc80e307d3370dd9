"""What the backend suite stands on: the store under test, selection by capability, and shorthand.

Every test gets a fresh store on a clock that stands still. When it is over, the store must pass its own
`check`, and every queue's journal must fold to what the queue holds: each test proves that too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from penstock import Delivery, EnqueueResult, ManualClock, Message, Outcome, Penstock, Queue
from penstock.capabilities import MEANING, Capabilities
from penstock.clock import Clock
from penstock.testing.folding import prove_journal

#: Long ago: whatever reads the machine's clock instead of the injected one is far off.
START_NS = 1_000_000_000_000_000_000
SEED = 20_010_909

Test = TypeVar("Test", bound=Callable[..., None])
OpenStore = Callable[[Clock, random.Random], Penstock]


def requires(*flags: str) -> Callable[[Test], Test]:
    """Run this test where all of these capabilities are on."""
    return _selected("requires", flags)


def refuses(flag: str) -> Callable[[Test], Test]:
    """Run this test where the capability is off."""
    return _selected("refuses", (flag,))


def _selected(how: str, flags: tuple[str, ...]) -> Callable[[Test], Test]:
    unknown = [flag for flag in flags if flag not in MEANING]
    if unknown:
        raise ValueError(f"no capability is called {unknown[0]!r}; known: {', '.join(MEANING)}")

    def mark(test: Test) -> Test:
        test.__dict__[how] = flags
        return test

    return mark


class Subject:
    """The store under test, and how to open it again."""

    def __init__(self, open_penstock: OpenStore) -> None:
        self._open = open_penstock
        self._opened = 0
        self.clock = ManualClock(START_NS)
        self.ps = open_penstock(self.clock, random.Random(SEED))

    @property
    def capabilities(self) -> Capabilities:
        return self.ps.info().default.capabilities

    def reopen(self, seed: int | None = None) -> Penstock:
        """Close the store and open it again, with other randomness, as another process would."""
        self.ps.close()
        self._opened += 1
        self.ps = self._open(self.clock, random.Random(SEED + self._opened if seed is None else seed))
        return self.ps

    def prove(self) -> None:
        """What must hold after any test."""
        report = self.ps.check()
        assert report.ok, report.problems
        if self.capabilities.journal:
            for settings in self.ps.queues():
                prove_journal(self.ps.queue(settings.name), fifo=settings.fifo)


class BackendCase:
    """The fixtures of every part of the suite. A backend's own class says how to open it."""

    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> Penstock:
        """Open the backend. A new folder is a new, empty store; the same one again is the same store."""
        raise NotImplementedError

    @pytest.fixture
    def subject(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Subject]:
        subject = Subject(lambda clock, rng: self.open_penstock(tmp_path / "store", clock, rng))
        try:
            _skip_unless_selected(request.function, subject.capabilities)
            yield subject
            subject.prove()
        finally:
            subject.ps.close()

    @pytest.fixture
    def ps(self, subject: Subject) -> Penstock:
        return subject.ps

    @pytest.fixture
    def clock(self, subject: Subject) -> ManualClock:
        return subject.clock

    @pytest.fixture
    def q(self, ps: Penstock) -> Queue:
        """A queue with every setting as it comes."""
        return ps.create_queue("q")

    @pytest.fixture
    def second_store(self, tmp_path: Path, subject: Subject) -> Iterator[OpenStore]:
        """Opens further stores, each one new; they are closed when the test is over."""
        opened: list[Penstock] = []

        def open_another(clock: Clock, rng: random.Random) -> Penstock:
            opened.append(self.open_penstock(tmp_path / f"another-{len(opened)}", clock, rng))
            return opened[-1]

        yield open_another
        for store in opened:
            store.close()


def _skip_unless_selected(test: Callable[..., None], capabilities: Capabilities) -> None:
    on = set(capabilities.names())
    off = [flag for flag in getattr(test, "requires", ()) if flag not in on]
    if off:
        pytest.skip(f"this backend has no {', '.join(off)}")
    refused = [flag for flag in getattr(test, "refuses", ()) if flag in on]
    if refused:
        pytest.skip(f"this backend has {', '.join(refused)}")


# -- shorthand --------------------------------------------------------------------------------------


def payloads(items: Iterable[Message | Delivery]) -> list[bytes]:
    return [item.payload for item in items]


def receipts(deliveries: Iterable[Delivery]) -> list[str]:
    return [delivery.receipt for delivery in deliveries]


def ids(results: Iterable[EnqueueResult | Message | Delivery]) -> list[str]:
    """The ids, every one of which must be there."""
    found = [result.id for result in results]
    assert None not in found, found
    return [str(one) for one in found]


def errors(results: Iterable[Outcome | EnqueueResult]) -> list[str | None]:
    """The name of each item's error, None for an item that went well."""
    found = list(results)
    assert all(result.ok == (result.error is None) for result in found)
    return [None if result.error is None else type(result.error).__name__ for result in found]


def take(q: Queue, count: int = 1, *, lease_s: float | None = None, consumer: str = "") -> list[Delivery]:
    """Lease exactly so many."""
    deliveries = q.lease(count, lease_s=lease_s, consumer=consumer)
    assert len(deliveries) == count, f"{len(deliveries)} deliveries, not {count}; {q.stats()}"
    return deliveries


def take_one(q: Queue, *, lease_s: float | None = None, consumer: str = "") -> Delivery:
    return take(q, 1, lease_s=lease_s, consumer=consumer)[0]


def ack(q: Queue, deliveries: Sequence[Delivery]) -> None:
    """Ack these; each must go well."""
    assert errors(q.ack(receipts(deliveries))) == [None] * len(deliveries)


def drain(q: Queue, batch: int = 100) -> list[bytes]:
    """Lease and ack until nothing is handed out; the payloads in order of delivery."""
    out: list[bytes] = []
    while deliveries := q.lease(batch):
        out += payloads(deliveries)
        ack(q, deliveries)
    return out


def bury(q: Queue, payload: bytes = b"", *, reason: str = "") -> str:
    """Enqueue a message and kill it; its id. The queue must be empty of other ready ones."""
    message_id = q.enqueue(payload)
    delivery = take_one(q)
    assert delivery.id == message_id
    assert errors(q.reject([delivery.receipt], reason=reason)) == [None]
    return message_id


def sweep_all(ps: Penstock) -> None:
    """Housekeeping until there is none left."""
    for _ in range(10_000):
        if not ps.sweep():
            return
    raise AssertionError("the sweep never ends")
