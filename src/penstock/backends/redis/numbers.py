"""Numbers: what `stats`, `key_stats`, `due` and `metrics` say."""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from penstock.backends.arguments import due_position
from penstock.backends.base import (
    BackendMetrics,
    CursorInfo,
    Histogram,
    KeyStats,
    QueueMetrics,
    QueueStats,
)
from penstock.backends.meters import SIZE_BOUNDS, SYNC_BOUNDS
from penstock.backends.redis.connecting import pairs
from penstock.backends.redis.engine import Engine, Known, QueueChanged, QueueRow
from penstock.backends.redis.journal import cursor_infos
from penstock.backends.redis.leasing import Leasing
from penstock.backends.redis.memory import memory_of
from penstock.backends.redis.records import Counters, decode_counters, decode_head
from penstock.backends.redis.settling import Settling
from penstock.errors import (
    BackendUnavailable,
    PenstockError,
    QueueNotFound,
    StorageError,
    StorageFull,
)
from penstock.message import DueItem, format_id

log = logging.getLogger("penstock")

RATE_WINDOW_S = 60
#: Lanes that one call looks at.
LANES = 500
KEYS_MEASURED = 20
#: Kinds of due times, in the order in which the script has them.
KINDS = ("delay", "lease", "ttl", "retention", "retention", "dedup")


class Standing(msgspec.Struct, frozen=True):
    """A queue's stored numbers at one moment."""

    now_us: int
    counters: Counters
    oldest_us: int | None
    rates: dict[bytes, int]
    cursors: list[CursorInfo]

    @property
    def oldest_s(self) -> float | None:
        return None if self.oldest_us is None else max(0, self.now_us - self.oldest_us) / 1_000_000

    @property
    def rates_per_s(self) -> list[float]:
        """Of enqueues, acks and failures."""
        return [_rate(self, kind) for kind in (b"e", b"a", b"f")]

    @property
    def has_required(self) -> bool:
        return any(one.required for one in self.cursors)

    @property
    def read_by_all(self) -> int:
        required = [one.position for one in self.cursors if one.required]
        return min(required, default=self.counters.seq)


class _Sum:
    """One key's numbers in the making."""

    __slots__ = ("first_us", "leased", "ready", "weight")

    def __init__(self) -> None:
        self.ready = 0
        self.first_us: int | None = None
        self.weight: int | None = None
        self.leased: int | None = None


