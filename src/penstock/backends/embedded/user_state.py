"""Small values by key, for users and for their scripts."""

from __future__ import annotations

from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import MARK, unmarked
from penstock.errors import InvalidMessage
from penstock.message import MAX_PAYLOAD_BYTES, checked_name


class UserState:
    """The key-value state of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def put(self, key: str, value: bytes) -> None:
        if not isinstance(value, bytes) or len(value) > MAX_PAYLOAD_BYTES:
            raise InvalidMessage(f"state value must be bytes, {MAX_PAYLOAD_BYTES} at most")
        self._write(key, MARK + value)

    def get(self, key: str) -> bytes | None:
        row_key = keys.meta(Meta.USER_STATE, checked_name(key, "state key"))
        with self._engine.lock:
            self._engine.check_usable()
            raw = self._engine.kv.get(row_key, self._engine.meta)
        return None if raw is None else unmarked(raw, "user state")

    def delete(self, key: str) -> None:
        self._write(key, None)

    def _write(self, key: str, row: bytes | None) -> None:
        row_key = keys.meta(Meta.USER_STATE, checked_name(key, "state key"))

        def command() -> None:
            with self._engine.lock, self._engine.transaction() as txn:
                txn.changed = True
                if row is None:
                    txn.delete(row_key, self._engine.meta)
                else:
                    txn.put(row_key, row, self._engine.meta)
                txn.answered(None)

        self._engine.durably(command)
