"""Message, lease, expiry and event are one write: whatever fails, all of it is there or none.

Every operation is run with each of its writes failing in turn, and with the process dying before and after
each step. What is left must be, byte for byte, what an undisturbed run had after as many writes.
"""

from __future__ import annotations

import contextlib
import random
from typing import Literal

import pytest

from penstock import StorageError, StorageFull
from penstock.backends.embedded import keys
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.keys import Meta
from penstock.kv.memory import SimulatedCrash
from tests.unit.atomicity.operations import CASES, Content, arranged, content, opened, summary, undisturbed


@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_one_write(name: str) -> None:
    run = undisturbed(CASES[name])
    assert run.writes == CASES[name].writes or (CASES[name].writes is None and run.writes > 1)
    assert run.contents[0] != run.contents[-1]


@pytest.mark.parametrize("name", CASES)
def test_a_failed_write_surfaces_and_changes_nothing_and_a_second_try_succeeds(name: str) -> None:
    case = CASES[name]
    run = undisturbed(case)
    for failing in range(run.writes):
        system, given = arranged(case)
        system.faults.fail_write_at = system.faults.writes + failing + 1
        if (name, failing) == ("delete a queue", 1):
            case.act(system, given)  # The queue is gone by the first write; its rows are for the sweep.
            system.backend.sweep(100)
        else:
            with pytest.raises(StorageFull):
                case.act(system, given)
            expected = run.contents[failing]
            if name.endswith("many") and failing == 1:
                expected = without_jobs(expected)  # Nothing of it was done: it is withdrawn.
            assert content(system.store) == expected, f"after {failing} of {run.writes} writes"
            assert system.backend.check().problems == []
            case.act(system, given)
        assert system.backend.check().problems == []
        assert summary(system.backend) == run.achieved


def without_jobs(rows: Content) -> Content:
    job = keys.meta(Meta.JOB)
    return {**rows, "meta": [row for row in rows["meta"] if not row[0].startswith(job)]}


@pytest.mark.parametrize("name", CASES)
def test_a_store_that_refuses_writes_after_a_failed_one_works_again_when_reopened(name: str) -> None:
    case = CASES[name]
    run = undisturbed(case)
    for failing in range(run.writes):
        system, given = arranged(case)
        system.faults.recovers = False
        system.faults.fail_write_at = system.faults.writes + failing + 1
        if (name, failing) == ("delete a queue", 1):
            case.act(system, given)
        else:
            with pytest.raises(StorageFull):
                case.act(system, given)
            if name == "sweep":  # It takes the queues in turn: the one that failed may come last now.
                with contextlib.suppress(StorageError):
                    case.act(system, given)
            with pytest.raises(StorageError):
                case.act(system, given)
        store = system.store.reopen()
        assert content(store) == run.contents[failing]
        system.backend = opened(store, system.clock)
        assert system.backend.check().problems == []
        if failing == 0:
            case.act(system, given)
            assert summary(system.backend) == run.achieved


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", CASES)
def test_a_process_that_dies_leaves_the_store_as_it_was_after_some_whole_writes(
    name: str, moment: Literal["before", "after"]
) -> None:
    case = CASES[name]
    run = undisturbed(case)
    for step in range(run.steps):
        system, given = arranged(case)
        system.faults.crash_at_step = system.faults.steps + step + 1
        system.faults.crash_moment = moment
        with pytest.raises(SimulatedCrash):
            case.act(system, given)
        store = system.store.reopen()
        assert content(store) in run.contents
        backend = opened(store, system.clock)
        assert backend.check().problems == []
        finish(backend)
        assert backend.check().problems == []


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", CASES)
def test_a_power_cut_leaves_the_store_as_it_was_after_some_whole_writes(
    name: str, moment: Literal["before", "after"]
) -> None:
    case = CASES[name]
    run = undisturbed(case)
    for step in range(run.steps):
        system, given = arranged(case)
        system.faults.crash_at_step = system.faults.steps + step + 1
        system.faults.crash_moment = moment
        with pytest.raises(SimulatedCrash):
            case.act(system, given)
        for seed in range(3):
            store = system.store.crash(random.Random(seed))
            # What nobody was told of may be gone as well: the releases of a sweep before, say.
            assert content(store) in run.history
            assert opened(store, system.clock).check().problems == []


#: Time does the same again when it is asked: nobody is told of it, so nobody waits for the disk.
UNPROMISED = {"sweep", "look at what time has changed"}


@pytest.mark.parametrize("name", sorted(set(CASES) - UNPROMISED))
def test_what_an_operation_has_answered_survives_a_power_cut(name: str) -> None:
    case = CASES[name]
    run = undisturbed(case)
    system, given = arranged(case)
    case.act(system, given)
    for seed in range(3):
        store = system.store.crash(random.Random(seed))
        if name == "delete a queue":  # The dropping of its rows is housekeeping.
            assert content(store) in run.contents[1:]
        else:
            assert content(store) == run.contents[-1]
        backend = opened(store, system.clock)
        assert backend.check().problems == []
        assert summary(backend) == run.achieved


def finish(backend: EmbeddedBackend) -> None:
    """Whatever a crash left half done is done by sweeping."""
    while backend.sweep(100):
        pass


@pytest.mark.parametrize("name", ["move many", "redrive many", "purge many", "delete a queue"])
def test_a_bulk_operation_that_a_crash_cut_short_is_finished_by_the_sweep(name: str) -> None:
    case = CASES[name]
    run = undisturbed(case)
    for step in range(2, run.steps):
        system, given = arranged(case)
        system.faults.crash_at_step = system.faults.steps + step
        with pytest.raises(SimulatedCrash):
            case.act(system, given)
        backend = opened(system.store.reopen(), system.clock)
        finish(backend)
        assert summary(backend) == run.achieved
        assert backend.check().problems == []
