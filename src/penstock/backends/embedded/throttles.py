"""Limits by throttle key: set, look, delete, while messages wait for their tokens."""

from __future__ import annotations

import msgspec

from penstock.backends.base import Throttle
from penstock.backends.embedded import keys
from penstock.backends.embedded.buckets import throttle_key
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.worlds import SYSTEM_WORLD, Worlds
from penstock.clock import NS_PER_S
from penstock.event import Entry
from penstock.message import checked_name
from penstock.scheduling.throttle import Bucket, checked_burst, checked_rate

#: What the system journal says of a limit; its body has what was set.
THROTTLE_SET, THROTTLE_DELETED = "throttle_set", "throttle_deleted"


class Throttles:
    """The limits of one store."""

    def __init__(self, engine: Engine, worlds: Worlds) -> None:
        self._engine = engine
        self._worlds = worlds

    def set(self, key: str, rate_per_s: float, burst: float) -> None:
        checked_name(key, "throttle key")
        rate_nano, most = checked_rate(rate_per_s), checked_burst(burst)
        engine = self._engine
        with engine.lock:
            with engine.transaction() as txn:
                txn.changed = True
                bucket = engine.buckets.get(key)
                bucket.limit(rate_nano, most, txn.now_ns)
                txn.drawn.add(bucket)
                body = msgspec.json.encode({"rate_per_s": rate_nano / NS_PER_S, "burst": most})
                self._worlds.append_in(txn, SYSTEM_WORLD, [Entry(THROTTLE_SET, body, [key])])
                txn.answered(None)
            engine.buckets.damaged.pop(key, None)
            engine.bucket_changed(bucket)

    def delete(self, key: str) -> None:
        checked_name(key, "throttle key")
        engine = self._engine
        with engine.lock:
            with engine.transaction() as txn:
                bucket = engine.buckets.get(key)
                if bucket.burst is not None:
                    txn.changed = True
                    bucket.unlimit()
                    txn.delete(throttle_key(key), engine.meta)
                    self._worlds.append_in(txn, SYSTEM_WORLD, [Entry(THROTTLE_DELETED, b"", [key])])
                    txn.answered(None)
            engine.buckets.damaged.pop(key, None)
            engine.bucket_changed(bucket)

    def get(self, key: str) -> Throttle | None:
        checked_name(key, "throttle key")
        with self._engine.lock:
            self._engine.check_usable()
            return self._shown(self._engine.buckets.get(key))

    def all(self, limit: int | None = None) -> list[Throttle]:
        """By key, the first so many."""
        engine, prefix = self._engine, keys.meta(Meta.THROTTLE)
        with engine.lock:
            engine.check_usable()
            rows = engine.kv.scan(engine.meta, prefix, keys.after_prefix(prefix), limit=limit)
            shown = [self._shown(engine.buckets.get(key[1:].decode(errors="replace"))) for key, _ in rows]
        return [one for one in shown if one is not None]

    def _shown(self, bucket: Bucket) -> Throttle | None:
        if bucket.burst is None:
            return None
        level = bucket.level(self._engine.clock.now_ns())
        return Throttle(bucket.key, bucket.rate_nano / NS_PER_S, bucket.burst, level)
