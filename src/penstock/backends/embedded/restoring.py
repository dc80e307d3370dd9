"""Messages of another store, put into a queue as they stood there: state, attempts, times, place."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends.bulk import RESTORED, StoredMessage
from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Transaction
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.lookup import Found, find_sound
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import DEDUP_ROW, ROW_VERSION, StateRow, decode_dedup
from penstock.backends.embedded.transitions import enter, enter_ready, unhold
from penstock.backends.meters import ENQUEUED
from penstock.backends.tables.restoring import came_in_ns, checked
from penstock.clock import to_ns
from penstock.codec.body import Body, encode_body
from penstock.errors import PenstockError, StorageCorrupt, as_answer
from penstock.event import Kind
from penstock.message import (
    EnqueueResult,
    format_id,
)

_CODES = {
    "delayed": StateCode.DELAYED,
    "ready": StateCode.READY,
    "done": StateCode.DONE,
    "dead": StateCode.DEAD,
}


def restore(txn: Transaction, q: QueueState, messages: Sequence[StoredMessage]) -> list[EnqueueResult]:
    """As one write. What is wrong with a message is its own answer; one whose id is there stores nothing."""
    return _Restoring(txn, q, messages).run()


class _Restoring:
    """One batch on its way in."""

    def __init__(self, txn: Transaction, q: QueueState, messages: Sequence[StoredMessage]) -> None:
        self._txn = txn
        self._q = q
        self._messages = messages
        self._there: dict[bytes, Found | StorageCorrupt | None] = {}
        self._dedup: set[bytes] = set()
        #: Ids, and when each is visible, in the order of their events.
        self._entered: list[bytes] = []
        self._due_ns: list[int] = []
        #: Those that their first event does not say all about.
        self._further: list[tuple[bytes, StateCode, StateRow]] = []

    def run(self) -> list[EnqueueResult]:
        fifo = self._q.settings.fifo
        parsed: list[bytes | PenstockError] = [checked(self._q.name, m, fifo=fifo) for m in self._messages]
        ids = [one for one in parsed if isinstance(one, bytes)]
        self._there = dict(zip(ids, find_sound(self._txn.engine, self._q, ids), strict=True))
        results = []
        for m, raw_id in zip(self._messages, parsed, strict=True):
            if isinstance(raw_id, bytes):
                results.append(self._put(m, raw_id))
            else:
                results.append(EnqueueResult(None, raw_id))
        if self._entered:
            self._record()
        return results

    def _put(self, m: StoredMessage, raw_id: bytes) -> EnqueueResult:
        txn, q = self._txn, self._q
        there = self._there[raw_id]
        if isinstance(there, StorageCorrupt):
            return EnqueueResult(None, as_answer(there))
        if there is not None and there.code != StateCode.GONE:
            return EnqueueResult(format_id(raw_id), duplicate=True)
        try:
            self._claim(m, raw_id)
        except StorageCorrupt as error:
            return EnqueueResult(None, as_answer(error))
        if there is not None:
            unhold(txn, q, there)
        code, order_ns = _CODES[m.state], m.order_ns or q.next_order_ns(txn.now_ns)
        fresh = code == StateCode.READY and not m.attempts and not m.reason
        # A place that was given out elsewhere is given out here too.
        if order_ns <= txn.now_ns:
            q.counters.last_order_ns = max(q.counters.last_order_ns, order_ns)
        body = _body(m, order_ns)
        txn.engine.ahead.replaced(txn, q.prefix + raw_id)
        txn.put(q.prefix + raw_id, encode_body(body, q.settings.compress_over_bytes), txn.engine.messages)
        row = StateRow(
            m.attempts,
            q.counters.next_seq + len(self._entered),
            txn.now_ns,
            m.visible_at_ns if code == StateCode.DELAYED else m.until_ns,
            order_ns,
            m.expires_at_ns or 0,
            m.weight,
            q.lane(m.priority, m.fairness_key, m.throttle_keys),
            reason=m.reason,
        )
        if code == StateCode.DELAYED and q.settings.delay_s and not m.attempts:
            # It waited for its queue's delay, and does for this one's.
            row.since_ns, row.until_ns = max(1, came_in_ns(m)), 0
        if code == StateCode.READY:
            row.since_ns = m.visible_at_ns
            enter_ready(txn, q, raw_id, row, fresh=fresh)
        else:
            enter(txn, q, raw_id, code, row)
        self._there[raw_id] = Found(raw_id, code, row, body, fresh=fresh)
        self._entered.append(raw_id)
        self._due_ns.append(m.visible_at_ns if code == StateCode.DELAYED else txn.now_ns)
        if not fresh and not (code == StateCode.DELAYED and not m.attempts and not m.reason):
            self._further.append((raw_id, code, row))
        return EnqueueResult(format_id(raw_id))

    def _claim(self, m: StoredMessage, raw_id: bytes) -> None:
        """Its dedup id, for what is left of its time, unless another message has it: both were there."""
        txn, q = self._txn, self._q
        until_ns = m.enqueued_at_ns + to_ns(q.settings.dedup_window_s)
        if m.dedup_id is None or until_ns <= txn.now_ns:
            return
        key = keys.dedup(q.qid, m.dedup_id, txn.engine.dedup_secret)
        if key in self._dedup:
            return
        raw = txn.engine.kv.get(key, txn.engine.dedup)
        if raw is not None:
            was_ns, _ = decode_dedup(raw)
            if was_ns > txn.now_ns:
                return
            txn.delete_due(Due.DEDUP, was_ns, q.qid, key[4:])
        txn.put(key, DEDUP_ROW.pack(ROW_VERSION, until_ns, raw_id), txn.engine.dedup)
        txn.put_due(Due.DEDUP, until_ns, q.qid, [key[4:]])
        self._dedup.add(key)

    def _record(self) -> None:
        """Each is enqueued; where that does not say how it stands, a second event does."""
        txn, q = self._txn, self._q
        txn.record(q, Kind.ENQUEUED, self._entered, due_ns=self._due_ns)
        q.counters.enqueued_total += len(self._entered)
        txn.rates.append((q, ENQUEUED, len(self._entered)))
        if self._further:
            ids, codes, rows = (list(column) for column in zip(*self._further, strict=True))
            txn.record(
                q,
                Kind.REPAIRED,
                ids,
                [row.attempts for row in rows],
                [row.until_ns for row in rows],
                RESTORED,
                [row.reason for row in rows],
                [code.name.lower() for code in codes],
            )
        q.arrived.notify(len(self._entered))


def _body(m: StoredMessage, order_ns: int) -> Body:
    return Body(
        m.priority,
        m.weight,
        m.enqueued_at_ns,
        order_ns,
        m.expires_at_ns or 0,
        m.fairness_key,
        m.headers,
        tuple(m.throttle_keys),
        m.dedup_id,
        m.payload,
        # Where they are the same, either is right.
        placed=m.visible_at_ns != m.enqueued_at_ns and m.visible_at_ns == order_ns,
    )
