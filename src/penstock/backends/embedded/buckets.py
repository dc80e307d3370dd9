"""The token buckets of one store: read when a lane needs one, written with the leases that draw on them.

All queues share them. One bucket is one object for as long as anything refers to it, so that every queue
sees what the others take; what is not referred to is read again from its row.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import packed, unpacked
from penstock.errors import StorageCorrupt
from penstock.scheduling.throttle import MAX_BURST, TOKEN, Bucket

if TYPE_CHECKING:
    from penstock.backends.embedded.engine import Engine, Transaction

log = logging.getLogger("penstock")

#: Buckets kept though no lane needs them just now: a queue that is always drained needs them again and again.
RECENT = 1024


class ThrottleRow(msgspec.Struct, array_like=True):
    """A limit, and what its bucket held at a time: whole tokens and a part of one, in units."""

    rate_nano: int
    burst: int
    tokens: int
    part: int
    at_ns: int


_decode = msgspec.msgpack.Decoder(ThrottleRow).decode


def decode_throttle(raw: bytes) -> ThrottleRow:
    row = unpacked(raw, _decode, "throttle")
    sound = (
        min(row.rate_nano, row.tokens, row.part, row.at_ns) >= 0
        and 0 <= row.burst <= MAX_BURST
        and row.part < TOKEN
        and row.tokens * TOKEN + row.part <= row.burst * TOKEN
    )
    if not sound:
        raise StorageCorrupt("throttle row does not decode: its numbers cannot be")
    return row


def throttle_key(key: str) -> bytes:
    return keys.meta(Meta.THROTTLE, key.encode())


class Buckets:
    """Buckets by throttle key. Guarded by the engine's lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Keys whose limit cannot be read, and why: nothing of them is delivered.
        self.damaged: dict[str, str] = {}
        self.forget()

    def forget(self) -> None:
        """After a failed write, or a repair: what is stored counts. Queues must be loaded anew too."""
        self._known: WeakValueDictionary[str, Bucket] = WeakValueDictionary()
        self._recent: deque[Bucket] = deque(maxlen=RECENT)
        self.damaged.clear()

    def get(self, key: str) -> Bucket:
        bucket = self._known.get(key)
        if bucket is None:
            bucket = self._known[key] = self._read(key)
            self._recent.append(bucket)
        return bucket

    def _read(self, key: str) -> Bucket:
        bucket = Bucket(key)
        raw = self._engine.kv.get(throttle_key(key), self._engine.meta)
        if raw is None:
            return bucket
        try:
            row = decode_throttle(raw)
        except StorageCorrupt as error:
            # Closed rather than open: whoever is at the other end of a limit cannot take its loss back.
            log.error("throttle %r is damaged, and closed: %s", key, error)
            self.damaged[key] = str(error)
            bucket.limit(0, 0, 0)
            return bucket
        bucket.rate_nano, bucket.burst, bucket.at_ns = row.rate_nano, row.burst, row.at_ns
        bucket.units = row.tokens * TOKEN + row.part
        return bucket

    def write(self, txn: Transaction, bucket: Bucket) -> None:
        """The bucket of a limited key, as it stands, becomes part of this write."""
        tokens, part = divmod(bucket.units, TOKEN)
        row = ThrottleRow(bucket.rate_nano, bucket.burst or 0, tokens, part, bucket.at_ns)
        txn.put(throttle_key(bucket.key), packed(row), self._engine.meta)
