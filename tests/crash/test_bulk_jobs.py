"""Bulk operations that a crash cuts short are finished by the next sweep: exactly, and only once."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import penstock
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.keys import SPACES
from penstock.clock import ManualClock
from penstock.kv.memory import Faults, MemoryStore, SimulatedCrash
from tests.crash import child
from tests.crash.bulk import HELD, LIMIT, SCENARIOS, add_later, complaints, payloads
from tests.crash.child import Order
from tests.crash.clocks import now_clock
from tests.crash.rig import Zygote, sweep_all
from tests.crash.system import BackendSystem

#: Writes and syncs of the shortest operation: the job, and its slices of messages.
STEPS = 5


def open_memory(store: MemoryStore, clock: ManualClock, rng: Random) -> BackendSystem:
    backend = EmbeddedBackend(store, engine_name="memory", clock=clock, rng=Random(rng.getrandbits(64)))
    return BackendSystem(backend)


@pytest.mark.parametrize("what", SCENARIOS)
def test_a_bulk_operation_cut_short_at_any_step_is_finished_by_the_sweep(what: str) -> None:
    scenario, clock, rng = SCENARIOS[what], ManualClock(), Random(what)
    prepared = MemoryStore(SPACES, Faults())
    scenario.prepare(open_memory(prepared, clock, rng))
    step, finished = 0, False
    while not finished:
        step += 1
        power_cut = rng.random() < 0.5
        store = prepared.reopen(Faults(crash_at_step=step, crash_moment="after"))
        try:
            scenario.run(open_memory(store, clock, rng))
            finished = True
        except SimulatedCrash:
            pass
        # The sweep that takes it up is cut short too, anywhere.
        faults = Faults(crash_at_step=rng.randint(1, STEPS))
        second = store.crash(rng, faults) if power_cut else store.reopen(faults)
        with contextlib.suppress(SimulatedCrash):
            sweep_all(open_memory(second, clock, rng))
        system = open_memory(second.crash(rng) if power_cut else second.reopen(), clock, rng)
        later = add_later(system, scenario) if step % 2 else {}
        sweep_all(system)
        # Cut short before its job was stored, or with the power: nothing of it has happened.
        found = complaints(system, what, later, [True] if finished else [True, False])
        assert not found, f"killed at step {step}: {found}"
    assert step > STEPS


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store for each operation, made once."""
    folders = {}
    for what, scenario in SCENARIOS.items():
        folders[what] = tmp_path_factory.mktemp(what) / "store"
        with penstock.open(f"rocksdb:{folders[what]}?durability=os", clock=now_clock()) as system:
            scenario.prepare(system)
    return folders


def kill_and_resume(what: str, step: int, rng: Random, prepared: Path, folder: Path) -> bool:
    """Whether it was killed: there may be fewer steps than that."""
    scenario, store = SCENARIOS[what], folder / f"store-{step}"
    shutil.copytree(prepared, store)
    killed = []
    with Zygote() as zygote:
        for bulk, kill_at_step in ((what, step), ("sweep", rng.randint(1, STEPS))):
            order = Order(
                path=str(store), logs=str(folder), seed=0, round=0, bulk=bulk, kill_at_step=kill_at_step
            )
            status = zygote.run(order, 60, once_open=False)
            assert status in (signal.SIGKILL, child.ENDED << 8), f"{bulk} ended with {status}"
            killed.append(status == signal.SIGKILL)
    with penstock.open(store, clock=now_clock()) as system:
        later = add_later(system, scenario) if killed[0] else {}
        sweep_all(system)
        found = complaints(system, what, later, [True, False] if killed[0] else [True])
    assert not found, f"killed at step {step}: {found}"
    shutil.rmtree(store)
    return killed[0]


