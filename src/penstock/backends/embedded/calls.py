"""Calls from other processes: an answer is kept in the same write as what the call changed.

A caller whose connection broke asks again, of whoever owns the store then, and is told what was answered:
the call happened once. One row a caller is enough, for a caller has one call on its way at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import MARK, decode_job, unmarked
from penstock.codec.answer import encode_answer
from penstock.errors import StorageCorrupt

if TYPE_CHECKING:
    from penstock.backends.embedded.engine import Engine, Transaction

CALLER_BYTES = 16
#: Of a job itself: the row of its progress has one byte more.
JOB_KEY_BYTES = 5


class Call(NamedTuple):
    """The `number`th call of a caller."""

    caller: bytes
    number: int

    def packed(self) -> bytes:
        return self.caller + keys.u64(self.number)


def unpack_call(raw: bytes) -> Call | None:
    return Call(raw[:CALLER_BYTES], int.from_bytes(raw[CALLER_BYTES:], "big")) if raw else None


#: Calls, each with how many items are its own (None: one call, all of them).
Callers = Sequence[tuple[Call | None, int | None]]


class Calls(threading.local):
    """Whose calls this thread is at; nothing, for those of this process itself."""

    current: Callers = ()
    #: The calls that the running command answers.
    answering: Callers = ()
    #: What this thread writes is synced by somebody else, who answers for it.
    defers = False

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """What this thread asks of the backend is written, and not synced: who defers it, syncs it."""
        before, self.defers = self.defers, True
        try:
            yield
        finally:
            self.defers = before

    @contextmanager
    def serving(self, callers: Callers) -> Iterator[None]:
        """What this thread asks of the backend is this call, or these, one behind the other."""
        self.current = callers
        try:
            yield
        finally:
            self.current = ()

    @contextmanager
    def running(self, answering: Callers) -> Iterator[None]:
        """The command that runs answers these."""
        before, self.answering = self.answering, answering
        try:
            yield
        finally:
            self.answering = before

    def keep(self, txn: Transaction, answer: Any) -> None:
        """Write the answer down for those that may ask again."""
        at = 0
        for call, count in self.answering:
            if call is not None:
                keep(txn, call, answer[at : at + count] if count is not None else answer)
            at += count or 0


def keep(txn: Transaction, call: Call, answer: object) -> None:
    row = MARK + keys.u64(call.number) + encode_answer(answer)
    txn.put(keys.meta(Meta.CALL, call.caller), row, txn.engine.meta)
    txn.changed = True


def kept(engine: Engine, call: Call) -> bytes | None:
    """The answer that the call was given, if it happened."""
    raw = engine.kv.get(keys.meta(Meta.CALL, call.caller), engine.meta)
    if raw is None:
        return None
    row = unmarked(raw, "call")
    return row[8:] if int.from_bytes(row[:8], "big") == call.number else None


def callers(engine: Engine) -> list[bytes]:
    """Everyone whose last answer is kept, or comes from a job that is not at its end."""
    prefix, jobs = keys.meta(Meta.CALL), keys.meta(Meta.JOB)
    found = [key[1:] for key, _ in engine.kv.scan(engine.meta, prefix, keys.after_prefix(prefix))]
    for key, raw in engine.kv.scan(engine.meta, jobs, keys.after_prefix(jobs)):
        with suppress(StorageCorrupt):  # The upkeep tells of those.
            if len(key) == JOB_KEY_BYTES and (call := unpack_call(decode_job(raw).call)):
                found.append(call.caller)
    return found


def forget(txn: Transaction, gone: Sequence[bytes]) -> None:
    """These will not ask again."""
    for caller in gone:
        txn.delete(keys.meta(Meta.CALL, caller), txn.engine.meta)
        txn.changed = True
