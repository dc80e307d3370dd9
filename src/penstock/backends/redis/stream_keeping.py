"""Housekeeping of streams: idle consumers, entries that nobody leased, and a history that is too long."""

from __future__ import annotations

import time

from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import Engine, Known
from penstock.clock import to_ns

#: A housekeeper that comes by more often looks at a stream no more often than this.
EVERY_S = 1.0


class StreamKeeping:
    """Keeps the streams of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._settings = engine.server.settings.streams
        #: Who waits looks again so often, though nothing is heard.
        self.look_every_ns = to_ns(self._settings.block_timeout_s)
        #: Where each queue's next round begins, and when its last one was.
        self._cursors: dict[str, bytes] = {}
        self._last_s: dict[str, float] = {}

    def limit(self, queue: str) -> tuple[Arg, Arg]:
        """How many entries a queue's stream is to have at most, '' for any number, and how that is meant."""
        own = self._engine.server.settings.queues.get(queue)
        most = own.max_length if own is not None and own.max_length is not None else self._settings.max_length
        return ("" if most is None else most), self._settings.trim_strategy

    def is_due(self, queue: str) -> bool:
        """Whether the last round was long enough ago for one beside the traffic."""
        return time.monotonic() - self._last_s.get(queue, -EVERY_S) >= EVERY_S

    def tidy(self, q: Known) -> bool:
        """A round; whether it found something to do."""
        settings, cursor = self._settings, self._cursors.get(q.address, b"0")
        idle_ms = round(settings.claim_min_idle_s * 1000)
        _, _, gone, released, cursor = self._engine.run("tidy", [q], idle_ms, settings.claim_count, cursor)
        self._cursors[q.address], self._last_s[q.address] = cursor, time.monotonic()
        return bool(gone or released)
