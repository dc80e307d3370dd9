"""The metrics say what happened, in Prometheus's form, whoever asks."""

from __future__ import annotations

import random
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock import ManualClock, NewMessage, Penstock
from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Meta
from penstock.kv.memory import Faults
from penstock.metrics import TABLE, render, serve
from tests.docs.pages import DOCS, table

PAGE = DOCS / "metrics.md"

Sample = tuple[str, tuple[tuple[str, str], ...]]


def read(text: str) -> dict[Sample, float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(ps: Penstock, name: str, **labels: str) -> float | None:
    return read(render(ps)).get((name, tuple(sorted({"backend": "default", **labels}.items()))))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ps(clock: ManualClock) -> Iterator[Penstock]:
    with penstock.open("memory:", clock=clock, rng=random.Random(1)) as opened:
        yield opened


def test_depth_age_and_totals_are_those_of_stats(ps: Penstock, clock: ManualClock) -> None:
    q = ps.create_queue("q")
    q.enqueue_many([NewMessage(b"x")] * 5 + [NewMessage(b"later", delay_s=60)])
    clock.advance(7)
    (delivery,) = q.lease()
    q.ack([delivery.receipt])
    q.lease()
    states = {s: value(ps, "penstock_messages", queue="q", state=s) for s in ("ready", "leased", "delayed")}
    assert states == {"ready": 3, "leased": 1, "delayed": 1}
    assert value(ps, "penstock_oldest_ready_age_seconds", queue="q") == pytest.approx(7)
    assert value(ps, "penstock_enqueued_total", queue="q") == 6
    assert value(ps, "penstock_acked_total", queue="q") == 1
    assert value(ps, "penstock_rate_per_second", queue="q", operation="enqueue") == pytest.approx(0.1)


def test_waiting_and_service_times_are_those_of_the_clock(ps: Penstock, clock: ManualClock) -> None:
    q = ps.create_queue("q")
    q.enqueue(b"early")
    clock.advance(20)
    q.enqueue(b"late")
    clock.advance(2)
    deliveries = q.lease(2)
    clock.advance(0.25)
    q.ack([d.receipt for d in deliveries])
    assert value(ps, "penstock_wait_seconds_count", queue="q") == 2
    assert value(ps, "penstock_wait_seconds_sum", queue="q") == pytest.approx(24)
    assert value(ps, "penstock_wait_seconds_bucket", queue="q", le="5.0") == 1
    assert value(ps, "penstock_wait_seconds_bucket", queue="q", le="60.0") == 2
    assert value(ps, "penstock_service_seconds_sum", queue="q") == pytest.approx(0.5)
    assert value(ps, "penstock_service_seconds_bucket", queue="q", le="0.1") == 0
    assert value(ps, "penstock_service_seconds_bucket", queue="q", le="0.5") == 2


def test_lease_expiries_and_deaths_are_counted(ps: Penstock, clock: ManualClock) -> None:
    q = ps.create_queue("q", lease_s=10, max_attempts=2)
    q.enqueue(b"x")
    for _ in range(2):
        q.lease()
        clock.advance(11)
    q.lease()
    assert value(ps, "penstock_events_total", queue="q", kind="released") == 1
    assert value(ps, "penstock_events_total", queue="q", kind="dead") == 1
    assert value(ps, "penstock_failed_total", queue="q") == 2


def test_nothing_is_counted_that_was_not_written(ps: Penstock) -> None:
    q = ps.create_queue("q")
    ps._default._kv._faults = Faults(fail_write_at=1, recovers=True)  # type: ignore[attr-defined]
    with pytest.raises(penstock.StorageError):
        q.enqueue(b"x")
    assert value(ps, "penstock_events_total", queue="q", kind="enqueued") is None


def test_a_cursors_lag_and_what_it_holds_are_shown(ps: Penstock) -> None:
    q = ps.create_queue("q")
    q.cursor("archive", required=True)
    q.enqueue(b"x")
    q.ack([d.receipt for d in q.lease()])
    assert value(ps, "penstock_cursor_lag_events", queue="q", cursor="archive", required="true") == 3
    assert value(ps, "penstock_held_bodies", queue="q") == 1


def test_keys_and_throttles_are_shown(ps: Penstock, clock: ManualClock) -> None:
    ps.throttles.set("api", 0.5, 4)
    q = ps.create_queue("q")
    q.enqueue_many([NewMessage(fairness_key="k", throttle_keys=["api"])] * 9)
    q.lease(20)
    q.lease(20)
    clock.advance(1)
    assert value(ps, "penstock_key_ready", queue="q", key="k") == 5
    assert value(ps, "penstock_key_served_total", queue="q", key="k") == 4
    assert value(ps, "penstock_key_throttled", queue="q", key="k") == 5
    assert value(ps, "penstock_key_oldest_ready_age_seconds", queue="q", key="k") == pytest.approx(
        1, abs=0.01
    )
    throttle = [f"penstock_throttle_{name}" for name in ("tokens", "rate_per_second", "burst")]
    assert [value(ps, name, throttle="api") for name in throttle] == [0.5, 0.5, 4]


def test_of_very_many_keys_and_throttles_only_some_are_shown(ps: Penstock) -> None:
    q = ps.create_queue("q")
    q.enqueue_many([NewMessage(fairness_key=f"key {n}") for n in range(100)])
    q.enqueue_many([NewMessage(fairness_key="key 50")] * 9)
    for n in range(150):
        ps.throttles.set(f"t{n:03}", 1, 1)
    names = [name for name, _ in read(render(ps))]
    assert (names.count("penstock_key_ready"), names.count("penstock_throttle_burst")) == (20, 100)
    assert value(ps, "penstock_key_ready", queue="q", key="key 50") == 10


def test_group_commits_and_fsyncs_are_timed(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as ps:
        q = ps.create_queue("q")
        before = value(ps, "penstock_sync_seconds_count") or 0
        q.enqueue(b"x")
        assert (value(ps, "penstock_sync_seconds_count") or 0) >= before + 1
        assert (value(ps, "penstock_group_commit_calls_count") or 0) >= 2
        assert (value(ps, "penstock_store_bytes") or 0) > 0


def test_an_attached_process_shows_the_owners_numbers(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as owner, penstock.open(tmp_path / "store") as other:
        owner.create_queue("q").enqueue(b"x")
        assert value(other, "penstock_events_total", queue="q", kind="enqueued") == 1


@pytest.mark.parametrize("name", ['with "quotes"', "back\\slash", "new\nline", "{brace}", "größe"])
def test_any_queue_name_is_escaped(ps: Penstock, name: str) -> None:
    ps.create_queue(name)
    assert value(ps, "penstock_messages", queue=name, state="ready") == 0


def test_they_are_served_over_http(ps: Penstock) -> None:
    ps.create_queue("q").enqueue(b"x")
    server = serve(ps, 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as page:
            assert page.headers["Content-Type"].startswith("text/plain")
            assert b'penstock_messages{backend="default",queue="q",state="ready"} 1.0' in page.read()
    finally:
        server.shutdown()
        server.server_close()


def test_the_page_of_names_is_the_table_in_the_code() -> None:
    listed = {row["name"]: (row["kind"], row["labels"], row["what"]) for row in table(PAGE, "Names")}
    suffix = {"counter": "_total", "info": "_info"}
    assert listed == {
        name + suffix.get(kind, ""): (kind, ", ".join(labels), what)
        for name, (kind, labels, what) in TABLE.items()
    }


def test_calls_that_write_nothing_count_for_no_group_commit(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as ps:
        q = ps.create_queue("q")
        q.lease()  # Once: what it may write down for the first time is behind it.
        before = value(ps, "penstock_group_commit_calls_count")
        for _ in range(20):
            q.lease()
        assert value(ps, "penstock_group_commit_calls_count") == before


def test_a_damaged_queue_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "store") as ps:
        for name in "abc":
            ps.create_queue(name).enqueue(b"x")
        engine: Any = ps._default.engine  # type: ignore[attr-defined]
        batch = engine.kv.batch()
        batch.put(keys.meta(Meta.COUNTERS, engine.queues["b"].prefix), b"\x01garbage", engine.meta)
        engine.kv.write(batch)
    with penstock.open(tmp_path / "store") as ps:
        found = {name: value(ps, "penstock_messages", queue=name, state="ready") for name in "abc"}
        assert found == {"a": 1, "b": None, "c": 1}
        assert value(ps, "penstock_healthy") == 0.5


def test_each_backend_has_its_own_health_and_a_stopped_one_has_no_more_than_that(tmp_path: Path) -> None:
    config = tmp_path / "penstock.yaml"
    config.write_text("storage: {engine: memory}\nbackends:\n  fast: {url: 'memory:'}\n")
    with penstock.open(config) as ps:
        ps.create_queue("q")
        default: Any = ps._default
        fast: Any = ps._backends["fast"]
        default.engine.damaged["other"] = "a bad row"
        fast.engine.stop(penstock.StorageError("the disk failed"))
        assert value(ps, "penstock_healthy") == 0.5
        assert value(ps, "penstock_healthy", backend="fast") == 0.0
        assert value(ps, "penstock_messages", queue="q", state="ready") == 0
        assert value(ps, "penstock_store_bytes", backend="fast") is None
