"""The cluster that holds stores of tests: three masters, each with a replica, logs synced at each write."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import random
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import redis

import penstock
from penstock.backends.redis.keys import Keys
from penstock.clock import Clock, ManualClock
from penstock.testing.harness import START_NS
from tests.redis.sealed import stored_on
from tests.redis.servers import RunningCluster, packaged_redis, packaged_valkey, running_cluster
from tests.redis.stores import opened

_PACKAGED = {"redis": packaged_redis, "valkey": packaged_valkey}
#: Nobody is to take over from a master that a busy machine keeps waiting.
PATIENT = {"appendonly": "yes", "appendfsync": "always", "cluster-node-timeout": "60000"}
_numbers = itertools.count()


@cache
def shared(flavour: str = "redis") -> RunningCluster:
    """One for all tests of this process, whose slots nobody moves; ended with it."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-cluster-"))
    binary = _PACKAGED[flavour]()
    return stack.enter_context(running_cluster(Path(folder), binary, options=PATIENT))


def emptied(cluster: RunningCluster) -> None:
    for master in cluster.masters:
        master.do("FLUSHALL")


class Place:
    """A prefix on a cluster: opened as often as a test likes."""

    def __init__(self, kind: str = "lists", cluster: RunningCluster | None = None) -> None:
        self.kind = kind
        self.cluster = cluster or shared()
        self.prefix = f"place-{next(_numbers)}-"
        self.clock = ManualClock(START_NS)
        self._opened: list[penstock.Penstock] = []

    @property
    def url(self) -> str:
        return f"{self.cluster.url(self.kind)}&key_prefix={self.prefix}"

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
        first = self.cluster.masters[0]
        where = first.binary.flavour, first.port, self.prefix
        more = {"clock": clock or self.clock, "kind": self.kind}
        ps = opened(*where, keys, key_id, follow=follow, cluster=True, **more)  # type: ignore[arg-type]
        self._opened.append(ps)
        return ps

    @property
    def keys(self) -> Keys:
        return Keys(self.prefix, "stream" if self.kind == "streams" else "hash")

    def forget_rekeyer(self) -> None:
        """As if who rekeys had not been there for a while."""
        for master in self.cluster.masters:
            with contextlib.suppress(redis.ResponseError):  # It is another's.
                master.do("DEL", self.keys.rekeyer)

    def everything(self) -> dict[bytes, Any]:
        """All keys of the store with what they hold, of all who are masters by now."""
        found: dict[bytes, Any] = {}
        for server in self.cluster.servers:
            with server.client() as client:
                if client.role()[0] == b"master":
                    found |= stored_on(client, self.prefix)
        return found

    def stored(self) -> set[bytes]:
        """All keys of the store, of all masters."""
        found: set[bytes] = set()
        for master in self.cluster.masters:
            with master.client() as client:
                found |= set(client.scan_iter(f"{self.prefix}*", count=1000))
        return found

    def close(self) -> None:
        for ps in self._opened:
            ps.close()
        emptied(self.cluster)
