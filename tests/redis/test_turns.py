"""Whose turn it is: no stream of new keys overtakes those that wait, and no dropped row fills a key."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock import NewMessage, Queue
from penstock.message import parse_id
from penstock.testing.harness import ack, take, take_one
from tests.redis.stores import Place


def test_a_stream_of_new_keys_does_not_starve_one_that_waits(place: Place) -> None:
    q = place.open().create_queue("q")
    q.enqueue_many([NewMessage(fairness_key="waiting")] * 50)
    take_one(q)
    served: Counter[bool] = Counter()
    for n in range(200):
        q.enqueue(b"", fairness_key=f"a{n}")
        delivery = take_one(q)
        served[delivery.fairness_key == "waiting"] += 1
        ack(q, [delivery])
    assert served[True] >= 15  # Rounds grow by one key each: about the root of twice the deliveries.


def test_whose_key_sorts_last_is_served_in_its_round_all_the_same(place: Place) -> None:
    q = place.open().create_queue("q")
    q.enqueue_many([NewMessage(fairness_key=f"b{n}") for n in range(5)])
    q.enqueue(b"", fairness_key="zzzzzzzz")
    keys = []
    for n in range(10):
        q.enqueue(b"", fairness_key=f"a{n}")
        keys.append(take_one(q).fairness_key)
    assert "zzzzzzzz" in keys


@pytest.mark.parametrize("batch", [1, 7])
def test_shares_go_by_weight_however_far_apart_weights_are(place: Place, batch: int) -> None:
    q = place.open().create_queue("q")
    for weight in (1, 10, 100):
        q.enqueue_many([NewMessage(fairness_key=str(weight), weight=weight)] * 800)
    shares: Counter[str] = Counter()
    while shares.total() < 777:
        shares.update(one.fairness_key for one in take(q, min(batch, 777 - shares.total())))
    for weight in (1, 10, 100):
        assert abs(shares[str(weight)] - 7 * weight) <= 3, shares


def test_who_waits_for_a_fifo_queue_sleeps_until_its_delay_is_over(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q", fifo=True, delay_s=10)
    q.enqueue(b"")
    backend: Any = ps._default
    assert backend._leasing._lease("q", 1, None, "") == ([], 10_000_000)
    ps.update_queue("q", delay_s=4)
    assert backend._leasing._lease("q", 1, None, "") == ([], 4_000_000)


def test_who_is_in_line_is_looked_up_only_where_there_was_a_delay(place: Place) -> None:
    ps = place.open()

    def looked_up(q: Queue, n: int) -> int:
        before = place.client.info("commandstats")
        q.enqueue_many([NewMessage(b"%d" % n)])
        after = place.client.info("commandstats")
        calls = [stats.get("cmdstat_zrevrangebyscore", {}).get("calls", 0) for stats in (before, after)]
        return int(calls[1] - calls[0])

    for n in range(3):
        q = ps.create_queue(f"q{n}", fifo=n > 0, delay_s=10 if n == 2 else 0)
        q.enqueue(b"", fairness_key="retried")
        place.clock.advance(10)
        q.nack([take_one(q).receipt], delay_s=60)
        assert looked_up(q, n) == 0
        place.clock.advance(-5)
        assert looked_up(q, n) == (n == 2)
    place.clock.advance(5)
    ps.update_queue("q2", delay_s=0)
    assert looked_up(ps.queue("q2"), 2) == 1


@pytest.mark.parametrize("limits", [{"fifo": True}, {"max_leased_per_key": 1}])
def test_a_row_that_leads_to_nothing_does_not_fill_its_key(place: Place, limits: dict[str, Any]) -> None:
    q = place.open().create_queue("q", **limits)
    lost = q.enqueue(b"lost", fairness_key="x")
    q.enqueue(b"next", fairness_key="x")
    q.enqueue(b"other", fairness_key="y")
    place.lose_body("q", parse_id(lost))
    place.client.hdel(place.key("q", "s"), parse_id(lost))
    found = []
    for _ in range(3):
        some = q.lease(10)
        found += [one.payload for one in some]
        ack(q, some)
    assert sorted(found) == [b"next", b"other"]
    q.enqueue(b"later", fairness_key="x")
    assert take_one(q).payload == b"later"
