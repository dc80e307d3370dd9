"""Group commit: one sync for many, each caller its own answer, nobody left waiting."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from penstock.backends.embedded.calls import Calls
from penstock.backends.embedded.group_commit import GroupCommit
from penstock.backends.meters import Meter
from penstock.errors import BackendUnavailable, StorageError, StorageFull


class Disk:
    """A sync that waits until it is let go, and counts."""

    def __init__(self) -> None:
        self.syncs = 0
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def sync(self) -> None:
        self.entered.release()
        self.go.acquire()
        self.syncs += 1


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    answers: list[object] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:  # noqa: BLE001 (the test looks at it)
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, answers


def wait_for(group: GroupCommit, waiting: int) -> None:
    while len(group._waiting) < waiting:
        threading.Event().wait(0.001)


def test_a_lone_caller_runs_and_syncs_on_its_own_thread() -> None:
    syncs: list[int] = []
    group = GroupCommit(lambda: syncs.append(threading.get_ident()), Calls(), Meter(()))
    assert group.run(threading.get_ident) == threading.get_ident() == syncs[0]


def test_those_who_come_during_a_sync_share_the_next_one() -> None:
    disk = Disk()
    group = GroupCommit(disk.sync, Calls(), Meter(()))
    first, _ = in_thread(lambda: group.run(lambda: 0))
    disk.entered.acquire()
    others = [in_thread(lambda n=n: group.run(lambda: n)) for n in range(1, 11)]  # type: ignore[misc]
    wait_for(group, 10)
    disk.go.release(2)
    first.join()
    for thread, _ in others:
        thread.join()
    assert disk.syncs == 2
    assert sorted(str(answers[0]) for _, answers in others) == sorted(str(n) for n in range(1, 11))


def test_nobody_is_answered_before_the_sync_that_covers_him() -> None:
    disk = Disk()
    group = GroupCommit(disk.sync, Calls(), Meter(()))
    thread, answers = in_thread(lambda: group.run(lambda: 1))
    disk.entered.acquire()
    assert answers == []
    disk.go.release()
    thread.join()
    assert answers == [1]


def test_an_error_is_raised_by_its_own_caller_alone() -> None:
    disk = Disk()
    group = GroupCommit(disk.sync, Calls(), Meter(()))
    first, _ = in_thread(lambda: group.run(lambda: 0))
    disk.entered.acquire()
    bad, bad_answers = in_thread(lambda: group.run(lambda: 1 // 0))
    good, good_answers = in_thread(lambda: group.run(lambda: 2))
    wait_for(group, 2)
    disk.go.release(2)
    for thread in (first, bad, good):
        thread.join()
    assert isinstance(bad_answers[0], ZeroDivisionError)
    assert good_answers == [2]


def test_an_error_keeps_nothing_alive_once_it_is_handled() -> None:
    class Handle:
        pass

    group = GroupCommit(lambda: None, Calls(), Meter(()))
    alive: list[weakref.ref[Handle]] = []

    def command(items: Sequence[int] = ()) -> list[int]:
        handle = Handle()
        alive.append(weakref.ref(handle))
        raise ValueError(str(handle))

    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            group.run(command)
        with contextlib.suppress(ValueError):
            group.run_merged("q", [1], command)
        assert [ref() for ref in alive] == [None, None]
    finally:
        gc.enable()


def test_a_failed_sync_fails_everyone_it_was_to_cover() -> None:
    def broken() -> None:
        raise StorageError("no disk")

    with pytest.raises(StorageError, match="no disk"):
        GroupCommit(broken, Calls(), Meter(())).run(lambda: 1)


def test_an_interrupted_leader_raises_and_the_others_are_told_and_go_on() -> None:
    disk = Disk()
    group = GroupCommit(disk.sync, Calls(), Meter(()))
    first, _ = in_thread(lambda: group.run(lambda: 0))
    disk.entered.acquire()

    def interrupted() -> None:
        raise KeyboardInterrupt

    leader, leader_answers = in_thread(lambda: group.run(interrupted))
    wait_for(group, 1)
    follower, follower_answers = in_thread(lambda: group.run(lambda: 1))
    wait_for(group, 2)
    disk.go.release(3)
    for thread in (first, leader, follower):
        thread.join()
    assert isinstance(leader_answers[0], KeyboardInterrupt)
    assert isinstance(follower_answers[0], BackendUnavailable)
    assert group.run(lambda: 3) == 3


# Merged commands


class Batches:
    """A command that answers item by item, and remembers what it was run on."""

    def __init__(self) -> None:
        self.run_on: list[list[int]] = []

    def run(self, items: Sequence[int]) -> list[int]:
        self.run_on.append(list(items))
        if 13 in items:
            raise ValueError("13 is not liked")
        if 99 in items:
            raise StorageFull("no room")
        return [item * 10 for item in items]


def merged(batches: Batches, *calls: tuple[str | None, list[int]]) -> list[object]:
    """The answers of callers that wait together, in this order."""
    disk = Disk()
    group = GroupCommit(disk.sync, Calls(), Meter(()))
    first, _ = in_thread(lambda: group.run(lambda: 0))
    disk.entered.acquire()
    waiting = []
    for place, (kind, items) in enumerate(calls, start=1):
        alone = partial(batches.run, items)
        waiting.append(
            in_thread(
                partial(group.run_merged, kind, items, batches.run) if kind else partial(group.run, alone)
            )
        )
        wait_for(group, place)
    disk.go.release(2)
    for thread, _ in [(first, None), *waiting]:
        thread.join()
    assert disk.syncs == 2
    return [answers[0] for _, answers in waiting]


def test_neighbours_of_a_kind_are_run_as_one_and_each_has_its_own_answers() -> None:
    batches = Batches()
    assert merged(batches, ("q", [1]), ("q", [2, 3]), ("q", []), ("q", [4])) == [[10], [20, 30], [], [40]]
    assert batches.run_on == [[1, 2, 3, 4]]


def test_nobody_is_run_before_those_who_came_earlier() -> None:
    batches = Batches()
    calls = [("q", [1]), ("other", [2]), ("q", [3]), (None, [4]), ("q", [5]), ("q", [6])]
    assert merged(batches, *calls) == [[10], [20], [30], [40], [50], [60]]
    assert batches.run_on == [[1], [2], [3], [4], [5, 6]]


def test_a_caller_whose_items_cannot_be_run_does_not_take_the_others_along() -> None:
    good, bad, other = merged(Batches(), ("q", [1]), ("q", [13]), ("q", [2]))
    assert (good, other) == ([10], [20])
    assert isinstance(bad, ValueError)


def test_a_store_that_fails_is_not_tried_again_for_each_of_them() -> None:
    batches = Batches()
    assert {type(answer) for answer in merged(batches, ("q", [1]), ("q", [99]))} == {StorageFull}
    assert batches.run_on == [[1, 99]]
