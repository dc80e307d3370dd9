"""Messages that go from one queue to another in one step: dead letters, moved and redriven ones."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from penstock.backends.burial import buried, revived
from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import Engine, Known
from penstock.backends.redis.records import BURIED, CODES, StateRecord, lane, level_of
from penstock.codec.body import Body, encode_body
from penstock.message import DEFAULT_PRIORITY, State

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


class Parcel(NamedTuple):
    """A message as the target stores it."""

    transfer: Transfer
    line: bytes
    body: bytes


def as_arriving(
    kind: int, queue: str, raw_id: bytes, record: StateRecord, body: Body, reason: str = ""
) -> Transfer:
    """What a message of a queue becomes in another one; `body` as it is here, with its times."""
    if kind == DEAD:
        body = buried(body, queue, record.attempts, reason or record.reason)
    elif kind == REDRIVEN:
        body = revived(body)
    else:
        expires_ns = 0 if record.code == CODES[State.DEAD] else body.expires_at_ns
        body = msgspec.structs.replace(revived(body), expires_at_ns=expires_ns)
    return Transfer(raw_id, record.seq, body, reason)


class Transferring:
    """Transfers between the queues of one store: on one server, each batch is one script."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def transfer(self, q: Known, target: Known, transfers: Sequence[Transfer], kind: int) -> list[bytes]:
        """For each '1' if it went, '0' if it is not as it was, '2' if the target has its id."""
        return list(self.each(q, target, transfers, kind))

    def each(self, q: Known, target: Known, transfers: Sequence[Transfer], kind: int) -> Iterator[bytes]:
        """The same, as they go: an error comes behind the answers of those that went before it."""
        parcels: list[Parcel] = []
        size = 0
        for one in transfers:
            parcel = packed(target, one)
            if parcels and (len(parcels) == MOST or size + len(parcel.body) > MOST_BYTES):
                yield from self._send(q, target, kind, parcels)
                parcels, size = [], 0
            parcels.append(parcel)
            size += len(parcel.body)
        if parcels:
            yield from self._send(q, target, kind, parcels)

    def _send(self, q: Known, target: Known, kind: int, parcels: Sequence[Parcel]) -> list[bytes]:
        rows = [_ROW.pack(one.transfer.seq, one.transfer.body.expires_at_ns // 1000) for one in parcels]
        names = q.name.encode(), target.name.encode()

        def sealed() -> list[Arg]:
            sent: list[Arg] = [kind, *names, bytes((flags_of(kind),)), b"".join(rows)]
            for one in parcels:
                # Each queue has the reason in its journal, sealed for itself.
                raw_id, reason = one.transfer.raw_id, one.transfer.reason
                reasons = [self._engine.sealed_reason(queue, raw_id, reason) for queue in (q, target)]
                sent += (raw_id, one.line, self._engine.sealed_body(target, raw_id, one.body), *reasons)
            return sent

        reply = self._engine.run_sealed("transfer", [q, target], sealed)
        return [reply[2][i : i + 1] for i in range(len(reply[2]))]

    # -- what was interrupted: on one server, nothing ever is

    def resume(self, q: Known, transfer: bytes) -> None:
        """Go on with a transfer that started from this queue."""

    def resume_all(self, q: Known) -> None:
        """Go on with all of them."""

    def forget(self, q: Known, transfer: bytes) -> None:
        """A transfer that arrived in this queue need not be remembered if it is over where it came from."""


def flags_of(kind: int) -> int:
    return BURIED if kind == DEAD else 0


def packed(target: Known, one: Transfer) -> Parcel:
    priority = DEFAULT_PRIORITY if target.settings.fifo else one.body.priority
    line = lane(level_of(priority), one.body.fairness_key.encode())
    return Parcel(one, line, encode_body(_without_times(one.body), target.compress_over_bytes))


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
