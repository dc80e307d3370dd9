"""What goes wrong around a store: addresses, servers without room, keys of others, forged positions."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import (
    BackendNotInstalled,
    BackendUnavailable,
    InvalidConfig,
    InvalidMessage,
    ManualClock,
    NewMessage,
    StorageError,
    StorageFull,
)
from penstock.testing.harness import drain, errors, ids, receipts, take
from tests.redis.one_server import started
from tests.redis.servers import free_port
from tests.redis.stores import Place


@pytest.mark.parametrize(
    "url",
    ["redis+lists://127.0.0.1:1x/0", "redis+lists://127.0.0.1/zero", "redis+lists://127.0.0.1/0?prefx=a"],
)
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig):
        penstock.open(url)


def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(BackendUnavailable) as caught:
        penstock.open(f"redis+lists://127.0.0.1:{free_port()}/0")
    assert caught.value.retryable


def test_without_its_driver_the_backend_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(BackendNotInstalled, match=r"penstock\[redis\]"):
        penstock.open("redis+lists://127.0.0.1/0")


def test_stores_of_other_prefixes_are_other_stores(place: Place) -> None:
    url = place.url
    stores = [
        penstock.open(f"{url}{more}", clock=ManualClock(), rng=random.Random(1))
        for more in ("", "a", "%5Ba%5D", "*", "a:")
    ]
    for number, ps in enumerate(stores):
        ps.create_queue("q").enqueue(b"%d" % number)
        ps.state.put("k", b"%d" % number)
    for number, ps in enumerate(stores):
        assert (drain(ps.queue("q")), ps.state.get("k")) == ([b"%d" % number], b"%d" % number)
        assert ps.check().ok
        ps.close()


def test_a_key_that_someone_else_wrote_is_an_error_and_not_a_crash(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    q.enqueue(b"x")
    key = place.key("q", "z")
    place.client.delete(key)
    place.client.set(key, "mine")
    with pytest.raises(StorageError, match="WRONGTYPE"):
        q.lease()
    assert q.stats().ready == 1
    place.client.delete(key)
    assert ps.check(repair=True).ok
    assert drain(q) == [b"x"]


def test_a_server_without_room_refuses_writes_and_keeps_what_it_has(tmp_path: Path) -> None:
    server = started(tmp_path, maxmemory="20mb")
    try:
        with penstock.open(server.url(), clock=ManualClock(), rng=random.Random(1)) as ps:
            q = ps.create_queue("q")
            stored: list[str] = []

            def fill() -> None:
                for _ in range(100):
                    stored.extend(ids(q.enqueue_many([NewMessage(bytes(100_000))] * 10)))

            with pytest.raises(StorageFull) as caught:
                fill()
            assert caught.value.retryable
            assert 0 < len(stored) < 1000
            with server.client() as client:
                client.config_set("maxmemory", 0)
            assert q.stats().ready == len(stored)
            assert ps.check().ok
    finally:
        server.kill()


def test_a_server_that_keeps_no_log_says_so(tmp_path: Path) -> None:
    server = started(tmp_path, appendonly="no")
    try:
        with penstock.open(server.url(), clock=ManualClock(), rng=random.Random(1)) as ps:
            assert not ps.info().default.capabilities.persistence
            assert ps.info().default.durability == "none"
            health = ps.health()
            assert (health.status, "appendonly" in str(health.reasons)) == ("degraded", True)
    finally:
        server.kill()


@pytest.mark.parametrize("score", ["nan", "inf", "-1", "1e400", "", "1 2", "\u0661"])
def test_a_forged_position_is_refused_or_harmless(place: Place, score: str) -> None:
    q = place.open().create_queue("q")
    q.enqueue_many([NewMessage()] * 3)
    take(q, 3)
    forged = (bytes([3]) + score.encode() + b" " + bytes(16)).hex()
    try:
        page = q.list("leased", after=forged)
    except (InvalidMessage, StorageError):
        return
    assert len(page.items) <= 3


def test_very_large_batches_are_cut_and_answered_in_order(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    results = q.enqueue_many([NewMessage(b"%d" % n, fairness_key=f"k{n}") for n in range(5000)])
    assert errors(results) == [None] * 5000
    held = take(q, 5000)
    outcomes = q.ack([*receipts(held), "nonsense", *receipts(held[:1])])
    assert errors(outcomes) == [None] * 5000 + ["StaleReceipt"] * 2
    assert (q.length(), ps.check().ok) == (0, True)


def test_many_large_bodies_come_in_several_answers(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    large = [bytes([n]) * 3_000_000 for n in range(8)]
    found = ids(q.enqueue_many([NewMessage(one) for one in large]))
    assert [message.payload for message in q.iter()] == large
    assert [message.payload for message in q.peek(10)] == large
    assert [q.get(one).payload for one in found[:2]] == large[:2]
    held = take(q, 8)
    assert [one.payload for one in held] == large
    q.reject(receipts(held))
    assert q.redrive() == 8
    assert drain(q) == large


def test_what_is_no_call_of_a_closed_store_is_refused(place: Place) -> None:
    ps = place.open()
    q: Any = ps.create_queue("q")
    ps.close()
    for call in (q.stats, q.key_stats, lambda: q.lease(wait_s=1), lambda: q.enqueue(b""), ps.health):
        if call == ps.health:
            assert ps.health().status == "unhealthy"
        else:
            with pytest.raises(StorageError):
                call()
