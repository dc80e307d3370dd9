"""Queues on streams, seen with the server's own commands; and what each setting of streams does."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import InvalidConfig, NewMessage, Penstock, Queue
from penstock.backends.redis.keys import Keys
from penstock.backends.redis.stream_numbers import StreamNumbers
from penstock.clock import ManualClock
from penstock.testing.harness import START_NS, drain, ids, receipts, take
from tests.redis.one_server import shared
from tests.redis.stores import Place


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place("streams")
    yield place
    place.close()


@pytest.fixture
def ps(place: Place) -> Penstock:
    return place.open()


@pytest.fixture
def q(ps: Penstock) -> Queue:
    return ps.create_queue("q", lease_s=60)


def stream(place: Place) -> bytes:
    return place.key("q", "m")


def pending(place: Place, group: str = "default") -> list[tuple[bytes, bytes, int]]:
    """(entry, consumer, deliveries) as XPENDING has them."""
    rows = place.client.xpending_range(stream(place), group, "-", "+", 1000)
    return [(row["message_id"], row["consumer"], row["times_delivered"]) for row in rows]


def consumers(place: Place) -> dict[bytes, int]:
    rows = place.client.xinfo_consumers(stream(place), "default")
    return {row["name"]: row["pending"] for row in rows}


def numbers(ps: Penstock, queue: str = "q") -> StreamNumbers:
    backend: Any = ps.queue(queue)._backend
    found: StreamNumbers = backend.stream_numbers(queue)
    return found


# -- what others see -----------------------------------------------------------------------------


def test_what_is_pending_is_what_is_leased_by_whom_and_how_often(place: Place, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(5)])
    first = q.lease(2, consumer="one")
    second = q.lease(1, consumer="two")
    assert pending(place) == [(b"1-0", b"one", 1), (b"2-0", b"one", 1), (b"3-0", b"two", 1)]
    q.nack(receipts(first), delay_s=0)
    assert pending(place) == [(b"3-0", b"two", 1)]
    q.ack(receipts(second))
    again = q.lease(4, consumer="two")
    assert [one.attempts for one in again] == [1, 1, 2, 2]
    assert pending(place) == [
        (b"1-0", b"two", 2), (b"2-0", b"two", 2), (b"4-0", b"two", 1), (b"5-0", b"two", 1)
    ]  # fmt: skip
    q.reject(receipts(again))
    assert pending(place) == []
    assert place.client.xlen(stream(place)) == 4  # Dead letters are still there.


def test_an_entry_has_the_number_of_the_event_that_brought_it(place: Place, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"a"), NewMessage(b"b")])
    q.lease(1)
    (third,) = ids(q.enqueue_many([NewMessage(b"c")]))
    brought = {f"{event.seq}-0".encode() for event in q.events() if event.kind == "enqueued"}
    assert {entry for entry, _ in place.client.xrange(stream(place))} == brought
    q.upsert([NewMessage(b"d", id=third)])
    updated = [event.seq for event in q.events() if event.kind == "updated"]
    assert place.client.xrange(stream(place))[-1][0] == b"%d-0" % updated[0]
    assert place.client.xlen(stream(place)) == 3


def test_an_ack_deletes_the_entry(place: Place, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"x")] * 1000)
    assert place.client.xlen(stream(place)) == 1000
    drain(q)
    assert place.client.xlen(stream(place)) == 0
    assert pending(place) == []


def test_a_lease_that_ran_out_is_pending_no_more_until_it_is_taken_again(place: Place, q: Queue) -> None:
    q.enqueue(b"x")
    q.lease(1, lease_s=5, consumer="one")
    place.clock.advance(6)
    q._backend.sweep(10)
    assert pending(place) == []
    q.lease(1, consumer="two")
    assert pending(place) == [(b"1-0", b"two", 2)]


def test_large_bodies_are_leased_and_pending_though_one_answer_has_not_all(place: Place, q: Queue) -> None:
    sizes = [5 << 20, 5 << 20, 1, 5 << 20, 1]
    q.enqueue_many([NewMessage(b"x" * size) for size in sizes])
    held = q.lease(5, consumer="one")
    assert [len(one.payload) for one in held] == sizes
    assert len(pending(place)) == 5
    assert all(outcome.ok for outcome in q.ack(receipts(held)))


def test_a_server_that_forgot_its_scripts_is_told_them_again(place: Place, q: Queue) -> None:
    q.enqueue(b"x")
    place.client.script_flush()
    (delivery,) = q.lease(1)
    place.client.script_flush()
    assert q.ack([delivery.receipt])[0].ok


# -- the settings ----------------------------------------------------------------------------------


class Configured:
    """Stores of one penstock.yaml on the shared server."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self._folder = folder
        self._clock = clock
        self._opened: list[Penstock] = []
        self.prefix = f"{folder.name}-"

    def open(self, streams: str = "", queue: str = "", **more: Any) -> Penstock:
        file = self._folder / "penstock.yaml"
        own = f"    redis: {{{queue}}}\n" if queue else ""
        block = f"    stream_config: {{{streams}}}\n" if streams else ""
        file.write_text(
            "backends:\n  s:\n"
            f"    url: {shared().url('streams')}\n    key_prefix: '{self.prefix}'\n{block}"
            f"queues:\n  q:\n    backend: s\n    retention_s: 1000\n{own}"
        )
        ps = penstock.open(str(file), clock=more.get("clock", self._clock), rng=random.Random(1))
        self._opened.append(ps)
        return ps

    def close(self) -> None:
        for ps in self._opened:
            ps.close()


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[Configured]:
    configured = Configured(tmp_path, ManualClock(START_NS))
    yield configured
    configured.close()
    with shared().client() as client:
        client.flushall(asynchronous=True)


