"""What repairs took out: rows by id, with where they were and why."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.backends.base import QuarantineItem
from penstock.backends.redis.connecting import pairs
from penstock.backends.redis.engine import Engine
from penstock.backends.redis.seals import QUARANTINE
from penstock.codec.sealed import refuse_sealed
from penstock.errors import MessageNotFound
from penstock.message import format_id


class _Row(msgspec.Struct, array_like=True, frozen=True):
    at_ns: int
    queue: str
    space: str
    key: bytes
    reason: str
    value: bytes


_decode = msgspec.msgpack.Decoder(_Row).decode


class Quarantine:
    """The quarantine of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def row(self, queue: str, space: str, key: bytes, reason: str, value: bytes) -> tuple[bytes, bytes]:
        """Id and row of something that is taken out."""
        at_ns = self._engine.now_us() * 1000
        item_id = format_id(self._engine.new_ids(1)[0]).encode()
        row = msgspec.msgpack.encode(_Row(at_ns, queue, space, key, reason, value))
        return item_id, self._engine.seals.seal(QUARANTINE, item_id, row)

    def _decoded(self, item_id: bytes, raw: bytes) -> _Row:
        plain = self._engine.seals.open(QUARANTINE, item_id, raw)
        refuse_sealed(plain, f"item {item_id.decode()} of the quarantine")
        return _decode(plain)

    def items(self, limit: int, after: str | None) -> list[QuarantineItem]:
        raw = self._engine.server.command("HGETALL", self._engine.keys.quarantine)
        found = []
        for item_id, value in sorted(pairs(raw)):
            if after is None or item_id.decode() > after:
                row = self._decoded(item_id, value)
                found.append(
                    QuarantineItem(
                        item_id.decode(), row.at_ns, row.queue, row.space, row.key, row.reason, len(row.value)
                    )
                )
        return found[:limit]

    def content(self, item_id: str) -> bytes:
        raw = self._engine.server.command("HGET", self._engine.keys.quarantine, item_id)
        if raw is None:
            raise MessageNotFound(item_id, "quarantine")
        return self._decoded(item_id.encode(), raw).value

    def drop(self, ids: Sequence[str]) -> int:
        if not ids:
            return 0
        return int(self._engine.server.command("HDEL", self._engine.keys.quarantine, *ids))
