"""Stores of every released format open, hold what they held, and are worked on further."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import penstock
from penstock import Entry, ManualClock, MessageNotFound, Penstock
from tests.golden.contents import STATE_KEY, WORLD, contents

FOLDER = Path(__file__).parent
VERSIONS = sorted(file.name.removesuffix(".tar.gz") for file in FOLDER.glob("v*.tar.gz"))
LARGEST_BYTES = 200_000


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def expected(version: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode((FOLDER / f"{version}.json").read_bytes())
    return found


@pytest.fixture
def store(version: str, tmp_path: Path) -> Path:
    with tarfile.open(FOLDER / f"{version}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


@pytest.fixture
def clock(expected: dict[str, Any]) -> ManualClock:
    """The time at which the store was closed."""
    return ManualClock(expected["now_ns"])


@pytest.fixture
def system(store: Path, clock: ManualClock) -> Iterator[Penstock]:
    with penstock.open(store, clock=clock, rng=Random(3)) as system:
        yield system
        report = system.check()
        assert report.ok, report.problems


def test_there_is_a_golden_store_of_the_current_format_and_it_is_small() -> None:
    current = penstock.open("memory:").info().default.format_version
    assert f"v{current}" in VERSIONS
    assert all((FOLDER / f"{version}.tar.gz").stat().st_size < LARGEST_BYTES for version in VERSIONS)


def test_a_golden_store_opens_and_checks(system: Penstock) -> None:
    report = system.check()
    assert report.ok, report.problems


def test_a_golden_store_holds_what_it_held(system: Penstock, expected: dict[str, Any]) -> None:
    found = contents(system)
    for part in found:
        assert_holds(found[part], expected[part], part)


def assert_holds(found: Any, expected: Any, where: str) -> None:
    """The same, but for fields that a later version has added."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert key in found, f"{where}: {key} is missing"
            assert_holds(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, value in enumerate(expected):
            assert_holds(found[number], value, f"{where}[{number}]")
    else:
        assert found == expected, where


def test_a_golden_store_has_a_message_in_every_state(system: Penstock) -> None:
    queue = system.queue("every state")
    payloads = {
        state: [m.payload for m in queue.iter(state)] for state in ("delayed", "leased", "done", "dead")
    }
    assert payloads["delayed"] == [b"nacked", b"delayed"]
    assert payloads["leased"] == [b"leased"]
    assert payloads["done"] == [b"done"]
    assert payloads["dead"] == [b"dead"]
    assert [message.payload for message in queue.peek()] == [b"ready", b"released"]


def test_everything_waiting_in_a_golden_store_can_be_leased_and_acked(
    system: Penstock, clock: ManualClock
) -> None:
    for settings in system.queues():
        queue = system.queue(settings.name)
        while deliveries := queue.lease(100):
            assert all(outcome.ok for outcome in queue.ack([d.receipt for d in deliveries]))
        assert queue.stats().ready == 0 or settings.fifo
    assert [message.payload for message in system.queue("fifo").peek()] == [b"1", b"2"]


def test_leases_delays_and_retentions_of_a_golden_store_end(system: Penstock, clock: ManualClock) -> None:
    queue = system.queue("every state")
    before = {message.payload for message in queue.peek()}
    clock.advance(3600)
    assert {message.payload for message in queue.peek()} - before == {b"nacked", b"delayed"}
    clock.advance(47 * 3600)
    system.sweep()
    assert b"leased" in {message.payload for message in queue.peek(100)}
    assert queue.stats().done == 0
    clock.advance(7 * 86_400)
    system.sweep()
    assert queue.stats().dead == 0


def test_a_lease_of_a_golden_store_can_be_taken_back_and_acked(system: Penstock, clock: ManualClock) -> None:
    queue = system.queue("fifo")
    assert [(message.payload, message.consumer) for message in queue.iter("leased")] == [(b"0", "worker-4")]
    clock.advance(86_401)
    again = queue.lease(10)
    assert sorted((d.payload, d.fairness_key, d.attempts) for d in again) == [(b"0", "", 2), (b"0", "k", 1)]
    assert all(outcome.ok for outcome in queue.ack([delivery.receipt for delivery in again]))


def test_a_golden_store_remembers_dedup_ids_and_own_ids(system: Penstock) -> None:
    queue = system.queue("ready/Ω: of all kinds")
    first = next(message.id for message in queue.iter() if message.dedup_id == "order-17")
    assert queue.enqueue(b"twice", dedup_id="order-17") == first
    own = "0190aaaa-bbbb-7ccc-8ddd-eeeeffff0001"
    assert queue.enqueue(b"again", id=own) == own
    assert queue.get(own).payload == b"own id, replaced"


def test_dead_letters_of_a_golden_store_can_be_redriven(system: Penstock) -> None:
    assert system.queue("graveyard").redrive() == 1
    assert [m.payload for m in system.queue("mortal").peek()] == [b"alive", b"buried"]
    assert system.queue("every state").redrive() == 1


def test_a_required_cursor_of_a_golden_store_still_holds_a_body(system: Penstock) -> None:
    queue = system.queue("archived")
    assert queue.stats().held_bodies == 1
    cursor = queue.cursor("archive")
    assert cursor.required
    assert [event.kind for event in cursor.read()] == ["leased", "acked"]
    cursor.commit(4)
    system.sweep()
    assert queue.stats().held_bodies == 0


def test_worlds_and_state_of_a_golden_store_go_on(system: Penstock) -> None:
    world = system.journal(WORLD)
    assert [entry.vector for entry in world.scan(kinds=["embedding"])] == [[0.5, -1.25, 3.0]]
    (added,) = world.append([Entry("note", b"later")])
    assert [(entry.id, entry.seq) for entry in world.scan(after=3)] == [(added, 4)]
    assert system.state.get(STATE_KEY) == b"dark"


def test_the_job_of_a_golden_store_is_finished(system: Penstock, store: Path) -> None:
    assert "dropped" not in [settings.name for settings in system.queues()]
    while system.sweep():
        pass
    assert not [item for item in system.due(limit=10_000) if item.queue == "dropped"]
    queue = system.create_queue("dropped")
    with pytest.raises(MessageNotFound):
        queue.get("0190aaaa-bbbb-7ccc-8ddd-eeeeffff0001")
    assert queue.stats().last_seq == 0


def test_it_can_be_encrypted_and_holds_what_it_held(
    store: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(store, clock=clock, rng=Random(3)) as system:
        before = contents(system)
    monkeypatch.setenv("PENSTOCK_STORAGE_ENCRYPTION_ENABLED", "true")
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", bytes(range(32)).hex())
    with penstock.open(store, clock=clock, rng=Random(3)) as system:
        assert system.rekey().rewritten > 0
    with penstock.open(store, clock=clock, rng=Random(3)) as system:
        assert contents(system) == before
        assert system.check().problems == []


def test_a_fifo_queue_of_a_golden_store_can_have_a_delay(system: Penstock, clock: ManualClock) -> None:
    queue = system.queue("fifo")
    before = queue.stats()
    system.update_queue("fifo", delay_s=60)
    queue.enqueue(b"late", fairness_key="late")
    assert (queue.stats().delayed, queue.stats().ready) == (before.delayed + 1, before.ready)
    clock.advance(60)
    assert b"late" in [delivery.payload for delivery in queue.lease(100)]