def done(ps: Penstock, count: int) -> Queue:
    q = ps.queue("q")
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(count)])
    for _ in range(count):
        q.ack(receipts(take(q, 1)))
    return q


def swept(ps: Penstock) -> None:
    while ps.sweep():
        pass


def test_max_length_removes_what_is_done_the_oldest_first(configured: Configured) -> None:
    ps = configured.open("max_length: 4")
    q = done(ps, 10)
    assert numbers(ps).length == 10
    swept(ps)
    assert [message.payload for message in q.list("done").items] == [b"6", b"7", b"8", b"9"]
    assert ps.check().ok


def test_max_length_drops_nothing_that_is_not_done_and_health_says_so(configured: Configured) -> None:
    ps = configured.open("max_length: 4")
    q = done(ps, 3)
    q.enqueue_many([NewMessage(b"waiting")] * 5)
    held = take(q, 1)
    swept(ps)
    assert (q.stats().done, q.length()) == (0, 5)
    assert "max_length is 4" in str(ps.health().reasons)
    q.ack(receipts(held))
    assert drain(q) == [b"waiting"] * 4


def test_max_length_takes_no_more_for_what_a_required_cursor_or_a_snapshot_holds(
    configured: Configured,
) -> None:
    ps = configured.open("max_length: 4")
    q = ps.queue("q")
    archive = q.cursor("archive", required=True)
    done(ps, 6)
    swept(ps)
    assert [message.payload for message in q.list("done").items] == [b"2", b"3", b"4", b"5"]
    assert (numbers(ps).length, q.stats().held_bodies) == (6, 2)
    archive.drop()
    backend: Any = q._backend
    snapshot = backend.take_snapshot()
    done(ps, 1)
    swept(ps)
    assert [message.payload for message in q.list("done").items] == [b"3", b"4", b"5", b"0"]
    penstock.release_snapshot(snapshot)
    swept(ps)
    assert (q.stats().done, numbers(ps).length) == (4, 4)
    assert ps.check().ok


def test_health_says_which_group_keeps_a_stream_longer_than_max_length(configured: Configured) -> None:
    ps = configured.open("max_length: 4")
    q = ps.queue("q")
    for name in ("first", "second"):
        q.create_group(name)
    q.enqueue_many([NewMessage(b"x")] * 5)
    q.ack(receipts(q.lease(5, group="first")))
    swept(ps)
    assert (numbers(ps).length, q.stats().done) == (5, 5)
    assert "5 entries are not done in group 'second', max_length is 4" in str(ps.health().reasons)
    q.ack(receipts(q.lease(1, group="second")))
    swept(ps)
    assert numbers(ps).length == 4
    assert not ps.health().reasons, "it is as long as it may be, and no longer"


def test_a_queue_may_have_a_max_length_of_its_own(configured: Configured) -> None:
    ps = configured.open("max_length: 4", "max_length: 6")
    done(ps, 10)
    swept(ps)
    assert numbers(ps).length == 6


def test_with_minid_max_length_says_how_far_back_done_messages_are_kept(configured: Configured) -> None:
    ps = configured.open("max_length: 4, trim_strategy: MINID")
    q = done(ps, 3)  # 3 numbers of entries, and 6 of leases and acks: the first event of what follows is 10.
    q.enqueue_many([NewMessage(b"new")] * 2)
    swept(ps)
    # The last entry has the number 11: what came up to 7 is beyond it, by its number and not by its count.
    assert (q.stats().done, q.stats().ready) == (0, 2)


def test_without_a_max_length_everything_is_kept(configured: Configured) -> None:
    ps = configured.open()
    q = done(ps, 10)
    swept(ps)
    assert q.stats().done == 10


