"""The bulk reader of a store on Redis: opens a snapshot, plans requests, reads partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.backends.bulk import BulkPartition, BulkPlan, BulkRequest, Snapshot, Span
from penstock.backends.redis import places, snapshots
from penstock.backends.redis.tables.events import read_events
from penstock.backends.redis.tables.messages import read_messages
from penstock.backends.redis.tables.view import QueueView, View
from penstock.backends.redis.worlds import Worlds
from penstock.backends.tables.columns import Batch
from penstock.backends.tables.damage import Damages, Told, missing
from penstock.backends.tables.entries import batches_of
from penstock.backends.tables.opened import SnapshotReader, read_queues
from penstock.backends.tables.requests import planned
from penstock.clock import Clock
from penstock.codec.entry import EntryFrame, decode_entry_frame
from penstock.errors import HistoryTruncated, StorageCorrupt
from penstock.keyring import KeyProvider
from penstock.message import STORED_STATES
from penstock.tables import arrow_schema

#: Frames of a world that are looked at together.
FRAMES = 50


def open_reader(snapshot: Snapshot, keys: KeyProvider, clock: Clock) -> RedisReader:
    """`KeyMissing` or `DecryptFailed`, where the store is encrypted and `keys` has not its keys."""
    engine = places.opened(snapshot.place, keys, clock)
    try:
        row = snapshots.renew(engine, snapshot)
        return RedisReader(snapshot, View(engine, snapshot, row), engine.clock)
    except BaseException:
        engine.server.close()
        raise


def release_snapshot(snapshot: Snapshot) -> None:
    server, keys = places.reached(snapshot.place)
    try:
        snapshots.release(server, keys, snapshot)
    finally:
        server.close()


class RedisReader(SnapshotReader[View]):
    """`BulkReader` of a snapshot on a server."""

    def plan(self, request: BulkRequest) -> BulkPlan:
        return planned(self.opened(), self.snapshot, request)

    def batches(self, view: View, partition: BulkPartition, told: Told | None) -> Iterator[Batch]:
        request = partition.request
        if request.table == "queues":
            yield from read_queues(lambda name: _queue_row(view.queue(name)), request, partition.spans, told)
            return
        for span in partition.spans:
            if request.table == "entries":
                yield from _read_entries(view, request, span, Damages("world", span.name, told))
                continue
            read = read_events if request.table == "events" else read_messages
            yield from read(view, view.queue(span.name), request, span, Damages("queue", span.name, told))

    def keep(self) -> None:
        snapshots.renew(self.opened().engine, self.snapshot)

    def release(self) -> None:
        if self._view is None:
            release_snapshot(self.snapshot)
            return
        engine = self._view.engine
        snapshots.release(engine.server, engine.keys, self.snapshot)
        self.close()


def _queue_row(queue: QueueView) -> dict[str, Any]:
    c = queue.counters
    states = (c.delayed, c.ready, c.leased, c.done, c.dead)
    base = (c.base_delayed, c.base_ready, c.base_leased, c.base_done, c.base_dead)
    return {
        "name": queue.name,
        "settings": msgspec.json.encode(queue.settings).decode(),
        **{str(state): n for state, n in zip(STORED_STATES, states, strict=True)},
        "enqueued_total": c.enqueued_total,
        "acked_total": c.acked_total,
        "failed_total": c.failed_total,
        "first_seq": queue.first_seq,
        "last_seq": queue.last_seq,
        **{f"base_{state}": n for state, n in zip(STORED_STATES, base, strict=True)},
        "journal_bytes": c.journal_bytes,
        "held_bodies": c.held,
        "required_seq": queue.required_seq,
    }


def _read_entries(view: View, request: BulkRequest, span: Span, damages: Damages) -> Iterator[Batch]:
    schema = arrow_schema("entries", request.columns)
    low, high = int.from_bytes(span.lower, "big"), int.from_bytes(span.upper, "big")
    worlds, expected = Worlds(view.engine), low
    some: list[EntryFrame] = []
    for seq, raw in worlds.opened_frames(span.name, low - 1):
        try:
            frame = decode_entry_frame(raw, span.name)
        except StorageCorrupt as error:
            damages.found(f"the frame that ends with seq {seq}", error, rows=0)
            continue
        if frame.first_seq > expected:
            _tell_of_gap(worlds, request, damages, expected, min(frame.first_seq, high))
        expected = frame.first_seq + len(frame.names)
        some.append(frame)
        if len(some) == FRAMES or expected >= high:
            yield from batches_of(span.name, some, schema, request, low, high)
            some = []
        if expected >= high:
            return
    yield from batches_of(span.name, some, schema, request, low, high)
    if expected < high:
        _tell_of_gap(worlds, request, damages, expected, high)


def _tell_of_gap(worlds: Worlds, request: BulkRequest, damages: Damages, first: int, end: int) -> None:
    """Entries are not there: retention has taken them since the snapshot was taken, or they are lost."""
    base = worlds.record(damages.name).base_seq
    if base < first:
        missing(damages, "entries", first, end)
    elif request.on_truncated == "fail":
        raise HistoryTruncated(f"the read of world {damages.name!r}", first - 1, base + 1)
