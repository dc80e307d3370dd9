"""The backend on Redis streams: what it has besides what is common to backends on Redis, and its factory."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from penstock.backends.base import GroupInfo
from penstock.backends.redis.backend import RedisBackend
from penstock.backends.redis.capabilities import STREAMS_SORT
from penstock.backends.redis.engine import BETWEEN
from penstock.backends.redis.groups import Groups
from penstock.backends.redis.opening import opened
from penstock.backends.redis.stream_keeping import StreamKeeping
from penstock.backends.redis.stream_numbers import StreamNumbering, StreamNumbers
from penstock.clock import Clock
from penstock.errors import InvalidMessage, QueueNotFound
from penstock.keyring import KeyProvider
from penstock.message import Delivery, EnqueueResult, NewMessage, Outcome, check_count, checked_name
from penstock.redis_settings import RedisSettings


class StreamsBackend(RedisBackend):
    """Queues on streams of a server of the Redis family."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._groups = Groups(self._engine, self._catalogue)
        self._sweeping.finish_groups = self._groups.finish
        self._numbering = StreamNumbering(self._engine, StreamKeeping(self._engine))

    # -- groups

    def lease(
        self, queue: str, max_messages: int, lease_s: float | None, wait_s: float, consumer: str
    ) -> list[Delivery]:
        if BETWEEN in queue:
            return super().lease(queue, max_messages, lease_s, wait_s, consumer)
        return self.lease_group(queue, self._groups.usual(queue), max_messages, lease_s, wait_s, consumer)

    def lease_group(
        self, queue: str, group: str, max_messages: int, lease_s: float | None, wait_s: float, consumer: str
    ) -> list[Delivery]:
        checked_name(group, "group")
        check_count(max_messages, "max_messages")
        while True:
            line = self._groups.line(queue, group) if max_messages else queue
            try:
                address = queue + BETWEEN + group if line == queue and max_messages else line
                return super().lease(address, max_messages, lease_s, wait_s, consumer)
            except QueueNotFound:
                self._engine.forget(queue)
                self._engine.queue(queue)  # Not there any more; else made anew meanwhile, without the group.

    def create_group(self, queue: str, group: str) -> None:
        self._groups.create(queue, group)

    def groups(self, queue: str) -> list[GroupInfo]:
        return self._groups.infos(queue)

    def drop_group(self, queue: str, group: str) -> None:
        self._groups.drop(queue, group)

    def group_line(self, queue: str, group: str) -> str:
        checked_name(group, "group")
        known = self._engine.load(queue + BETWEEN + group)
        if known is None:
            self._engine.queue(queue)
            raise InvalidMessage(f"queue {queue!r} has no consumer group {group!r:.60}")
        return known.address

    def ack(self, queue: str, receipts: Sequence[str]) -> list[Outcome]:
        return self._groups.by_line(queue, receipts, super().ack)

    def nack(self, queue: str, receipts: Sequence[str], delay_s: float | None, reason: str) -> list[Outcome]:
        nack = super().nack
        return self._groups.by_line(queue, receipts, lambda line, some: nack(line, some, delay_s, reason))

    def reject(self, queue: str, receipts: Sequence[str], reason: str) -> list[Outcome]:
        reject = super().reject
        return self._groups.by_line(queue, receipts, lambda line, some: reject(line, some, reason))

    def extend(self, queue: str, receipts: Sequence[str], lease_s: float) -> list[Outcome]:
        extend = super().extend
        return self._groups.by_line(queue, receipts, lambda line, some: extend(line, some, lease_s))

    def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        _refuse_lines("enqueue", queue)
        return super().enqueue(queue, messages)

    def upsert(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        _refuse_lines("upsert", queue)
        return super().upsert(queue, messages)

    def move(self, queue: str, ids: Sequence[str], target: str) -> list[Outcome]:
        _refuse_lines("move", queue, target)
        return super().move(queue, ids, target)

    def redrive(self, queue: str, limit: int, target: str | None) -> int:
        _refuse_lines("redrive", target)
        return super().redrive(queue, limit, target)

    def purge(self, queue: str, states: Collection[str]) -> int:
        done = super().purge(queue, states)
        for line in () if BETWEEN in queue else self._engine.queue(queue).further_lines:
            super().purge(line, states)
        return done

    # -- numbers

    def stream_numbers(self, queue: str) -> StreamNumbers:
        """Length of a queue's stream, what is pending, and the lag of its consumers."""
        return self._numbering.of_queue(queue)

    def group_numbers(self, queue: str) -> list[StreamNumbers]:
        """The same for each of its groups, that of the own line first."""
        return self._numbering.of_groups(queue)

    def extra_health(self) -> dict[str, int]:
        length, lag = self._numbering.totals()
        return {"stream_length": length, "consumer_lag": lag}

    def _own_reasons(self) -> Iterable[str]:
        return self._numbering.reasons()


def _refuse_lines(what: str, *queues: str | None) -> None:
    """What one group has is what others have, too: messages come to a queue, and leave it, as a whole."""
    for queue in queues:
        if isinstance(queue, str) and BETWEEN in queue:
            raise InvalidMessage(
                f"{what}: {queue.replace(BETWEEN, ' of group ')!r} is one group's; name the queue"
            )


def open_streams(
    settings: RedisSettings, clock: Clock | None, rng: random.Random | None, keys: KeyProvider | None
) -> StreamsBackend:
    return opened(StreamsBackend, settings, clock, rng, keys, STREAMS_SORT)