def test_a_stream_has_the_name_that_it_was_given_for_good(configured: Configured) -> None:
    ps = configured.open(queue="stream_name: 'analytics stream'")
    ps.queue("q").enqueue(b"x")
    key = Keys(configured.prefix, "stream", {"q": "analytics stream"}).queue("q")[1]
    assert key.endswith(b"pss1:{q}:stream:analytics%20stream")
    with shared().client() as client:
        assert client.xlen(key) == 1
    for other in ("stream_name: other", ""):
        with pytest.raises(InvalidConfig, match=r"queues: queue 'q': .* created with 'analytics stream'"):
            configured.open(queue=other)
    ps.delete_queue("q")
    with shared().client() as client:
        assert client.exists(key) == 0


def test_a_stream_of_another_name_stops_nothing_that_is_done_for_other_queues(
    configured: Configured, caplog: pytest.LogCaptureFixture
) -> None:
    ps = configured.open(queue="stream_name: named")
    ps.queue("q").enqueue(b"x")
    # Who opens the store by its URL is not told the name.
    url = f"{shared().url('streams')}?key_prefix={configured.prefix}"
    other = penstock.open(url, clock=ManualClock(START_NS))
    other.create_queue("r").enqueue(b"y", ttl_s=1)
    with caplog.at_level(logging.ERROR, "penstock"):
        other._default._sweeping.tidy(10)  # type: ignore[attr-defined]  # As who keeps house does.
    assert "queue 'q' cannot be swept, the others are: queue 'q': stream_name is ''" in caplog.text
    health = other.health()
    assert health.status == "degraded"
    assert "created with 'named'" in str(health.reasons)
    assert [one.kind for one in other.check(repair=True).problems] == ["elsewhere"]
    assert list(other.metrics()["default"].queues) == ["r"]
    with pytest.raises(InvalidConfig, match="created with 'named'"):
        other.delete_queue("q")
    other.close()
    assert ps.check().ok
    assert take(ps.queue("q"), 1)[0].payload == b"x"


def test_the_consumer_group_has_the_name_that_is_configured(configured: Configured) -> None:
    ps = configured.open(queue="consumer_group: processors")
    ps.queue("q").enqueue(b"x")
    ps.queue("q").lease(1, consumer="c")
    with shared().client() as client:
        (group,) = client.xinfo_groups(Keys(configured.prefix, "stream").queue("q")[1])
    assert (group["name"], group["pending"], group["consumers"]) == (b"processors", 1, 1)
    assert numbers(ps).group == "processors"


class Waits(ManualClock):
    """Time that passes by as much as is waited for, and for how long that was."""

    def __init__(self) -> None:
        super().__init__(START_NS)
        self.waited_ns: list[int] = []

    def wait(self, condition: threading.Condition, timeout_ns: int | None) -> None:
        self.waited_ns.append(timeout_ns or 0)
        self.advance((timeout_ns or 0) / 1e9)


@pytest.mark.parametrize("block_s", [0.25, 2.0])
def test_block_timeout_is_how_often_who_waits_looks_again(configured: Configured, block_s: float) -> None:
    clock = Waits()
    ps = configured.open(f"block_timeout: {block_s}", clock=clock)
    assert ps.queue("q").lease(1, wait_s=4) == []
    assert set(clock.waited_ns) == {int(block_s * 1e9)}


def test_an_idle_consumer_without_anything_pending_is_removed(configured: Configured, place: Place) -> None:
    ps = configured.open("claim_min_idle: 1ms")
    place.prefix = configured.prefix
    q = ps.queue("q")
    q.enqueue_many([NewMessage(b"x")] * 2)
    q.ack(receipts(q.lease(1, consumer="gone")))
    q.lease(1, consumer="busy", lease_s=600)
    threading.Event().wait(0.01)
    assert consumers(place) == {b"gone": 0, b"busy": 1}
    swept(ps)
    assert consumers(place) == {b"busy": 1}
    patient = configured.open("claim_min_idle: 1h")
    q.enqueue(b"x")
    q.ack(receipts(q.lease(1, consumer="gone")))
    threading.Event().wait(0.01)
    swept(patient)
    assert consumers(place) == {b"gone": 0, b"busy": 1}


