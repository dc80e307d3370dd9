"""A power cut takes what was not synced: simulated, at every kind of step, on a store in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.engine import Durability
from penstock.backends.embedded.keys import SPACES
from penstock.clock import ManualClock
from penstock.kv.memory import Faults, MemoryStore, SimulatedCrash
from tests.crash.load import THREADS, Worker, set_up
from tests.crash.oracle import Oracle, prefix_complaints
from tests.crash.record import ListLog
from tests.crash.rig import Campaign, campaigns, sweep_all
from tests.crash.system import BackendSystem
from tests.crash.truth import Truth, read_truth

TEST = Path(__file__).stem
STEPS_PER_ROUND = 300
#: Power cuts of one moment: each loses another part of what was not synced.
CUTS = 2


@dataclass
class Machine:
    """A store, the clock on the wall, and the load of several workers in one thread."""

    rng: Random
    durability: Durability
    clock: ManualClock = field(default_factory=ManualClock)
    store: MemoryStore = field(default_factory=lambda: MemoryStore(SPACES, Faults()))
    logs: list[ListLog] = field(default_factory=list)

    def open(self, store: MemoryStore) -> BackendSystem:
        backend = EmbeddedBackend(
            store,
            engine_name="memory",
            durability=self.durability,
            clock=self.clock,
            rng=Random(self.rng.getrandbits(64)),
        )
        return BackendSystem(backend)

    def run_until_it_dies(self, round_number: int) -> None:
        """At a write or a sync, or between two calls."""
        rng = self.rng
        faults = Faults(crash_at_step=rng.randint(1, STEPS_PER_ROUND))
        faults.crash_moment = rng.choice(["before", "after"])
        self.store = self.store.reopen(faults)
        self.logs = [ListLog() for _ in range(THREADS + 1)]
        try:
            system = self.open(self.store)
            set_up(system, self.logs[THREADS])
            workers = [
                Worker(system, log, rng, round_number, thread, heavy=False, waits=False)
                for thread, log in enumerate(self.logs[:THREADS])
            ]
            while faults.steps < STEPS_PER_ROUND:
                rng.choice(workers).step()
                self.clock.advance(rng.choice([0, 0, 0.001, 0.01, 0.1]))
        except SimulatedCrash:
            pass

    def read(self, store: MemoryStore, *, sweeps: bool = False) -> Truth:
        """What a copy of the store holds; the copy goes with it."""
        system = self.open(store)
        if sweeps:
            sweep_all(system)
        return read_truth(system)


def synced_round(campaign: Campaign, machine: Machine) -> None:
    machine.run_until_it_dies(campaign.rounds)
    oracle = campaign.oracle
    for log in machine.logs:
        oracle.read(log.records)
    for cut in range(CUTS):
        remains = machine.store.crash(machine.rng)
        sweeps = machine.rng.random() < 0.5
        truth = machine.read(remains, sweeps=sweeps)
        campaign.insist(oracle.judge(truth))
        if cut == CUTS - 1:
            oracle.settle(truth, swept=sweeps)
            machine.store = remains.reopen(Faults())


def unsynced_round(campaign: Campaign, machine: Machine) -> None:
    machine.run_until_it_dies(campaign.rounds)
    machine.clock.advance(0.001)
    for log in machine.logs:
        campaign.oracle.read(log.records)
    whole = machine.read(machine.store.reopen())
    campaign.insist(campaign.oracle.judge(whole))  # A process that dies alone takes nothing with it.
    for cut in range(CUTS):
        remains = machine.store.crash(machine.rng)
        truth = machine.read(remains.reopen())
        campaign.insist(prefix_complaints(truth, whole, machine.clock.now_ns()))
        if cut == CUTS - 1:
            campaign.oracle.rebase(truth)
            machine.store = remains


def run_campaign(
    seed: int, rounds: int, durability: Durability, folder: Path, request: pytest.FixtureRequest
) -> None:
    campaign = Campaign(seed, folder, TEST)
    machine = Machine(campaign.rng, durability)
    for _ in range(rounds):
        campaign.rounds += 1
        if durability == "sync":
            synced_round(campaign, machine)
        else:
            unsynced_round(campaign, machine)
        if campaign.rng.random() < 0.1:
            campaign.count_what_was_told()
            campaign.oracle, campaign.stores = Oracle(), campaign.stores + 1
            machine = Machine(campaign.rng, durability)
    request.node.user_properties.append(("crash campaign", campaign.report()))


@pytest.mark.parametrize(("seed", "rounds"), campaigns(short=(2, 10), soak=(10, 30)))
def test_a_power_cut_takes_nothing_that_was_acknowledged_in_sync_mode(
    seed: int, rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_campaign(seed, rounds, "sync", tmp_path, request)


@pytest.mark.parametrize(("seed", "rounds"), campaigns(short=(1, 10), soak=(4, 30)))
def test_what_a_power_cut_leaves_in_os_mode_is_a_prefix_without_holes(
    seed: int, rounds: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_campaign(seed, rounds, "os", tmp_path, request)
