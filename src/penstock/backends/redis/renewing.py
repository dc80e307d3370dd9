"""Stored values sealed once more with the active key: what each kind becomes, and what does not open."""

from __future__ import annotations

from collections import Counter

from penstock.backends.redis.engine import OWN_REASONS, Engine, Known, is_sealed_text
from penstock.backends.redis.intents import TIME_BYTES, decode_intent, encode_intent
from penstock.backends.redis.records import verify
from penstock.backends.redis.resealing import reason_of, with_reason, with_reasons
from penstock.backends.redis.seals import BODIES, REASONS, VALUES
from penstock.backends.unlocking import PLAIN
from penstock.codec.sealed import key_id_of
from penstock.errors import StorageCorrupt

#: How the record of a message on its way begins: this, and the transfer's id.
AWAY, AWAY_BYTES = b"\x07", 17


class Renewing:
    """Renews values, and counts by key those that do not open: they are left as they are."""

    def __init__(self, engine: Engine) -> None:
        self._seals = engine.seals
        self.unreadable: Counter[str] = Counter()

    def value(self, place: str, key: bytes, raw: bytes) -> bytes:
        """A value as it should be stored: the very same bytes if it is so already, or does not open."""
        seals = self._seals
        if place == VALUES:
            sealed = seals.is_sealed(raw)
        else:
            sealed = is_sealed_text(raw) if place == REASONS else key_id_of(raw) is not None
        key_id = key_id_of(raw) if sealed else None
        if key_id == seals.active:
            return raw
        plain = seals.opened(place, key, raw) if sealed else raw if seals.takes_plain else None
        if plain is None:
            self.unreadable[key_id or ""] += 1
            return raw
        return seals.seal(place, key, plain)

    def body(self, q: Known, raw_id: bytes, raw: bytes) -> bytes:
        return self.value(BODIES, q.seal_start + raw_id, raw)

    def record(self, q: Known, raw_id: bytes, raw: bytes) -> bytes:
        if raw[:1] == AWAY:
            # On its way to another queue: the record that it had is behind the transfer's id.
            was = raw[AWAY_BYTES:]
            new = self.record(q, raw_id, was)
            return raw if new is was else raw[:AWAY_BYTES] + new
        old = reason_of(raw)
        if old is None:
            return self._damaged(raw)
        new = self.reason(q, raw_id, old)
        return raw if new is old else with_reason(raw, new)

    def reason(self, q: Known, raw_id: bytes, raw: bytes) -> bytes:
        return raw if raw in OWN_REASONS else self.value(REASONS, q.seal_start + raw_id, raw)

    def departure(self, q: Known, raw: bytes) -> bytes:
        """What is known of a transfer that is under way."""
        try:
            intent = decode_intent(raw[TIME_BYTES:])
        except StorageCorrupt:
            return self._damaged(raw)
        named = zip(intent.ids, intent.reasons, strict=True)
        reasons = [self.reason(q, raw_id, reason) for raw_id, reason in named]
        if reasons == intent.reasons:
            return raw
        return raw[:TIME_BYTES] + encode_intent(intent._replace(reasons=reasons))

    def frame(self, q: Known, raw: bytes) -> bytes:
        try:
            verify(raw)  # A damaged one must not get a checksum that fits.
            return with_reasons(raw, lambda raw_id, reason: self.reason(q, raw_id, reason))
        except StorageCorrupt:
            return self._damaged(raw)

    def _damaged(self, raw: bytes) -> bytes:
        self.unreadable[PLAIN] += 1
        return raw
