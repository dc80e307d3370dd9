"""Small values by key, for users and for their scripts."""

from __future__ import annotations

from penstock.backends.redis.engine import CHANGED, Engine
from penstock.backends.redis.scripts import script
from penstock.backends.redis.seals import VALUES
from penstock.codec.sealed import not_sealed, refuse_sealed
from penstock.errors import InvalidMessage
from penstock.message import MAX_PAYLOAD_BYTES, checked_name


class UserState:
    """The key-value state of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def put(self, key: str, value: bytes) -> None:
        if not isinstance(value, bytes) or len(value) > MAX_PAYLOAD_BYTES:
            raise InvalidMessage(f"state value must be bytes, {MAX_PAYLOAD_BYTES} at most")
        engine, name = self._engine, checked_name(key, "state key")
        keys = [engine.keys.store, engine.keys.state]
        while True:
            fence, sealed = engine.seals.fence, engine.seals.seal(VALUES, name, value)
            if engine.server.run(script("state"), keys, [*engine.head(), fence, name, sealed])[0] != CHANGED:
                return
            engine.seals.look()

    def get(self, key: str) -> bytes | None:
        name = checked_name(key, "state key")
        raw = self._engine.server.command("HGET", self._engine.keys.state, name)
        return None if raw is None else self.opened(name, bytes(raw))

    def opened(self, name: bytes, raw: bytes) -> bytes:
        """A value may be any bytes: it is a sealed one if it names a key of the store."""
        seals = self._engine.seals
        if not seals.is_sealed(raw):
            if not seals.takes_plain:
                refuse_sealed(not_sealed(raw), f"state {name.decode()!r}")
            return raw
        plain = seals.opened(VALUES, name, raw)
        if plain is None:
            refuse_sealed(raw, f"state {name.decode()!r}")
        return raw if plain is None else plain

    def delete(self, key: str) -> None:
        self._engine.server.command("HDEL", self._engine.keys.state, checked_name(key, "state key"))
