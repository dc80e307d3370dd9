"""Transfers on a cluster, where two queues are two places: journaled, each step of them done once.

1. `depart`: at the source they leave the line, and what is to become of them is written down.
2. `arrive`: the target takes those whose ids it does not have, and remembers the transfer with its answer.
3. `departed`: the source removes what arrived, with the event, and puts back what did not.
4. `arrived`: the target forgets.

Whoever is killed between two of them leaves a transfer that the next sweep goes on with. Bodies stay at the
source until the target has them.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import MOST_CHANGES, Engine, Known, QueueChanged
from penstock.backends.redis.intents import TIME_BYTES, Intent, decode_intent, encode_intent
from penstock.backends.redis.keys import ARRIVALS, DEPARTURES
from penstock.backends.redis.looking import Looking
from penstock.backends.redis.records import CODES, StateRecord, stored_body
from penstock.backends.redis.transferring import (
    Parcel,
    Transferring,
    as_arriving,
    flags_of,
    packed,
)
from penstock.errors import BackendUnavailable, StorageCorrupt
from penstock.message import State

#: when it becomes visible, 0 for at once; expiry; when it was enqueued; weight
_ROW = struct.Struct(">QQQH")
#: Of what a target remembers: when, then the number of the source, and the length of its answers.
_ARRIVAL = struct.Struct(">QIH")

WENT, STAYED = b"1", b"0"


class Ferrying(Transferring):
    """Transfers between the queues of one store on a cluster."""

    def __init__(self, engine: Engine, looking: Looking) -> None:
        super().__init__(engine)
        self._looking = looking

    def _send(self, q: Known, target: Known, kind: int, parcels: Sequence[Parcel]) -> list[bytes]:
        transfer = os.urandom(16)
        ids = [one.transfer.raw_id for one in parcels]
        texts = {one.transfer.raw_id: one.transfer.reason for one in parcels}
        seqs = b"".join([one.transfer.seq.to_bytes(8, "big") for one in parcels])

        def intended() -> Intent:
            reasons = [self._engine.sealed_reason(q, raw_id, texts[raw_id]) for raw_id in ids]
            return Intent(kind, target.name, target.number, ids, reasons)

        _, _, answers, found = self._engine.run_sealed(
            "depart", [q], lambda: [transfer, encode_intent(intended()), seqs, *ids]
        )
        if not found:  # None was as it was seen; or all is over, for others have gone on with it meanwhile.
            return [bytes((answer,)) for answer in answers]
        records = iter(found)
        going: list[tuple[Parcel, StateRecord]] = []
        out: list[bytes] = []
        for one, answer in zip(parcels, answers, strict=True):
            out.append(bytes((answer,)))
            if out[-1] == WENT:
                raw_id = one.transfer.raw_id
                going.append((one, self._engine.record_to_settle(q, raw_id, next(records))))
        arrived = self._ferry(q, transfer, intended(), going, texts)
        if arrived is None:
            raise QueueChanged(q.address, target.name)
        return [arrived.get(one.transfer.raw_id, answer) for one, answer in zip(parcels, out, strict=True)]

    def _ferry(
        self,
        q: Known,
        transfer: bytes,
        intent: Intent,
        going: Sequence[tuple[Parcel, StateRecord]],
        texts: Mapping[bytes, str],
    ) -> dict[bytes, bytes] | None:
        """All steps behind the first; the target's answers by id, None if there is no such target.

        `texts` are the reasons of those that have one that can be read.
        """
        answers: dict[bytes, bytes] = {}
        head: list[Arg] = [
            *(
                transfer,
                q.number.to_bytes(4, "big"),
                q.address.encode(),
                bytes((flags_of(intent.kind), intent.kind)),
            ),
            b"".join([_row(*one) for one in going]),
        ]

        def sealed(target: Known) -> list[Arg]:
            sent = list(head)
            for parcel, _ in going:
                raw_id = parcel.transfer.raw_id
                body = self._engine.sealed_body(target, raw_id, parcel.body)
                reason = self._engine.sealed_reason(target, raw_id, parcel.transfer.reason)
                sent += (raw_id, parcel.line, body, reason)
            return sent

        reply = self._on(intent.target, intent.number, "arrive", sealed)
        if reply is not None:
            ids = [parcel.transfer.raw_id for parcel, _ in going]
            if len(reply[2]) != len(ids):
                raise StorageCorrupt(f"a transfer from {q.name!r} has lost messages on its way")
            answers = {raw_id: bytes((one,)) for raw_id, one in zip(ids, reply[2], strict=True)}
        self._finish(q, transfer, intent, answers, texts)
        if reply is None:
            return None
        self._on(intent.target, intent.number, "arrived", lambda _: [transfer])
        return answers

    def _finish(
        self,
        q: Known,
        transfer: bytes,
        intent: Intent,
        answers: dict[bytes, bytes],
        texts: Mapping[bytes, str],
    ) -> None:
        told = b"".join([answers.get(raw_id, STAYED) for raw_id in intent.ids])

        def sealed(now: Known) -> list[Arg]:
            sent: list[Arg] = [transfer, intent.kind, intent.target.encode(), told]
            for raw_id, reason in zip(intent.ids, intent.reasons, strict=True):
                # By the list of keys as it is by now; one that does not open stays as it was written down.
                text = texts.get(raw_id)
                sent += (raw_id, reason if text is None else self._engine.sealed_reason(now, raw_id, text))
            return sent

        self._on(q.address, q.number, "departed", sealed)

    def _on(
        self, name: str, number: int, script: str, args: Callable[[Known], Sequence[Arg]]
    ) -> list[Any] | None:
        """Run a step on a queue, whatever its settings are by now; None if that queue is gone."""
        for attempt in range(MOST_CHANGES):
            self._engine.patience(attempt)
            q = self._engine.load(name)
            if q is None or q.number != number:
                return None
            try:
                return self._engine.run_sealed(script, [q], lambda: args(q))  # noqa: B023  (called at once)
            except QueueChanged:
                continue
        raise BackendUnavailable(f"queue {name!r} is being repaired, or changes all the time; try again")

    # -- what was interrupted

    def resume(self, q: Known, transfer: bytes) -> None:
        raw = self._engine.server.command("HGET", q.keys[DEPARTURES], transfer)
        if raw is None:
            return
        intent = decode_intent(raw[TIME_BYTES:])
        # As if sent again: nothing arrives before replicas have that it set out, whoever was killed there.
        self._engine.run("depart", [q], transfer, raw[TIME_BYTES:], b"", *intent.ids)
        target = self._engine.load(intent.target)
        going: list[tuple[Parcel, StateRecord]] = []
        texts: dict[bytes, str] = {}
        for raw_id, reason in zip(intent.ids, intent.reasons, strict=True):
            with contextlib.suppress(StorageCorrupt):
                texts[raw_id] = self._engine.opened_reason(q, raw_id, reason)
        if target is not None and target.number == intent.number:
            found = self._looking.find(q, intent.ids)
            for raw_id, one in zip(intent.ids, found, strict=True):
                if one is None or one[0].transfer != transfer or raw_id not in texts:
                    continue  # What does not open is put back, where `check` finds it.
                try:
                    made = as_arriving(intent.kind, q.name, raw_id, one[0], stored_body(*one), texts[raw_id])
                except StorageCorrupt:
                    continue
                going.append((packed(target, made), one[0]))
        if going:
            self._ferry(q, transfer, intent, going, texts)
        else:
            self._finish(q, transfer, intent, {}, texts)

    def resume_all(self, q: Known) -> None:
        for transfer in self._engine.server.command("HKEYS", q.keys[DEPARTURES]):
            self.resume(q, transfer)

    def forget(self, q: Known, transfer: bytes) -> None:
        raw = self._engine.server.command("HGET", q.keys[ARRIVALS], transfer)
        if raw is None:
            return
        _, number, size = _ARRIVAL.unpack_from(raw)
        source = self._engine.load(raw[_ARRIVAL.size + size :].decode())
        if source is not None and source.number == number:
            departures = source.keys[DEPARTURES]
            if self._engine.server.command("HEXISTS", departures, transfer):
                return  # Not over: whoever sweeps there goes on with it.
        self._on(q.address, q.number, "arrived", lambda _: [transfer])


def _row(parcel: Parcel, record: StateRecord) -> bytes:
    body = parcel.transfer.body
    has_own_delay = record.code == CODES[State.DELAYED] and not record.is_in_line
    due_us = record.until_us if has_own_delay else 0
    return _ROW.pack(
        due_us, body.expires_at_ns // 1000, record.enqueued_us, int.from_bytes(record.place[-2:], "big")
    )
