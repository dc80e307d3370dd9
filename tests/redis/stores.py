"""Stores of tests on Redis: on the process's shared server, each under a prefix of its own."""

from __future__ import annotations

import itertools
import random
from typing import Any

import penstock
from penstock.backends.redis.keys import Keys
from penstock.clock import Clock, ManualClock
from penstock.testing.harness import START_NS
from tests.redis.one_server import shared

_numbers = itertools.count()


class Place:
    """A prefix on the shared server: opened as often as a test likes, and looked into from beside."""

    def __init__(self) -> None:
        self.prefix = f"place-{next(_numbers)}-"
        self.server = shared()
        self.client: Any = self.server.client()
        self.clock = ManualClock(START_NS)
        self._opened: list[penstock.Penstock] = []

    @property
    def url(self) -> str:
        return f"{shared().url()}?key_prefix={self.prefix}"

    def open(self, seed: int = 1, clock: Clock | None = None) -> penstock.Penstock:
        ps = penstock.open(self.url, clock=clock or self.clock, rng=random.Random(seed))
        self._opened.append(ps)
        return ps

    def key(self, queue: str, part: str) -> bytes:
        """A queue's key by the name that docs/formats.md has for it."""
        return next(key for key in Keys(self.prefix).queue(queue) if key.endswith(b":" + part.encode()))

    def close(self) -> None:
        for ps in self._opened:
            ps.close()
        self.client.flushall(asynchronous=True)
        self.client.close()
