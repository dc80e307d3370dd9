"""What happens to a message while a script thinks about it: the lease decides whether the verdict counts."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import penstock
from penstock import ManualClock, NewMessage, Penstock, Queue, QueueSettings, StorageFull
from penstock.backends.embedded import engine, failures, opening, sweep, undecided
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.keys import SPACES
from penstock.clock import to_ns
from penstock.codec.answer import decoder
from penstock.hooks.scripts import Script
from penstock.kv.memory import Faults, MemoryStore
from penstock.message import EnqueueResult
from penstock.testing.folding import prove_journal
from penstock.testing.harness import sweep_all
from tests.hooks.running import until

#: Lets the test act while the script runs: it asks for a state value.
DROPS = "function on_failure(message) penstock.get('pause') return 'drop' end"
LEASE_S = 10.0


class Rig:
    """A store whose scripts stop to let something happen."""

    def __init__(self, target: str) -> None:
        self.clock = ManualClock()
        self.ps = penstock.open(target, clock=self.clock, rng=random.Random(1))
        self.q = self.ps.create_queue("q", on_failure=DROPS, lease_s=LEASE_S)
        self.backend = cast(Any, self.ps._default)
        self.meanwhile: Callable[[], object] = lambda: None
        self.asked = 0
        self.backend._hooking.scripts._read_state = self._read

    def _read(self, key: str) -> bytes | None:
        self.asked += 1
        act, self.meanwhile = self.meanwhile, lambda: None
        # As another thread would: whatever this one holds, that one would wait for.
        thread = threading.Thread(target=act)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), "a lock is held while a script runs"
        return None

    def close(self) -> None:
        report = self.ps.check()
        assert report.ok, report.problems
        for settings in self.ps.queues():
            prove_journal(self.ps.queue(settings.name))
        self.ps.close()


@pytest.fixture(params=["memory", "rocksdb"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    target = "memory:" if request.param == "memory" else f"rocksdb:{tmp_path}/store?durability=sync"
    made = Rig(target)
    yield made
    made.close()


def fail(rig: Rig, receipt: str, how: str) -> list[str | None]:
    """Let a delivery fail; what its outcome was."""
    if how == "expiry":
        rig.clock.advance(LEASE_S)
        sweep_all(rig.ps)
        return [None]
    outcomes = rig.q.nack([receipt]) if how == "nack" else rig.q.reject([receipt])
    return [None if one.ok else type(one.error).__name__ for one in outcomes]


WAYS = ["nack", "reject", "expiry"]


@pytest.mark.parametrize("how", WAYS)
def test_nothing_is_locked_while_a_script_runs(rig: Rig, how: str) -> None:
    other = rig.ps.create_queue("other")
    rig.q.enqueue(b"x")
    (delivery,) = rig.q.lease()
    done: list[object] = []

    def work() -> None:
        other.enqueue(b"y")
        done.extend(other.lease())
        rig.ps.state.put("k", b"v")
        done.append(rig.q.stats())

    rig.meanwhile = work
    assert fail(rig, delivery.receipt, how) == [None]
    assert len(done) == 2
    assert rig.q.length() == 0


@pytest.mark.parametrize("how", WAYS)
def test_a_message_that_is_acked_meanwhile_is_done(rig: Rig, how: str) -> None:
    rig.q.enqueue(b"x")
    (delivery,) = rig.q.lease()
    rig.meanwhile = lambda: rig.q.ack([delivery.receipt])
    assert fail(rig, delivery.receipt, how) == [None if how == "expiry" else "StaleReceipt"]
    assert [str(event.kind) for event in rig.q.events()] == ["enqueued", "leased", "acked"]


@pytest.mark.parametrize("how", WAYS)
def test_a_message_that_fails_meanwhile_fails_once(rig: Rig, how: str) -> None:
    rig.q.enqueue(b"x")
    (delivery,) = rig.q.lease()
    store = rig.backend._engine

    def also_fails() -> None:
        # As one that asked its script before: with the same lease, and another verdict.
        from penstock.backends.embedded import leases

        with store.lock, store.transaction() as txn:
            leases.nack(txn, store.queue("q"), [delivery.receipt], 0, "")

    rig.meanwhile = also_fails
    assert fail(rig, delivery.receipt, how) == [None if how == "expiry" else "StaleReceipt"]
    assert rig.q.stats().ready == 1
    assert rig.q.stats().failed_total == 1


def test_a_lease_that_is_extended_meanwhile_goes_on(rig: Rig) -> None:
    rig.q.enqueue(b"x")
    (delivery,) = rig.q.lease()
    rig.meanwhile = lambda: rig.q.extend([delivery.receipt], 60)
    fail(rig, delivery.receipt, "expiry")
    assert rig.q.stats().leased == 1
    assert rig.q.ack([delivery.receipt])[0].ok
    rig.clock.advance(100)
    sweep_all(rig.ps)


def test_a_nack_counts_though_its_lease_was_extended_meanwhile(rig: Rig) -> None:
    rig.q.enqueue(b"x")
    (delivery,) = rig.q.lease()
    rig.meanwhile = lambda: rig.q.extend([delivery.receipt], 60)
    assert fail(rig, delivery.receipt, "nack") == [None]
    assert rig.q.length() == 0


@pytest.mark.parametrize("how", WAYS)
def test_a_message_that_is_purged_meanwhile_stays_gone(rig: Rig, how: str) -> None:
    rig.q.enqueue(b"x")
    (delivery,) = rig.q.lease()
    rig.meanwhile = lambda: rig.q.purge("leased")
    fail(rig, delivery.receipt, how)
    assert [str(event.kind) for event in rig.q.events()][-1] == "purged"


@pytest.mark.parametrize("how", ["nack", "expiry"])
def test_a_queue_that_is_deleted_and_made_anew_meanwhile_is_another(rig: Rig, how: str) -> None:
    rig.q.enqueue(b"x")
    (delivery,) = rig.q.lease()

    def anew() -> None:
        rig.ps.delete_queue("q")
        rig.ps.create_queue("q").enqueue(b"other")

    rig.meanwhile = anew
    assert fail(rig, delivery.receipt, how) == [None if how == "expiry" else "StaleReceipt"]
    assert [str(event.kind) for event in rig.q.events()] == ["enqueued"]


def test_a_queue_whose_script_goes_meanwhile_still_hears_this_verdict(rig: Rig) -> None:
    rig.q.enqueue(b"x")
    (delivery,) = rig.q.lease()
    rig.meanwhile = lambda: rig.ps.update_queue("q", on_failure=None)
    assert fail(rig, delivery.receipt, "expiry") == [None]
    assert rig.q.length() == 0


def test_a_lease_call_and_a_sweep_that_meet_the_same_end_apply_it_once(rig: Rig) -> None:
    rig.q.enqueue_many([NewMessage(b"%d" % n) for n in range(5)])
    rig.q.lease(5)
    rig.clock.advance(LEASE_S)
    threads = [threading.Thread(target=rig.q.lease, args=(5,)) for _ in range(3)]
    threads.append(threading.Thread(target=sweep_all, args=(rig.ps,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    kinds = [str(event.kind) for event in rig.q.events()]
    assert kinds.count("dropped") == 5
    assert rig.q.length() == 0


def test_more_leases_than_a_slice_holds_end_in_one_lease_call(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With those of a queue without a script before, between and behind them."""
    monkeypatch.setattr(sweep, "SLICE", 7)
    monkeypatch.setattr(failures, "SCRIPTED_SLICE", 4)
    rig.ps.update_queue("q", on_failure="function on_failure() return 'retry' end")
    plain = rig.ps.create_queue("plain", lease_s=LEASE_S)
    for q, count in ((plain, 20), (rig.q, 15), (plain, 9), (rig.q, 15)):
        q.enqueue_many([NewMessage()] * count)
        assert len(q.lease(count)) == count
        rig.clock.advance(0.001)
    rig.clock.advance(LEASE_S)
    assert len(rig.q.lease(100)) == 30
    assert len(plain.lease(100)) == 29


