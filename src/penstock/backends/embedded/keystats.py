"""Numbers by fairness key: what waits, how long, what was served, and what it waits for."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TypeVar

from penstock.backends.base import KeyStats
from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.group_commit import give_way
from penstock.backends.embedded.lanes import Lane, Place
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.ready import ReadyIndex
from penstock.clock import NS_PER_S
from penstock.scheduling.throttle import NEVER_NS

T = TypeVar("T")

#: Lanes, or keys, that are looked at while the lock is held.
SLICE = 2000


class _Sum:
    """One key's numbers in the making."""

    __slots__ = ("first", "ready", "release_ns", "served", "throttled", "waits_for")

    def __init__(self) -> None:
        self.ready = self.throttled = self.served = 0
        #: The lane with the oldest message.
        self.first: Lane | None = None
        self.waits_for: set[str] = set()
        self.release_ns = NEVER_NS


def key_stats(engine: Engine, queue: str, limit: int) -> list[KeyStats]:
    """The keys that have most waiting. To be called without the lock, which is free in between.

    Opening a store counts nothing: the first call reads the ready rows once, as they were at one moment.
    """
    q = discovered(engine, queue)
    _count(engine, q)
    with engine.lock:
        index = _queue(engine, queue).ready
        lanes, turns = index.lanes(), index.turns()
    sums: dict[bytes, _Sum] = {}
    for some_lanes in _slices(lanes):
        with engine.lock:
            _add_lanes(engine.clock.now_ns(), some_lanes, sums)
    for some_turns in _slices(turns):
        for turn in some_turns:
            sums.setdefault(turn.key[3:], _Sum()).served += turn.served
    found = heapq.nlargest(limit, sums.items(), key=lambda item: (item[1].ready, item[1].served, item[0]))
    with engine.lock:
        q = _queue(engine, queue)
        return [_shown(engine, q, index, name, one) for name, one in found if one.ready or one.served]


def _queue(engine: Engine, queue: str) -> QueueState:
    engine.check_usable()
    return engine.queue(queue)


def discovered(engine: Engine, queue: str) -> QueueState:
    """The queue, all of its lanes known. To be called without the lock, which is free in between."""
    while True:
        with engine.lock:
            q = _queue(engine, queue)
            if q.ready.discover():
                return q
        give_way()


def _slices(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + SLICE] for at in range(0, len(items), SLICE))


def _count(engine: Engine, q: QueueState) -> None:
    """Count what lanes have beyond their caches, in a snapshot; if another does, that must do."""
    with engine.lock:
        index = q.ready
        uncounted = index.start_count()
        if not uncounted:
            return
        snapshot = engine.kv.snapshot()
    counts: list[tuple[Lane, int]] = []
    try:
        for lane, lower, upper in uncounted:
            counts.append((lane, sum(1 for _ in snapshot.scan(engine.ready, lower, upper))))
    finally:
        snapshot.release()
        with engine.lock:
            index.end_count(counts)


def _add_lanes(now_ns: int, lanes: Sequence[Lane], sums: dict[bytes, _Sum]) -> None:
    for lane in lanes:
        depth = lane.depth
        if depth <= 0:
            continue
        one = sums.setdefault(keys.lane_fairness_bytes(lane.lane), _Sum())
        one.ready += depth
        if one.first is None or _oldest(lane) < _oldest(one.first):
            one.first = lane
        if lane.place == Place.WAITING and lane.waits is not None:
            bucket = lane.waits.gate.bucket
            one.throttled += depth
            one.waits_for.add(bucket.key)
            one.release_ns = min(one.release_ns, bucket.ready_at_ns(1, now_ns))


def _oldest(lane: Lane) -> bytes:
    return lane.first if lane.rows else lane.head


def _shown(engine: Engine, q: QueueState, index: ReadyIndex, name: bytes, one: _Sum) -> KeyStats:
    now_ns, age_s, weight = engine.clock.now_ns(), None, None
    if one.first is not None and index is q.ready:
        weight, order_ns = index.head_of(one.first)
        age_s = None if order_ns is None else max(0, now_ns - order_ns) / NS_PER_S
    return KeyStats(
        key=name.decode(errors="replace"),
        weight=weight,
        ready=one.ready,
        leased=index.in_flight(name),
        oldest_ready_age_s=age_s,
        served=one.served,
        share=one.served / index.served if index.served else 0.0,
        throttled=one.throttled,
        throttled_by=sorted(one.waits_for),
        token_in_s=None if one.release_ns == NEVER_NS else max(0, one.release_ns - now_ns) / NS_PER_S,
    )
