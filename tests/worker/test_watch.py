"""The thread that acts on jobs when their time has come misses none, whenever it comes."""

from __future__ import annotations

from typing import cast

from penstock import ManualClock
from penstock.testing.background import wait_until
from penstock.worker.hand import Hand
from penstock.worker.job import Job
from penstock.worker.watch import NEVER_NS, Watch


class Named:
    """All that a watch needs of a job."""

    def __init__(self, due_ns: int) -> None:
        self.due_ns = due_ns


def job(due_ns: int) -> Job:
    return cast(Job, Named(due_ns))


def due_ns(one: Job) -> int:
    return cast(Named, one).due_ns


class Rig:
    """A watch over jobs that are due once; what fails it is kept."""

    def __init__(self) -> None:
        self.clock, self.hand = ManualClock(), Hand()
        self.acted: list[Job] = []
        self.failures: list[BaseException] = []
        self.while_looking: list[Job] = []
        self.watch = Watch("test", self.clock, self.hand, self.due, self.act, self.failures.append)

    def due(self, one: Job) -> int:
        if self.while_looking:
            self.add(self.while_looking.pop())
        return due_ns(one)

    def act(self, jobs: list[Job]) -> None:
        self.acted += jobs
        for one in jobs:
            cast(Named, one).due_ns = NEVER_NS

    def add(self, one: Job) -> None:
        self.hand.hold([one])
        self.watch.notice(one)

    def in_s(self, seconds: int) -> int:
        return self.clock.now_ns() + seconds * 10**9


def test_a_job_is_acted_on_when_it_is_due_and_not_before() -> None:
    rig = Rig()
    soon, later = job(rig.in_s(5)), job(rig.in_s(10))
    rig.watch.start()
    rig.add(later)
    rig.add(soon)
    wait_until(lambda: rig.clock.waiters() == 1)
    rig.clock.advance(4)
    wait_until(lambda: rig.clock.waiters() == 1)
    assert rig.acted == []
    rig.clock.advance(1)
    wait_until(lambda: rig.acted == [soon])
    rig.clock.advance(5)
    wait_until(lambda: rig.acted == [soon, later])
    rig.watch.end()
    rig.watch.join(30)
    assert not rig.watch.is_alive()


def test_a_job_that_comes_while_it_looks_round_is_not_overslept() -> None:
    rig = Rig()
    now = job(rig.in_s(0))
    rig.while_looking = [now]
    rig.hand.hold([job(rig.in_s(3600))])
    rig.watch.start()
    wait_until(lambda: rig.acted == [now])
    rig.watch.end()


def test_a_watch_that_fails_says_so() -> None:
    rig = Rig()
    rig.hand.hold([cast(Job, object())])
    rig.watch.start()
    wait_until(lambda: [type(failure) for failure in rig.failures] == [AttributeError])