@pytest.mark.parametrize("what", SCENARIOS)
def test_a_process_killed_in_a_bulk_operation_and_again_in_its_sweep_leaves_nothing_half_done(
    what: str, prepared: dict[str, Path], tmp_path: Path
) -> None:
    rng = Random(what)
    for step in rng.sample(range(1, STEPS + 1), 2):
        assert kill_and_resume(what, step, rng, prepared[what], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("what", SCENARIOS)
def test_a_process_killed_at_each_step_of_a_bulk_operation_leaves_nothing_half_done(
    what: str, prepared: dict[str, Path], tmp_path: Path
) -> None:
    rng, step = Random(what), 1
    while kill_and_resume(what, step, rng, prepared[what], tmp_path):
        step += 1
    assert step > STEPS


class Interrupted:
    """A store in memory whose bulk operation died after its first slice."""

    def __init__(self, what: str) -> None:
        self.clock, self.rng = ManualClock(), Random(what)
        self.faults = Faults()
        self.store = MemoryStore(SPACES, self.faults)
        self.system = open_memory(self.store, self.clock, self.rng)

    def run(self, command: Callable[[], object], writes: int) -> BackendSystem:
        """The system after the crash: the first so many writes of the command happened."""
        self.faults.crash_at_step, self.faults.crash_moment = self.faults.steps + writes, "after"
        with pytest.raises(SimulatedCrash):
            command()
        return open_memory(self.store.reopen(), self.clock, self.rng)


def test_many_unfinished_jobs_do_not_make_a_redrive_exceed_its_limit() -> None:
    interrupted = Interrupted("many jobs")
    before = interrupted.system
    SCENARIOS["redrive-here"].prepare(before)
    for number in range(70):
        before.create_queue(f"temporary-{number}")
        before.replace_queues([s for s in before.queues() if s.name == "q"])
    system = interrupted.run(lambda: before.queue("q").redrive(LIMIT), writes=3)
    assert 0 < system.queue("q").stats().ready < LIMIT
    sweep_all(system)
    assert system.queue("q").stats().ready == LIMIT


def test_a_move_that_is_taken_up_leaves_alone_what_came_later_under_the_same_id() -> None:
    interrupted = Interrupted("same id")
    before = interrupted.system
    SCENARIOS["move"].prepare(before)
    ids = [message.id for message in before.queue("q").iter("ready")]
    system = interrupted.run(lambda: before.queue("q").move(ids, "target"), writes=3)
    queue = system.queue("q")
    assert 0 < system.queue("target").length() < len(ids)
    interrupted.clock.advance(1)
    queue.purge()
    queue.enqueue(b"later", id=ids[-1])
    sweep_all(system)
    assert queue.get(ids[-1]).payload == b"later"
    assert system.check().ok


def test_a_move_whose_target_is_deleted_ends_and_holds_nothing_up() -> None:
    interrupted = Interrupted("no target")
    before = interrupted.system
    SCENARIOS["move"].prepare(before)
    ids = [message.id for message in before.queue("q").iter("ready")]
    system = interrupted.run(lambda: before.queue("q").move(ids, "target"), writes=3)
    system.delete_queue("target")
    sweep_all(system)
    assert system.queue("q").length() > HELD
    assert system.check().ok


def test_sweeps_beside_a_redrive_do_not_redrive_more_than_it_says() -> None:
    system = Interrupted("beside").system
    SCENARIOS["redrive-here"].prepare(system)
    over = threading.Event()

    def sweep() -> None:
        while not over.is_set():
            system.sweep(1)

    sweepers = [threading.Thread(target=sweep) for _ in range(3)]
    for sweeper in sweepers:
        sweeper.start()
    redriven = 0
    for number in range(4):
        system.create_queue(f"dropped-{number}").enqueue_many(payloads(HELD, "dropped"))
        system.delete_queue(f"dropped-{number}")
        redriven += system.queue("q").redrive(550)
    over.set()
    for sweeper in sweepers:
        sweeper.join()
    assert system.queue("q").stats().ready == redriven == 4 * 550
    assert system.check().ok
