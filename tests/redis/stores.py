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
    kind: str = "lists",
    cluster: bool = False,
) -> penstock.Penstock:
    """A store with encryption as `Place.sealed` says."""
    encryption = EncryptionSettings(enabled=None if follow else key_id is not None, key_id=key_id or "main")
    settings = RedisSettings(
        flavour=flavour,
        kind=kind,
        nodes=(("127.0.0.1", port),),
        key_prefix=prefix,
        encryption=encryption,
        cluster=cluster,
    )
    config = Config(source="test", default=settings)
    return penstock.open(config, keys=keys, clock=clock or ManualClock(START_NS), rng=random.Random(1))


class Place:
    """A prefix on the shared server: opened as often as a test likes, and looked into from beside."""

    def __init__(self, kind: str = "lists", server: RunningServer | None = None) -> None:
        self.kind = kind
        self.prefix = f"place-{next(_numbers)}-"
        self.server = server or shared()
        self.client: Any = self.server.client()
        self.clock = ManualClock(START_NS)
        self._opened: list[penstock.Penstock] = []

    @property
    def url(self) -> str:
        return f"{self.server.url(self.kind)}?key_prefix={self.prefix}"

    def open(self, seed: int = 1, clock: Clock | None = None) -> penstock.Penstock:
        ps = penstock.open(self.url, clock=clock or self.clock, rng=random.Random(seed))
        self._opened.append(ps)
        return ps

    @property
    def keys(self) -> Keys:
        return Keys(self.prefix, "stream" if self.kind == "streams" else "hash")

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
        ps = opened(*where, keys, key_id, follow=follow, clock=clock or self.clock, kind=self.kind)
        self._opened.append(ps)
        return ps

    def key(self, queue: str, part: str) -> bytes:
        """A queue's key by the name that docs/formats.md has for it."""
        return next(key for key in self.keys.queue(queue) if key.endswith(b":" + part.encode()))

    def lose_body(self, queue: str, raw_id: bytes) -> None:
        """As damage would."""
        if self.kind == "lists":
            self.client.hdel(self.key(queue, "m"), raw_id)
        else:
            self.client.xdel(self.key(queue, "m"), *self._entries(queue, raw_id))

    def spoil_body(self, queue: str, raw_id: bytes, body: bytes) -> None:
        """Another body in the place of a message's own. A stream's entries are written anew for that."""
        stream = self.key(queue, "m")
        if self.kind == "lists":
            self.client.hset(stream, raw_id, body)
            return
        entries = self.client.xrange(stream)
        groups = [group["name"] for group in self.client.xinfo_groups(stream)]
        pending = {g: self.client.xpending_range(stream, g, "-", "+", 10_000) for g in groups}
        self.client.delete(stream)
        for entry, fields in entries:
            new = {b"i": fields[b"i"], b"b": body if fields[b"i"] == raw_id else fields[b"b"]}
            self.client.xadd(stream, new, id=entry)
        for group, rows in pending.items():
            self.client.xgroup_create(stream, group, id="0")
            for row in rows:
                owner, entry = row["consumer"], row["message_id"]
                self.client.xclaim(stream, group, owner, 0, [entry], force=True)

    def _entries(self, queue: str, raw_id: bytes) -> list[bytes]:
        rows = self.client.xrange(self.key(queue, "m"))
        return [entry for entry, fields in rows if fields[b"i"] == raw_id]

    def bodies(self, queue: str) -> int:
        """How many are there."""
        count = self.client.hlen if self.kind == "lists" else self.client.xlen
        return int(count(self.key(queue, "m")))

    def close(self) -> None:
        for ps in self._opened:
            ps.close()
        self.client.flushall(asynchronous=True)
        self.client.close()
