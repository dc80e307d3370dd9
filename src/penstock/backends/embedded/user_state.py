"""Small values by key, beside the queues."""

from __future__ import annotations

from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import MARK, unmarked
from penstock.errors import InvalidMessage
from penstock.message import MAX_PAYLOAD_BYTES, checked_name


class UserState:
    """The values of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def put(self, key: str, value: bytes) -> None:
        row_key = _row_key(key)
        if not isinstance(value, bytes) or len(value) > MAX_PAYLOAD_BYTES:
            raise InvalidMessage(f"state value must be bytes, {MAX_PAYLOAD_BYTES} at most")

        def command() -> None:
            with self._engine.lock, self._engine.transaction() as txn:
                txn.changed = True
                txn.put(row_key, MARK + value, self._engine.meta)
                txn.answered(None)

        self._engine.durably(command)

    def get(self, key: str) -> bytes | None:
        row_key = _row_key(key)
        with self._engine.lock:
            self._engine.check_usable()
            raw = self._engine.kv.get(row_key, self._engine.meta)
        return None if raw is None else unmarked(raw, "user state")

    def delete(self, key: str) -> None:
        row_key = _row_key(key)

        def command() -> None:
            with self._engine.lock, self._engine.transaction() as txn:
                txn.changed = True
                txn.delete(row_key, self._engine.meta)
                txn.answered(None)

        self._engine.durably(command)


def _row_key(key: str) -> bytes:
    return keys.meta(Meta.USER_STATE, checked_name(key, "state key"))