class Numbers:
    """What is counted in one store."""

    def __init__(self, engine: Engine, leasing: Leasing, settling: Settling, durability: str) -> None:
        self._engine = engine
        self._leasing = leasing
        self._settling = settling
        self._durability = durability

    def standing(self, q: Known) -> Standing:
        return _standing(self._engine.run("stats", [q]))

    def standings(self, rows: Mapping[str, QueueRow]) -> dict[str, tuple[Known, Standing | PenstockError]]:
        """Of these queues, by name, `pipeline_size` in a round trip.

        Nobody is waited for: one that is being repaired has an error, `BackendUnavailable`, for its answer.
        """
        engine = self._engine
        found: dict[str, tuple[Known, Standing | PenstockError]] = {}
        asked = [engine.known(name, row) for name, row in rows.items()]
        for is_last in (False, True):
            changed = []
            for q, reply in zip(asked, engine.run_each("stats", asked), strict=True):
                if reply is None and not is_last:
                    changed.append(q.name)
                else:
                    found[q.name] = q, _judged(q, reply)
            if not changed:
                break
            rows = engine.all_queues()  # Those that are deleted by now are left out.
            asked = [engine.known(name, rows[name]) for name in changed if name in rows]
        return dict(sorted(found.items()))

    def stats(self, queue: str) -> QueueStats:
        return self._stats(self._engine.with_queue(queue, self.standing))

    def _stats(self, standing: Standing) -> QueueStats:
        c = standing.counters
        enqueued, acked, failed = standing.rates_per_s
        return QueueStats(
            delayed=c.delayed,
            ready=c.ready,
            leased=c.leased,
            done=c.done,
            dead=c.dead,
            oldest_ready_age_s=standing.oldest_s,
            enqueued_total=c.enqueued_total,
            acked_total=c.acked_total,
            failed_total=c.failed_total,
            enqueue_rate_per_s=enqueued,
            ack_rate_per_s=acked,
            fail_rate_per_s=failed,
            first_seq=c.base_seq + 1,
            last_seq=c.seq,
            journal_bytes=c.journal_bytes,
            held_bodies=c.held,
            unread_by_required=c.seq - standing.read_by_all,
            durability=self._durability,
            created_at_ns=c.created_us * 1000,
        )

    def key_stats(self, queue: str, limit: int) -> list[KeyStats]:
        """The keys that have most waiting. Its cost grows with the keys that have any, not with messages."""
        return self._key_stats(queue, *self._engine.with_queue(queue, self._sums), limit)

    def _key_stats(self, queue: str, now_us: int, sums: dict[str, _Sum], limit: int) -> list[KeyStats]:
        served = self._leasing.served.get(queue, Counter())
        total = sum(served.values())
        for key in served:
            sums.setdefault(key, _Sum())
        found = heapq.nlargest(
            limit, sums.items(), key=lambda item: (item[1].ready, served[item[0]], item[0])
        )
        return [
            KeyStats(
                key=key,
                weight=one.weight,
                ready=one.ready,
                leased=one.leased,
                oldest_ready_age_s=(
                    None if one.first_us is None else max(0, now_us - one.first_us) / 1_000_000
                ),
                served=served[key],
                share=served[key] / total if total else 0.0,
                throttled=0,
                throttled_by=[],
                token_in_s=None,
            )
            for key, one in found
            if one.ready or served[key]
        ]

    def _sums(self, q: Known) -> tuple[int, dict[str, _Sum]]:
        sums: dict[str, _Sum] = {}
        passed = 0
        while True:
            _, now_us, rows = self._engine.run("lanes", [q], passed, LANES)
            for at in range(0, len(rows), 4):
                lane, depth, head, leased = rows[at : at + 4]
                one = sums.setdefault(lane[3:].decode(errors="replace"), _Sum())
                one.ready += depth
                one.leased = leased if leased >= 0 else None
                order_us = int.from_bytes(head[-32:-24], "big")
                if head and (one.first_us is None or order_us < one.first_us):
                    one.first_us, one.weight = order_us, int.from_bytes(head[-18:-16], "big")
            passed += LANES
            if len(rows) < 4 * LANES:
                return now_us, sums

    def first_event_us(self, q: Known) -> int | None:
        """When the oldest frame of the journal was written."""
        frames = self._engine.run("events", [q], 0, "", 1)[3]
        return decode_head(frames[0]).at_us if frames else None

    def first_is_unread(self, q: Known, standing: Standing) -> bool:
        """Whether a required cursor has yet to read the oldest frame."""
        frames = self._engine.run("events", [q], 0, "", 1)[3]
        return bool(frames) and decode_head(frames[0]).last_seq > standing.read_by_all

    # -- what falls due

    def due(self, since_ns: int, until_ns: int | None, limit: int, after: str | None) -> list[DueItem]:
        """Across queues, earliest first: each queue is asked for as many as are wanted in all."""
        resume = due_position(after)
        start_us = -(-max(since_ns, resume[0] * 1000 if resume else 0) // 1000)
        end = "+inf" if until_ns is None else f"({-(-until_ns // 1000)}"
        found = []
        for name, row in self._engine.all_queues().items():
            q = self._engine.known(name, row)
            try:
                found.append(sorted(self._due_of(q, start_us, end, limit, resume)))
            except (QueueChanged, QueueNotFound):
                continue  # Deleted, changed or being repaired.
            except StorageFull:
                raise
            except StorageError as error:  # Damaged: `health` says so, and the others are told all the same.
                log.warning("what falls due in queue %r cannot be told: %s", name, error)
        out: list[DueItem] = []
        for at_us, kind, number, raw, name in heapq.merge(*found):
            if len(out) == limit:
                break
            position = at_us.to_bytes(8, "big") + bytes((kind,)) + number.to_bytes(4, "big") + raw
            message_id = None if KINDS[kind] == "dedup" else format_id(raw)
            out.append(DueItem(at_us * 1000, KINDS[kind], name, message_id, position.hex()))
        return out

    def _due_of(
        self, q: Known, start_us: int, end: str, limit: int, resume: tuple[int, int, int, bytes] | None
    ) -> Iterator[tuple[int, int, int, bytes, str]]:
        """(time, kind, queue's number, id, queue)"""
        most = limit
        while True:
            reply = self._engine.run("due", [q], start_us, end, most)
            rows = [
                (int(float(row[at + 1])), kind, q.number, row[at])
                for kind, row in enumerate(reply[2])
                for at in range(0, len(row), 2)
                if float(row[at + 1]) != float("inf")
            ]
            fresh = [one for one in rows if resume is None or one > resume]
            # Of those at the time that is gone on from, some were listed already: as many more are looked at.
            if len(rows) - len(fresh) == 0 or most > len(rows) or len(fresh) >= limit:
                break
            most += limit
        for at_us, kind, number, raw in fresh:
            yield at_us, kind, number, raw, q.name

    # -- metrics

    def metrics(self) -> BackendMetrics:
        queues: dict[str, QueueMetrics] = {}
        for name, (q, standing) in self.standings(self._engine.all_queues()).items():
            if isinstance(standing, PenstockError):
                continue  # Damaged or being repaired: `health` tells.
            with contextlib.suppress(QueueChanged, QueueNotFound, StorageError):
                queues[name] = self._of_queue(q, standing)
        return BackendMetrics(
            queues=queues,
            store_bytes=memory_of(self._engine.server).used_bytes or 0,
            sync_s=_nothing(SYNC_BOUNDS),
            group_commit_calls=_nothing(SIZE_BOUNDS),
        )

    def _of_queue(self, q: Known, standing: Standing) -> QueueMetrics:
        meter = self._settling.meters[q.name]
        c = standing.counters
        return QueueMetrics(
            stats=self._stats(standing),
            events={"enqueued": c.enqueued_total, "acked": c.acked_total},
            wait_s=meter.waits.read(),
            service_s=meter.services.read(),
            cursors=standing.cursors,
            keys=self._key_stats(q.name, *self._sums(q), KEYS_MEASURED),
        )


def _nothing(bounds: tuple[float, ...]) -> Histogram:
    """Syncs are the server's."""
    return Histogram(bounds, (0,) * (len(bounds) + 1), 0.0)


def _standing(reply: list[Any]) -> Standing:
    _, now_us, counters, oldest, rates, cursors = reply
    return Standing(
        now_us,
        decode_counters(counters),
        int(float(oldest)) if oldest else None,
        {name: int(count) for name, count in pairs(rates)},
        cursor_infos(cursors),
    )


def _judged(q: Known, reply: list[Any] | PenstockError | None) -> Standing | PenstockError:
    if reply is None:
        return BackendUnavailable(f"queue {q.name!r} is being repaired, or a repair of it has not ended")
    try:
        return reply if isinstance(reply, PenstockError) else _standing(reply)
    except StorageError as error:
        return error


def _rate(standing: Standing, kind: bytes) -> float:
    """Per second over the last minute: slots of seconds that are not a minute old."""
    second, total = standing.counters.second, 0
    now = standing.now_us // 1_000_000
    for ago in range(RATE_WINDOW_S):
        one = second - ago
        if now - RATE_WINDOW_S < one <= now:
            total += standing.rates.get(kind + b"%d" % (one % RATE_WINDOW_S), 0)
    return total / RATE_WINDOW_S
