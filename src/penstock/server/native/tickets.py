"""What clients hold of the server's: texts that it alone can make and read, as long as the store is there.

A snapshot, a ticket, a partition or a part that was staged names places of the server's machine. A client
gets it sealed, and brings it back: so the server keeps nothing of it, and knows it again after it was killed,
or on another machine that serves the same store. The secret is in the store's state, where no client comes
to it.
"""

from __future__ import annotations

import base64
import binascii
import os
import threading
from typing import TypeVar

import msgspec

from penstock.backends.bulk import BulkPartition, Snapshot, Staged, Txn, WriteTicket
from penstock.codec.vault import Envelope
from penstock.errors import InvalidMessage
from penstock.message import SERVER_STATE_PREFIX
from penstock.penstock import Penstock

SECRET = f"{SERVER_STATE_PREFIX}secret"


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a partition that were staged: the job, the place of their first, and how many they are."""

    ticket: str
    txn: Txn
    first_row: int
    rows: int
    staged: Staged


Value = Snapshot | WriteTicket | BulkPartition | Part
V = TypeVar("V", Snapshot, WriteTicket, BulkPartition, Part)

_encode = msgspec.msgpack.Encoder().encode


class Tickets:
    """Seals and opens. Safe to use from any thread; the first use reads the store."""

    def __init__(self, ps: Penstock) -> None:
        self._ps = ps
        self._lock = threading.Lock()
        self._envelope: Envelope | None = None

    def seal(self, value: Value) -> str:
        sealed = self._known().seal(_kind(type(value)), _encode(value))
        return base64.urlsafe_b64encode(sealed).decode()

    def open(self, kind: type[V], text: str) -> V:
        try:
            sealed = base64.urlsafe_b64decode(text.encode())
        except (UnicodeEncodeError, binascii.Error):
            sealed = b""
        # Another server of the same store may have been the first, at the same moment.
        for envelope in (self._known, self._read):
            found = envelope().open(_kind(kind), sealed)
            if found is not None:
                return msgspec.msgpack.decode(found, type=kind)
        raise InvalidMessage(
            f"{text!r:.40} is no {kind.__name__} that a server of this store has given; take another, and "
            "run the job again"
        )

    def _known(self) -> Envelope:
        return self._envelope or self._read()

    def _read(self) -> Envelope:
        with self._lock:
            state = self._ps.state
            secret = state.get(SECRET)
            if secret is None:
                state.put(SECRET, os.urandom(Envelope.SECRET_BYTES))
                secret = state.get(SECRET)
            assert secret is not None
            self._envelope = Envelope(secret)
            return self._envelope


def _kind(kind: type) -> bytes:
    return b"penstock " + kind.__name__.encode()