RETRIES = "function on_failure() penstock.get('pause') return 'retry' end"


def with_many_ended(rig: Rig, monkeypatch: pytest.MonkeyPatch, count: int = 50) -> Queue:
    """More ended leases than are kept, at one time and more than a slice; another queue's behind them."""
    monkeypatch.setattr(sweep, "SLICE", 7)
    monkeypatch.setattr(failures, "SCRIPTED_SLICE", 4)
    monkeypatch.setattr(undecided, "MOST_KEPT", 10)
    rig.ps.update_queue("q", on_failure=RETRIES)
    rig.q.enqueue_many([NewMessage(b"%d" % n) for n in range(count)])
    assert len(rig.q.lease(count)) == count
    rig.clock.advance(0.001)
    other = rig.ps.create_queue("other", lease_s=LEASE_S)
    other.enqueue(b"other")
    assert len(other.lease()) == 1
    rig.clock.advance(LEASE_S)
    return other


def test_however_many_wait_for_a_script_other_queues_do_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = with_many_ended(rig, monkeypatch)
    assert [delivery.payload for delivery in other.lease()] == [b"other"]
    assert rig.asked == 0
    assert len(rig.q.lease(100)) == 50
    assert rig.q.stats().failed_total == 50


def test_a_consumer_of_another_queue_sleeps_while_a_script_decides(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = with_many_ended(rig, monkeypatch)
    assert len(other.lease()) == 1
    found: list[Any] = []
    asleep: list[bool] = []

    def poll() -> None:
        thread = threading.Thread(target=lambda: found.extend(other.lease(wait_s=100)))
        thread.start()
        until(lambda: rig.clock.waiters() == 1)
        asleep.append(True)
        other.enqueue(b"more")
        thread.join(30)

    rig.meanwhile = poll
    sweep_all(rig.ps)
    assert asleep == [True]
    assert [delivery.payload for delivery in found] == [b"more"]
    assert rig.q.stats().ready == 50


def test_what_is_known_of_ended_leases_may_be_forgotten_at_any_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failed write, or when the store is opened again: what is written down of them is enough."""
    monkeypatch.setattr(engine, "DUE_HINT_EVERY", 1)
    with_many_ended(rig, monkeypatch)
    for _ in range(200):
        if not rig.backend.sweep(1):
            break
        rig.backend.engine.load_due_hints()
    sweep_all(rig.ps)
    assert (rig.q.stats().ready, rig.q.stats().failed_total) == (50, 50)


def test_a_clock_that_is_set_back_ends_no_lease_twice(rig: Rig) -> None:
    rig.ps.update_queue("q", on_failure=RETRIES)
    other = rig.ps.create_queue("other", lease_s=LEASE_S / 2)
    rig.q.enqueue(b"x")
    other.enqueue_many([NewMessage()] * 2)
    began_ns = rig.clock.now_ns()
    assert len(rig.q.lease()) == 1
    for at_s in (2 * LEASE_S, 0, 3 * LEASE_S):  # Found ended; a lease that ends before it; found again.
        rig.clock.set_ns(began_ns + to_ns(at_s))
        assert len(other.lease()) == 1
    assert [delivery.attempts for delivery in rig.q.lease()] == [2]
    assert rig.q.stats().failed_total == 1


def test_a_consumer_that_waits_is_woken_by_the_end_of_a_lease(rig: Rig) -> None:
    rig.ps.update_queue("q", on_failure="function on_failure() return 'retry', 5 end")
    rig.q.enqueue(b"x")
    rig.q.lease()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(rig.q.lease(wait_s=100)))
    thread.start()
    until(lambda: rig.clock.waiters() == 1)
    rig.clock.advance(LEASE_S)
    until(lambda: rig.q.stats().delayed == 1 and rig.clock.waiters() == 1)
    assert found == []
    rig.clock.advance(5)
    thread.join(60)
    assert [delivery.attempts for delivery in found] == [2]


def test_a_write_that_fails_leaves_the_message_to_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(recovers=True)
    monkeypatch.setattr(opening, "MemoryStore", lambda spaces: MemoryStore(SPACES, faults))
    rig = Rig("memory:")
    rig.q.enqueue_many([NewMessage(b"1"), NewMessage(b"2")])
    first, second = rig.q.lease(2)
    faults.fail_write_at = faults.writes + 1
    with pytest.raises(StorageFull):
        rig.q.nack([first.receipt])
    assert rig.q.stats().leased == 2
    assert rig.q.nack([first.receipt])[0].ok
    rig.clock.advance(LEASE_S)
    faults.fail_write_at = faults.writes + 1
    with pytest.raises(StorageFull):
        rig.q.lease()
    assert rig.q.stats().leased == 1
    assert rig.q.lease() == []
    assert rig.q.stats().leased == 0
    assert not rig.q.ack([second.receipt])[0].ok
    rig.close()


def test_the_answer_of_a_call_that_is_made_again_has_the_refusals_too() -> None:
    """An attached process asks its next owner what became of a call: item by item, in order."""
    with penstock.open("memory:", clock=ManualClock()) as ps:
        q = ps.create_queue(
            "q", on_enqueue="function on_enqueue(m) if m.payload == 'no' then return 'refuse' end end"
        )
        backend = ps._default
        assert isinstance(backend, EmbeddedBackend)
        batch = [NewMessage(b"no"), NewMessage(b"yes"), NewMessage(b"no")]
        with backend.serving(b"c" * 16, 1):
            results = q.enqueue_many(batch)
        raw = backend.answer_of(b"c" * 16, 1)
        assert raw is not None
        kept = decoder(list[EnqueueResult]).decode(raw)
        assert [one.id for one in kept] == [one.id for one in results]
        assert [type(one.error).__name__ for one in kept] == ["InvalidMessage", "NoneType", "InvalidMessage"]
        assert q.length() == 1


FORKED: dict[str, Callable[[Penstock], object]] = {
    "enqueue": lambda ps: ps.queue("q").enqueue(b""),
    "create_queue": lambda ps: ps.create_queue("other", on_enqueue=NOTHING),
    "update_queue": lambda ps: ps.update_queue("q", on_enqueue=NOTHING + " "),
    "replace_queues": lambda ps: ps._default.replace_queues([QueueSettings(name="q", on_failure=DROPS)]),
    "declare_queues": lambda ps: ps._default.declare_queues([QueueSettings(name="q", on_failure=DROPS)]),
    "the helper itself": lambda ps: cast(Any, ps._default)._hooking.scripts.check(
        Script("q", "on_enqueue", NOTHING)
    ),
}
NOTHING = "function on_enqueue() end"


@pytest.mark.parametrize("call", FORKED)
@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_process_does_not_use_its_parents_helper(call: str, busy: bool) -> None:
    """Nor does it wait for the turn of a thread of its parent's, which it does not have."""
    with penstock.open("memory:") as ps:
        q = ps.create_queue("q", on_enqueue=NOTHING)
        pool = cast(Any, ps._default)._hooking.scripts.pool
        helper = pool.pid
        with pool._lock if busy else contextlib.nullcontext():
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                try:
                    FORKED[call](ps)
                except penstock.StorageError:
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        q.enqueue(b"")
        assert (q.length(), pool.pid) == (1, helper)


def closed_while(ps: Penstock, q: Queue) -> None:
    ps.close()
    with pytest.raises(penstock.PenstockError):
        q.enqueue(b"")


def test_a_closed_store_starts_no_helper() -> None:
    ps = penstock.open("memory:")
    q = ps.create_queue("q", on_enqueue="function on_enqueue() end")
    backend: Any = ps._default
    pool = backend._hooking.scripts.pool
    closed_while(ps, q)
    assert pool.pid is None
