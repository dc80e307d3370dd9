"""The backend on Redis streams: what it has besides what is common to backends on Redis, and its factory."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from penstock.backends.redis.backend import RedisBackend
from penstock.backends.redis.capabilities import STREAMS_SORT
from penstock.backends.redis.groups import Groups
from penstock.backends.redis.opening import opened
from penstock.backends.redis.stream_keeping import StreamKeeping
from penstock.backends.redis.stream_numbers import StreamNumbering, StreamNumbers
from penstock.clock import Clock
from penstock.keyring import KeyProvider
from penstock.redis_settings import RedisSettings


class StreamsBackend(RedisBackend):
    """Queues on streams of a server of the Redis family."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._groups = Groups(self._engine, self._catalogue)
        self._leasing.take_line = self._groups.take_line
        self._numbering = StreamNumbering(self._engine, StreamKeeping(self._engine))

    def stream_numbers(self, queue: str) -> StreamNumbers:
        """Length of a queue's stream, what is pending, and the lag of its consumers."""
        return self._numbering.of_queue(queue)

    def _own_reasons(self) -> Iterable[str]:
        return self._numbering.reasons()


def open_streams(
    settings: RedisSettings, clock: Clock | None, rng: random.Random | None, keys: KeyProvider | None
) -> StreamsBackend:
    return opened(StreamsBackend, settings, clock, rng, STREAMS_SORT)