def test_what_somebody_read_by_hand_is_pending_no_more_after_a_while(
    configured: Configured, place: Place
) -> None:
    place.prefix = configured.prefix
    patient = configured.open("claim_min_idle: 1h")
    ps = configured.open("claim_min_idle: 1ms, claim_count: 2")
    q = ps.queue("q")
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(6)])
    held = q.lease(1, consumer="ours", lease_s=600)
    place.client.xclaim(
        stream(place), "default", "by hand", 0, [b"%d-0" % n for n in range(2, 7)], force=True
    )
    assert "pending of nothing" in ps.check().counts
    threading.Event().wait(0.01)
    patient.sweep()
    assert len(pending(place)) == 6
    ps.sweep(budget=1)
    assert len(pending(place)) == 5, "the first two: one is leased"
    swept(ps)
    assert [row[1] for row in pending(place)] == [b"ours"]
    assert ps.check().ok
    q.ack(receipts(held))
    assert drain(q) == [b"%d" % n for n in range(1, 6)]


def test_numbers_of_a_stream_are_those_of_the_server(place: Place, ps: Penstock, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"x")] * 7 + [NewMessage(b"x", delay_s=50)])
    q.lease(2, consumer="one")
    q.lease(1, consumer="two")
    found = numbers(ps)
    assert (found.length, found.pending, found.consumers, found.lag) == (8, 3, 2, 5)
    assert found.length == place.client.xlen(stream(place))
    assert found.pending == place.client.xpending(stream(place), "default")["pending"]
    told = ps.health().numbers["default"]
    assert (told.stream_length, told.consumer_lag, told.depth, told.leased) == (8, 5, 5, 3)


def test_a_lag_beyond_what_is_accepted_is_told_by_health(place: Place) -> None:
    with penstock.open(f"{place.url}", clock=place.clock, rng=random.Random(3)) as ps:
        q = ps.create_queue("q")
        for _ in range(11):
            q.enqueue_many([NewMessage(b"x")] * 1000)
        assert "a consumer is 11000 entries behind" in str(ps.health().reasons)
        q.create_group("first")
        q.create_group("second")
        q.ack(receipts(q.lease(5000, group="first")))
        assert "a consumer is 11000 entries behind" in str(ps.health().reasons)
        backend: Any = q._backend
        assert [(one.group, one.lag) for one in backend.group_numbers("q")] == [
            ("first", 6000),
            ("second", 11000),
        ]


# -- damage ----------------------------------------------------------------------------------------


def test_an_entry_that_nobody_knows_is_found_and_delivered(place: Place, ps: Penstock, q: Queue) -> None:
    known = q.enqueue(b"payload", priority=7)
    raw = place.client.xrange(stream(place))[0][1][b"b"]
    other = bytes.fromhex(known.replace("-", ""))[:-1] + b"\xee"
    place.client.xadd(stream(place), {b"i": other, b"b": raw}, id="9-0")
    place.client.xadd(stream(place), {b"i": bytes.fromhex(known.replace("-", "")), b"b": raw}, id="10-0")
    q.enqueue(b"payload", priority=7)  # Numbers that are not given out yet were taken.
    assert ps.check().counts["body of nothing"] == 2
    mended = ps.check(repair=True)
    assert mended.ok, mended
    assert sorted(message.priority for message in q.iter()) == [7, 7, 7]
    assert len(drain(q)) == 3
    assert ps.check().ok


def test_what_is_leased_and_not_pending_is_found_and_mended(place: Place, ps: Penstock, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"x")] * 3)
    held = q.lease(2, consumer="one")
    place.client.xack(stream(place), "default", "1-0")
    place.client.xclaim(stream(place), "default", "thief", 0, ["2-0"], force=True)
    assert ps.check().counts["not pending"] == 2
    assert ps.check(repair=True).ok
    assert pending(place) == [(b"1-0", b"one", 1), (b"2-0", b"one", 1)]
    assert all(outcome.ok for outcome in q.ack(receipts(held)))


def test_a_stream_that_is_gone_stops_nobody(place: Place, ps: Penstock, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"lost")] * 3)
    place.client.delete(stream(place))
    assert q.lease(3) == []
    assert ps.check().counts["body missing"] == 3
    assert ps.check(repair=True).ok
    q.enqueue(b"new")
    assert drain(q) == [b"new"]


def test_a_group_that_was_removed_by_hand_comes_back_with_the_next_lease(place: Place, q: Queue) -> None:
    q.enqueue_many([NewMessage(b"x")] * 2)
    q.lease(1, consumer="one")
    place.client.xgroup_destroy(stream(place), "default")
    assert len(q.lease(1, consumer="one")) == 1
    assert pending(place) == [(b"2-0", b"one", 1)]


def test_lists_and_streams_with_one_prefix_do_not_meet(place: Place, ps: Penstock, q: Queue) -> None:
    lists = Place("lists")
    lists.prefix = place.prefix
    other = lists.open().create_queue("q")
    q.enqueue(b"on a stream")
    other.enqueue(b"on a list")
    assert (drain(q), drain(other)) == ([b"on a stream"], [b"on a list"])
    lists.close()
