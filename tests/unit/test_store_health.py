"""What an embedded store's health is judged by: its numbers, and a threshold for each that counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import ManualClock, NewMessage, Penstock, StorageError
from penstock.clock import Clock
from penstock.errors import InvalidConfig
from penstock.kv.memory import Faults


class TickingClock(ManualClock):
    """Whoever looks at it has taken four milliseconds to do so."""

    def now_ns(self) -> int:
        self.advance(0.004)
        return super().now_ns()


def opened(folder: Path, thresholds: str, clock: Clock) -> Penstock:
    file = folder / "penstock.yaml"
    settings = f"engine: memory, durability: os, health: {{{thresholds}}}"
    file.write_text(f"storage: {{{settings}}}\nqueues: {{q: {{}}}}\n")
    return penstock.open(file, clock=clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def reasons(ps: Penstock) -> str:
    health = ps.health()
    assert health.status == ("degraded" if health.reasons else "healthy")
    return str(health.reasons.get("default", ""))


def test_the_numbers_are_those_of_all_queues_together(clock: ManualClock) -> None:
    with penstock.open("memory:", clock=clock) as ps:
        for name in ("a", "b"):
            q = ps.create_queue(name)
            q.enqueue_many([NewMessage(b"x")] * 3 + [NewMessage(b"later", delay_s=60)])
            clock.advance(5)
            q.ack([q.lease()[0].receipt])
            q.nack([q.lease()[0].receipt], delay_s=30)
            q.lease()
            q.cursor("archive", required=True)
        numbers = ps.health().numbers["default"]
    assert numbers.reachable
    assert (numbers.queues, numbers.depth, numbers.leased) == (2, 4, 2)
    assert numbers.oldest_ready_age_s is None
    assert numbers.enqueue_rate_per_s == pytest.approx(8 / 60)
    assert numbers.ack_rate_per_s == pytest.approx(2 / 60)
    assert numbers.fail_rate_per_s == pytest.approx(2 / 60)
    assert numbers.consumer_lag == 9
    assert numbers.memory_bytes is None or numbers.memory_bytes > 1 << 20
    assert (numbers.pool_size, numbers.shards, numbers.stream_length) == (None, None, None)


def test_the_oldest_of_all_queues_counts(clock: ManualClock) -> None:
    with penstock.open("memory:", clock=clock) as ps:
        ps.create_queue("a").enqueue(b"old")
        clock.advance(7)
        ps.create_queue("b").enqueue(b"young")
        clock.advance(1)
        assert ps.health().numbers["default"].oldest_ready_age_s == pytest.approx(8)


@pytest.mark.parametrize(("limit", "is_told"), [("2", True), ("3", False)])
def test_more_messages_than_max_depth_are_told(
    tmp_path: Path, clock: ManualClock, limit: str, is_told: bool
) -> None:
    with opened(tmp_path, f"max_depth: {limit}", clock) as ps:
        ps.queue("q").enqueue_many([NewMessage(b"x")] * 2 + [NewMessage(b"later", delay_s=60)])
        assert ("3 messages wait; health.max_depth is 2" in reasons(ps)) == is_told


@pytest.mark.parametrize(("limit", "is_told"), [("1m", True), ("2m", False)])
def test_a_message_older_than_max_oldest_age_is_told(
    tmp_path: Path, clock: ManualClock, limit: str, is_told: bool
) -> None:
    with opened(tmp_path, f"max_oldest_age: {limit}", clock) as ps:
        ps.queue("q").enqueue(b"x")
        clock.advance(90)
        assert ("ready for 90.0 s; health.max_oldest_age is 60" in reasons(ps)) == is_told


@pytest.mark.parametrize(("limit", "is_told"), [("3", True), ("4", False)])
def test_a_required_cursor_further_behind_than_max_lag_is_told(
    tmp_path: Path, clock: ManualClock, limit: str, is_told: bool
) -> None:
    with opened(tmp_path, f"max_lag: {limit}", clock) as ps:
        ps.queue("q").cursor("archive", required=True)
        ps.queue("q").cursor("at will")
        ps.queue("q").enqueue_many([NewMessage(b"x")] * 4)
        assert ("4 entries behind; health.max_lag is 3" in reasons(ps)) == is_told


@pytest.mark.parametrize(("limit", "is_told"), [("3ms", True), ("10m", False)])
def test_calls_slower_than_max_latency_are_told(tmp_path: Path, limit: str, is_told: bool) -> None:
    with opened(tmp_path, f"max_latency: {limit}", TickingClock()) as ps:
        for _ in range(98):  # The queue was made by one.
            ps.queue("q").enqueue(b"x")
        assert "max_latency" not in reasons(ps)  # Of so few calls, one in a hundred says nothing.
        ps.queue("q").enqueue(b"x")
        assert ("health.max_latency is 0.003" in reasons(ps)) == is_told
        numbers = ps.health().numbers["default"]
        assert numbers.latency_p50_ms is not None
        assert 4 <= numbers.latency_p50_ms <= (numbers.latency_p99_ms or 0)


@pytest.mark.parametrize(("limit", "is_told"), [("0.05", True), ("0.2", False)])
def test_more_failed_calls_than_max_error_rate_are_told(
    tmp_path: Path, clock: ManualClock, limit: str, is_told: bool
) -> None:
    with opened(tmp_path, f"max_error_rate: {limit}", clock) as ps:
        q = ps.queue("q")
        for failing in [True] * 10 + [False] * 90:
            if failing:
                ps._default._kv._faults = Faults(fail_write_at=1, recovers=True)  # type: ignore[attr-defined]
                with pytest.raises(StorageError):
                    q.enqueue(b"x")
            else:
                q.enqueue(b"x")
        assert ("10% of attempts failed; health.max_error_rate is 0.05" in reasons(ps)) == is_told


def test_what_a_caller_did_wrong_is_no_failure_of_the_store(clock: ManualClock) -> None:
    with penstock.open("memory:", clock=clock) as ps:
        for _ in range(100):
            with pytest.raises(penstock.QueueNotFound):
                ps._default.enqueue("nowhere", [NewMessage(b"x")])
        assert ps.health().numbers["default"].error_rate == 0


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [
        ("max_depth: many", "storage.health.max_depth is 'many'; accepted: whole numbers 0 to 1000000000"),
        ("max_error_rate: 2", "storage.health.max_error_rate is 2; accepted: 0 to 1"),
        ("max_memory_ratio: 0.5", "storage.health.max_memory_ratio is not known"),
        ("max_latency: soon", "storage.health.max_latency is 'soon'; accepted: 0.001 to 3600 seconds"),
    ],
)
def test_what_is_no_threshold_is_refused(
    tmp_path: Path, clock: ManualClock, thresholds: str, message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        opened(tmp_path, thresholds, clock)


def test_a_further_store_has_thresholds_of_its_own(tmp_path: Path, clock: ManualClock) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(
        "storage: {engine: memory}\nbackends: {other: {url: 'memory:', health: {max_depth: 0}}}\n"
        "queues: {a: {}, b: {backend: other}}\n"
    )
    with penstock.open(file, clock=clock) as ps:
        for name in ("a", "b"):
            ps.queue(name).enqueue(b"x")
        assert ps.health().backends == {"default": "healthy", "other": "degraded"}


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Penstock]:
    with penstock.open(tmp_path / "store") as ps:
        ps.create_queue("q").enqueue_many([NewMessage(b"x")] * 3)
        ps.queue("q").lease()
        yield ps


def test_who_is_attached_is_told_the_owners_numbers(owner: Penstock, tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as attached:
        assert attached.info().default.attached_to is not None
        told, own = attached.health().numbers["default"], owner.health().numbers["default"]
    assert told.reachable
    assert (told.depth, told.leased, told.queues) == (own.depth, own.leased, own.queues) == (2, 1, 1)
    assert told.calls >= 3


def test_a_store_that_is_closed_is_not_reachable(clock: ManualClock) -> None:
    ps = penstock.open("memory:", clock=clock)
    ps.close()
    health = ps.health()
    assert (health.status, health.numbers["default"].reachable) == ("unhealthy", False)
