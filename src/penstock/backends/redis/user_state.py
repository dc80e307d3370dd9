"""Small values by key, for users and for their scripts."""

from __future__ import annotations

from penstock.backends.redis.engine import Engine
from penstock.errors import InvalidMessage
from penstock.message import MAX_PAYLOAD_BYTES, checked_name


class UserState:
    """The key-value state of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def put(self, key: str, value: bytes) -> None:
        if not isinstance(value, bytes) or len(value) > MAX_PAYLOAD_BYTES:
            raise InvalidMessage(f"state value must be bytes, {MAX_PAYLOAD_BYTES} at most")
        self._engine.server.command("HSET", self._engine.keys.state, checked_name(key, "state key"), value)

    def get(self, key: str) -> bytes | None:
        raw = self._engine.server.command("HGET", self._engine.keys.state, checked_name(key, "state key"))
        return None if raw is None else bytes(raw)

    def delete(self, key: str) -> None:
        self._engine.server.command("HDEL", self._engine.keys.state, checked_name(key, "state key"))
