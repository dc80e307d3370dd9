"""Lines of fifo queues with a delay: when the next is due; lines that are damaged, or nobody's any more."""

from __future__ import annotations

import pytest

from penstock import ManualClock, NewMessage, Penstock, StorageCorrupt, open
from penstock.backends.embedded.keys import Due
from tests.check.stores import Raw, engine_of

HUNDREDS = [NewMessage(b"%d" % n, fairness_key=str(n % 7), ttl_s=900) for n in range(700)]


def opened(clock: ManualClock) -> Penstock:
    return open("memory:", clock=clock)


def test_who_waits_sleeps_until_the_first_delay_is_over() -> None:
    with opened(clock := ManualClock()) as ps:
        for delay_s in (30, 10, 20):
            ps.create_queue(f"q{delay_s}", fifo=True, delay_s=delay_s).enqueue(b"")
        q = ps.queue("q30")
        assert q.lease_or_due(1) == ([], 10)
        clock.advance(10)
        assert q.lease_or_due(1) == ([], 10)
        ps.update_queue("q30", delay_s=12)
        assert q.lease_or_due(1) == ([], 2)
        ps.update_queue("q20", delay_s=0)
        clock.advance(2)
        assert [one.queue for one in q.lease_or_due(1)[0]] == ["q30"]


def test_the_line_of_a_queue_that_was_deleted_goes_with_it() -> None:
    with opened(clock := ManualClock()) as ps:
        ps.create_queue("gone", fifo=True, delay_s=10).enqueue_many(HUNDREDS)
        stays = ps.create_queue("stays", fifo=True, delay_s=5)
        stays.enqueue_many([NewMessage(b"")] * 3)
        ps.delete_queue("gone")
        assert {item.queue for item in ps.due()} == {"stays"}
        clock.advance(20)
        assert stays.stats().ready == 3
        while ps.sweep():
            pass
        assert not Raw(ps).rows("due")
        assert ps.check().ok


def test_a_damaged_queue_keeps_nobody_elses_delay_from_passing() -> None:
    with opened(clock := ManualClock()) as ps:
        damaged = ps.create_queue("damaged", fifo=True, delay_s=1)
        damaged.enqueue_many(HUNDREDS)
        ps.create_queue("sound", fifo=True, delay_s=2).enqueue(b"here")
        raw = Raw(ps)
        key, _ = raw.row("meta", lambda key, value: key == b"\3" + raw.number("damaged").to_bytes(4, "big"))
        raw.put("meta", key, b"\1 no counters")
        clock.advance(2)
        assert [one.payload for one in ps.queue("sound").lease(5)] == [b"here"]
        assert ps.check(repair=True).ok
        assert ps.queue("damaged").stats().ready == len(HUNDREDS)
        assert ps.check().ok


def test_a_line_that_cannot_be_read_is_looked_at_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(clock := ManualClock()) as ps:
        q = ps.create_queue("q", fifo=True, delay_s=1)
        q.enqueue(b"there")
        engine = engine_of(ps)
        monkeypatch.setattr(engine.lines, "_rows", _unreadable)
        clock.advance(1)
        assert q.lease(1) == []
        monkeypatch.undo()
        assert engine.next_due_ns[Due.LINE] > clock.now_ns()
        clock.advance(10)
        assert [one.payload for one in q.lease(1)] == [b"there"]


def _unreadable(*bounds: object) -> list[tuple[bytes, bytes]]:
    raise StorageCorrupt("planted")
