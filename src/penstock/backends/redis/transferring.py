"""Messages that go from one queue to another in one step: dead letters, moved and redriven ones."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import Engine, Known
from penstock.backends.redis.records import BURIED, lane, level_of
from penstock.codec.body import Body, encode_body
from penstock.message import DEFAULT_PRIORITY

DEAD, REDRIVEN, MOVED = 8, 9, 10
_ROW = struct.Struct(">QQ")
#: What one call takes at most.
MOST = 250
MOST_BYTES = 8 << 20


class Transfer(NamedTuple):
    """A message as it is to arrive, and the seq that tells that it is still as it was seen."""

    raw_id: bytes
    seq: int
    body: Body
    reason: str = ""


class Transferring:
    """Transfers between the queues of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def bury(self, q: Known, target: Known, transfers: Sequence[Transfer]) -> list[bytes]:
        return self.transfer(q, target, transfers, DEAD, BURIED)

    def transfer(
        self, q: Known, target: Known, transfers: Sequence[Transfer], kind: int, flags: int = 0
    ) -> list[bytes]:
        """For each '1' if it went, '0' if it is not as it was, '2' if the target has its id."""
        return list(self.each(q, target, transfers, kind, flags))

    def each(
        self, q: Known, target: Known, transfers: Sequence[Transfer], kind: int, flags: int = 0
    ) -> Iterator[bytes]:
        """The same, as they go: an error comes behind the answers of those that went before it."""
        rows: list[bytes] = []
        some: list[tuple[Transfer, bytes, bytes]] = []
        size = 0

        def sealed() -> list[Arg]:
            names = q.name.encode(), target.name.encode()
            sent: list[Arg] = [kind, *names, bytes((flags,)), b"".join(rows)]
            for one, line, body in some:
                # Each queue has the reason in its journal, sealed for itself.
                reasons = [self._engine.sealed_reason(queue, one.raw_id, one.reason) for queue in (q, target)]
                sent += (one.raw_id, line, self._engine.sealed_body(target, one.raw_id, body), *reasons)
            return sent

        def flush() -> Iterator[bytes]:
            reply = self._engine.run_sealed("transfer", [q, target], sealed)
            for i in range(len(reply[2])):
                yield reply[2][i : i + 1]

        for one in transfers:
            body = encode_body(_without_times(one.body), target.compress_over_bytes)
            if rows and (len(rows) == MOST or size + len(body) > MOST_BYTES):
                yield from flush()
                rows, some, size = [], [], 0
            rows.append(_ROW.pack(one.seq, one.body.expires_at_ns // 1000))
            priority = DEFAULT_PRIORITY if target.settings.fifo else one.body.priority
            line = lane(level_of(priority), one.body.fairness_key.encode())
            some.append((one, line, body))
            size += len(body)
        if rows:
            yield from flush()


def _without_times(body: Body) -> Body:
    return Body(
        body.priority,
        body.weight,
        0,
        0,
        0,
        body.fairness_key,
        body.headers,
        body.throttle_keys,
        body.dedup_id,
        body.payload,
    )
