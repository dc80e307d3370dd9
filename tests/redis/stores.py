"""Stores of tests on Redis: on the process's shared server, each under a prefix of its own."""

from __future__ import annotations

import itertools
import random
from typing import Any

import penstock
from penstock.backends.redis.keys import Keys
from penstock.clock import Clock, ManualClock
from penstock.config import Config, EncryptionSettings
from penstock.redis_settings import RedisSettings
from penstock.testing.harness import START_NS
from tests.redis.one_server import shared
from tests.redis.servers import RunningServer

_numbers = itertools.count()


def opened(
    flavour: str,
    port: int,
    prefix: str,
    keys: penstock.KeyProvider,
    key_id: str | None,
    *,
    follow: bool = False,
    clock: Clock | None = None,
) -> penstock.Penstock:
    """A store with encryption as `Place.sealed` says."""
    encryption = EncryptionSettings(enabled=None if follow else key_id is not None, key_id=key_id or "main")
    settings = RedisSettings(
        flavour=flavour, nodes=(("127.0.0.1", port),), key_prefix=prefix, encryption=encryption
    )
    config = Config(source="test", default=settings)
    return penstock.open(config, keys=keys, clock=clock or ManualClock(START_NS), rng=random.Random(1))


class Place:
    """A prefix on the shared server: opened as often as a test likes, and looked into from beside."""

    def __init__(self, server: RunningServer | None = None) -> None:
        self.prefix = f"place-{next(_numbers)}-"
        self.server = server or shared()
        self.client: Any = self.server.client()
        self.clock = ManualClock(START_NS)
        self._opened: list[penstock.Penstock] = []

    @property
    def url(self) -> str:
        return f"{self.server.url()}?key_prefix={self.prefix}"

    def open(self, seed: int = 1, clock: Clock | None = None) -> penstock.Penstock:
        ps = penstock.open(self.url, clock=clock or self.clock, rng=random.Random(seed))
        self._opened.append(ps)
        return ps

    def sealed(
        self,
        keys: penstock.KeyProvider,
        key_id: str | None = "main",
        *,
        follow: bool = False,
        clock: Clock | None = None,
    ) -> penstock.Penstock:
        """Encrypted with that key; None: encryption is off; `follow`: as the store says."""
        where = self.server.binary.flavour, self.server.port, self.prefix
        ps = opened(*where, keys, key_id, follow=follow, clock=clock or self.clock)
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
