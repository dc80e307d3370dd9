"""Snapshots of a store on Redis: taken queue by queue, kept by the queues, known to the store for a while.

The server has no snapshot. A queue that one is taken of notes its last seq; from then on whatever a script
does to a message keeps what the message was, as `_core.lua` says, and a snapshot counts as a required cursor,
so that journal and bodies stay. The store has a record of each snapshot, with the time that it ends, which
readers move on; whoever keeps house ends those whose time is over.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

import msgspec

from penstock.backends.bulk import Snapshot
from penstock.backends.redis.connecting import Server, pairs
from penstock.backends.redis.engine import DONE, Engine, QueueRow
from penstock.backends.redis.keys import Keys
from penstock.backends.redis.records import decode_counters
from penstock.backends.redis.scripts import script
from penstock.clock import to_ns
from penstock.errors import InvalidMessage, PenstockError, QueueNotFound, SnapshotNotFound, StorageCorrupt
from penstock.message import format_id, parse_id
from penstock.settings import MAX_DURATION_S

log = logging.getLogger("penstock")

READER = "redis"
VERSION = b"\x01"
#: How often one looks whether another has taken a snapshot, and after how long it has not.
WAIT_S, PATIENCE_S = 0.05, 30.0


class SnapshotRow(msgspec.Struct, array_like=True, frozen=True):
    """A snapshot as the store knows it. `whole`: it was taken of all queues."""

    number: int
    at_us: int
    until_us: int
    lifetime_s: float
    whole: bool = False

    @property
    def mark(self) -> bytes:
        return self.number.to_bytes(8, "big")


class Contents(msgspec.Struct, array_like=True):
    """What a snapshot is of: rows of queues, their counters and what required cursors have read; worlds."""

    queues: dict[str, tuple[bytes, bytes, int]]
    worlds: dict[str, bytes]


_decode_row = msgspec.msgpack.Decoder(SnapshotRow).decode
_decode_contents = msgspec.msgpack.Decoder(Contents).decode


class Snapshots:
    """Those of one store."""

    def __init__(self, engine: Engine, place: str) -> None:
        self._engine = engine
        self._place = place

    def take(self, lifetime_s: float, chosen: str | None) -> Snapshot:
        _check_lifetime(lifetime_s)
        engine = self._engine
        snapshot_id = format_id(engine.new_ids(1)[0]) if chosen is None else format_id(parse_id(chosen))
        known = self._begun(snapshot_id, lifetime_s)
        if known.whole:
            return self._value(snapshot_id, known, lifetime_s)
        row = known
        try:
            contents = self._contents(row)
        except BaseException:
            self._end(snapshot_id, row)
            raise
        raw = VERSION + msgspec.msgpack.encode(contents)
        engine.server.command("SET", engine.keys.snapshot(snapshot_id), raw)
        self._put(snapshot_id, msgspec.structs.replace(row, whole=True))
        return self._value(snapshot_id, row, lifetime_s)

    def _begun(self, snapshot_id: str, lifetime_s: float) -> SnapshotRow:
        """The one that is there, renewed; else one that this call is to take."""
        engine, waited = self._engine, 0
        number = int(engine.server.command("HINCRBY", engine.keys.store, "snapshots", 1))
        while True:
            now_us = engine.now_us()
            mine = SnapshotRow(number, now_us, now_us + to_ns(lifetime_s) // 1000, float(lifetime_s))
            # Before anything is kept for it: what is left half taken ends too.
            engine.server.command("HSETNX", engine.keys.snapshots, snapshot_id, _packed(mine))
            known = self._row(snapshot_id)
            if known is None or known.number == number:
                return known or mine
            if known.whole and known.until_us > now_us:
                known = _until(known, now_us, lifetime_s)
                self._put(snapshot_id, known)
                return known
            if known.until_us <= now_us or waited * WAIT_S >= PATIENCE_S:
                self._end(snapshot_id, known)
            else:  # Another is taking it.
                engine.closed.wait(WAIT_S)
                waited += 1

    def _value(self, snapshot_id: str, row: SnapshotRow, lifetime_s: float) -> Snapshot:
        return Snapshot(
            reader=READER,
            id=snapshot_id,
            place=self._place,
            at_ns=row.at_us * 1000,
            lifetime_s=float(lifetime_s),
        )

    def _contents(self, row: SnapshotRow) -> Contents:
        engine = self._engine
        stored = {
            name.decode(): raw for name, raw in pairs(engine.server.command("HGETALL", engine.keys.queues))
        }
        rows: dict[str, QueueRow] = {}
        for name, raw in sorted(stored.items()):
            with contextlib.suppress(StorageCorrupt):  # Whoever reads it is told.
                rows[name] = engine.decoded_row(name, raw)
        held = self._held(row, rows)
        worlds = {
            name.decode(): raw for name, raw in pairs(engine.server.command("HGETALL", engine.keys.worlds))
        }
        damaged = {name: (stored[name], b"", -1) for name in stored if name not in rows}
        sound = {name: (stored[name], *held[name]) for name in rows if name in held}
        return Contents({**sound, **damaged}, worlds)

    def _held(self, row: SnapshotRow, rows: dict[str, QueueRow]) -> dict[str, tuple[bytes, int]]:
        """Counters of each queue at its moment, and what required cursors had read of it then (-1: none)."""
        engine = self._engine
        known = [engine.known(name, one) for name, one in rows.items()]
        calls = [
            (engine.script("hold"), q.keys, [*engine.head(), q.changed, "take", row.mark]) for q in known
        ]
        replies = engine.server.run_many(calls)
        held: dict[str, tuple[bytes, int]] = {}
        for q, reply in zip(known, replies, strict=True):
            try:
                if isinstance(reply, PenstockError):
                    raise reply
                if reply[0] != DONE:  # Time had more to do, or it is changed meanwhile.
                    reply = engine.with_queue(q.name, lambda one: engine.run("hold", [one], "take", row.mark))
                held[q.name] = bytes(reply[2]), int(reply[3])
            except QueueNotFound:
                continue  # Deleted meanwhile.
        return held

    def sweep(self) -> int:
        """End those whose time is over; how many it were."""
        engine = self._engine
        found = pairs(engine.server.command("HGETALL", engine.keys.snapshots))
        if not found:
            return 0
        now_us, ended = engine.now_us(), 0
        for raw_id, raw in found:
            try:
                row = _unpacked(raw)
            except StorageCorrupt as error:
                log.error("snapshot id=%s is left alone: %s", raw_id.decode(), error)
                continue
            if row.until_us <= now_us:
                self._end(raw_id.decode(), row)
                ended += 1
        return ended

    def last_number(self) -> int:
        """That of the one that was begun last."""
        return int(self._engine.server.command("HGET", self._engine.keys.store, "snapshots") or 0)

    def has_ended(self, number: int) -> bool:
        """Whether nothing is kept any more for those that were begun up to this one."""
        self.sweep()
        rows = []
        for _, raw in pairs(self._engine.server.command("HGETALL", self._engine.keys.snapshots)):
            with contextlib.suppress(StorageCorrupt):  # Nobody can read it, or end it.
                rows.append(_unpacked(raw))
        return all(row.number > number for row in rows)

    def _put(self, snapshot_id: str, row: SnapshotRow) -> None:
        put_row(self._engine, snapshot_id, row)

    def _row(self, snapshot_id: str) -> SnapshotRow | None:
        return find_row(self._engine.server, self._engine.keys, snapshot_id)

    def _end(self, snapshot_id: str, row: SnapshotRow) -> None:
        end(self._engine.server, self._engine.keys, snapshot_id, row)
        log.info("snapshot id=%s has ended", snapshot_id)


def _packed(row: SnapshotRow) -> bytes:
    return VERSION + msgspec.msgpack.encode(row)


def _unpacked(raw: bytes) -> SnapshotRow:
    try:
        return _decode_row(raw[1:])
    except msgspec.DecodeError as error:
        raise StorageCorrupt(f"record of a snapshot does not decode: {error}") from error


def put_row(engine: Engine, snapshot_id: str, row: SnapshotRow) -> None:
    engine.server.command("HSET", engine.keys.snapshots, snapshot_id, _packed(row))


def find_row(server: Server, keys: Keys, snapshot_id: str) -> SnapshotRow | None:
    raw = server.command("HGET", keys.snapshots, snapshot_id)
    return None if raw is None else _unpacked(raw)


def contents_of(engine: Engine, snapshot: Snapshot) -> Contents:
    raw = engine.server.command("GET", engine.keys.snapshot(snapshot.id))
    if raw is None:
        raise not_found(snapshot)
    try:
        return _decode_contents(raw[1:])
    except msgspec.DecodeError as error:
        raise StorageCorrupt(f"snapshot {snapshot.id} does not decode: {error}") from error


def end(server: Server, keys: Keys, snapshot_id: str, row: SnapshotRow) -> None:
    """Everything that is kept for it goes; its record last, so that whoever is killed has left it to others.

    It needs no key of an encrypted store.
    """
    left = [(keys.queue(name.decode()), b"0") for name in server.command("HKEYS", keys.queues)]
    # Of one that is deleted nothing is kept but for snapshots.
    left += [(keys.deleted(name, number), b"1") for name, number in _shown(server, keys, snapshot_id)]
    while left:
        hold = script("hold", keys.store_kind)
        calls = [
            (hold, queue, [-1, os.urandom(16) + b"0", 0, "drop", row.mark, gone]) for queue, gone in left
        ]
        replies = server.run_many(calls)
        for reply in replies:
            if isinstance(reply, PenstockError):
                raise reply
        more = [reply[0] == DONE and reply[2] == b"1" for reply in replies]
        left = [one for one, is_left in zip(left, more, strict=True) if is_left]
    server.command("DEL", keys.snapshot(snapshot_id))
    server.command("HDEL", keys.snapshots, snapshot_id)


def _shown(server: Server, keys: Keys, snapshot_id: str) -> Iterator[tuple[str, int]]:
    """The queues of a snapshot, each with its number; of one that is damaged, or half taken, none."""
    raw = server.command("GET", keys.snapshot(snapshot_id))
    with contextlib.suppress(msgspec.DecodeError):
        for name, (_, counters, _) in _decode_contents(raw[1:]).queues.items() if raw else ():
            with contextlib.suppress(StorageCorrupt):
                yield name, decode_counters(counters).number


def release(server: Server, keys: Keys, snapshot: Snapshot) -> None:
    """End it, unless another was taken under its id since."""
    row = find_row(server, keys, snapshot.id)
    if row is not None and row.at_us * 1000 == snapshot.at_ns:
        end(server, keys, snapshot.id, row)


def renew(engine: Engine, snapshot: Snapshot) -> SnapshotRow:
    """It lives for its lifetime from now."""
    row, now_us = find_row(engine.server, engine.keys, snapshot.id), engine.now_us()
    if row is None or not row.whole or row.at_us * 1000 != snapshot.at_ns or row.until_us <= now_us:
        raise not_found(snapshot)
    renewed = _until(row, now_us, snapshot.lifetime_s)
    put_row(engine, snapshot.id, renewed)
    return renewed


def _until(row: SnapshotRow, now_us: int, lifetime_s: float) -> SnapshotRow:
    """Never less than it has already."""
    return msgspec.structs.replace(row, until_us=max(row.until_us, now_us + to_ns(lifetime_s) // 1000))


def _check_lifetime(lifetime_s: float) -> None:
    number = isinstance(lifetime_s, int | float) and not isinstance(lifetime_s, bool)
    if not number or not 1 <= lifetime_s <= MAX_DURATION_S:
        raise InvalidMessage(f"lifetime_s is {lifetime_s!r:.40}; accepted: 1 to {MAX_DURATION_S:.0f} seconds")


def not_found(snapshot: Snapshot) -> SnapshotNotFound:
    return SnapshotNotFound(
        f"snapshot {snapshot.id} is not on the server any more: it was released, or nobody read from it "
        f"for {snapshot.lifetime_s:g} s; take another, with a longer lifetime if need be"
    )
