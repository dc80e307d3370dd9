"""Enqueue and upsert: one pass over the batch, two rows a message."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from itertools import count
from operator import itemgetter

from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.lanes import ReadyRow
from penstock.backends.embedded.lookup import STATES, Found, find_many, find_sound
from penstock.backends.embedded.newcomers import Newcomers, Shape
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import DEDUP_ROW, ROW_VERSION, StateRow, decode_dedup, encode_ready
from penstock.backends.embedded.transitions import (
    WAITING,
    drop_bodies,
    enter,
    enter_line,
    enter_ready,
    leave,
    unhold,
)
from penstock.backends.incoming import ITEMS_OWN, check_new, owned, refusal
from penstock.backends.meters import ENQUEUED
from penstock.clock import to_ns
from penstock.codec.body import (
    Body,
    after_order,
    before_order,
    check_headers,
    compact_body,
    encode_body,
    encode_variable,
)
from penstock.errors import (
    InvalidMessage,
    MessageLeased,
    StorageCorrupt,
    as_answer,
)
from penstock.event import Kind
from penstock.message import (
    MAX_PAYLOAD_BYTES,
    EnqueueResult,
    NewMessage,
    checked_name,
    format_id,
    parse_id,
    parse_new_id,
)

#: How many shapes of plain messages are remembered.
SHAPES_KEPT = 8192

#: What a message has that was given none: the very objects, so that equal ones of other types are checked.
_NO_KEYS: tuple[str, ...] = ()
_NO_DELAY: float = 0
_KEY = itemgetter(0)
#: The fairness key of no message.
_NOBODYS = object()


@functools.lru_cache(maxsize=1024)
def _fresh_ready(weight: int) -> bytes:
    """One object for all of a weight: who takes turns knows it again without looking into it."""
    return encode_ready(weight, 0, 0, has_row=False)


class Enqueuer:
    """Enqueues into one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Those of all queues.
        self._shape_count = 0

    def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        with self._engine.lock, self._engine.transaction() as txn:
            q = self._engine.queue(queue)
            results = self._enqueue(txn, q, messages) if messages else []
            txn.answered(results)
            return results

    def enqueue_in(
        self, txn: Transaction, q: QueueState, messages: Sequence[NewMessage]
    ) -> list[EnqueueResult]:
        """The same as part of a larger write."""
        return self._enqueue(txn, q, messages) if messages else []

    def _enqueue(
        self, txn: Transaction, q: QueueState, messages: Sequence[NewMessage]
    ) -> list[EnqueueResult]:
        txn.changed = True
        high, text, first_low = self._engine.ids.take(len(messages), now_ns := txn.now_ns)
        put, bodies, body_prefix = txn.put, self._engine.messages, q.prefix + high
        ids: list[bytes] = []
        results: list[EnqueueResult] = []
        fresh, grown, empty = (new := q.ready.newcomers()).rows, new.grown, new.empty
        # Where messages wait for the queue's delay, none of them is plain.
        no_delay, kept_bytes = (
            _NOBODYS if q.lines_up else _NO_DELAY,
            q.ready.keeps_up_to_bytes(q.counters.counts[StateCode.READY]),
        )
        rest = _Rest(txn, q, messages, ids, new, kept_bytes)
        # Neighbours mostly share the very objects of these three: their shape is then known.
        fairness_key: object = _NOBODYS
        over_bytes = MAX_PAYLOAD_BYTES if (over := q.settings.compress_over_bytes) is None else over
        head, priority, weight, tail, key_prefix, value = b"", -1, -1, b"", b"", b""
        shapes: dict[str, Shape] = {}
        rows: list[ReadyRow] = []
        places = count(first_low), count(q.next_order_ns(now_ns, len(messages)))
        for m, low, order_ns in zip(messages, *places, strict=False):
            try:
                # By far the most are plain: nothing to them but payload, headers and where they belong.
                raw, given, same = m.payload, m.fairness_key, m.priority is priority and m.weight is weight
                plain = (
                    type(raw) is bytes
                    and len(raw) <= MAX_PAYLOAD_BYTES
                    and type(m.headers) is dict
                    and m.throttle_keys is _NO_KEYS
                    and m.delay_s is no_delay
                    and m.ttl_s is None
                    and m.dedup_id is None
                    and m.id is None
                )
                if plain and not (given is fairness_key and same):
                    shape = shapes.get(given) if same and type(given) is str else None
                    if shape is None:
                        shapes, shape = self._shape(q, m)
                        head = before_order(m.priority, m.weight, now_ns)
                    fairness_key, priority, weight = given, m.priority, m.weight
                    tail, key_prefix, value = shape.tail, shape.key_prefix, shape.value
                    if (lane := shape.lane) and lane.complete:  # As most are: what `behind` does, uncalled.
                        rows = lane.rows
                        (grown if rows else empty).append(lane)
                    else:
                        rows = new.behind(shape)
                low_raw, order_raw = low.to_bytes(6, "big"), order_ns.to_bytes(8, "big")
                if plain:
                    raw_id = high + low_raw
                    body = head + order_raw + (self._tail(m) if m.headers else tail) + raw
                    if len(raw) > over_bytes:
                        body = compact_body(body, len(raw))
                    put(body_prefix + low_raw, body, bodies)
                    key = key_prefix + order_raw + raw_id
                    ids.append(raw_id)
                    row: ReadyRow = (key, value, None, None)
                    if len(body) <= kept_bytes:
                        row = (
                            (key, value, raw, now_ns)
                            if not m.headers and len(raw) <= kept_bytes  # A body may be compressed.
                            else (key, value, body, None)
                        )
                    rows.append(row)
                    fresh.append(row)
                    results.append(EnqueueResult(text + low_raw.hex()))
                else:
                    fairness_key = _NOBODYS  # What it puts an end to may change a lane.
                    results.append(rest.enqueue(m, high + low_raw, order_ns))
            except ITEMS_OWN as error:
                results.append(EnqueueResult(None, refusal(m, error)))
        self._count(txn, q, ids, new, rest)
        return results

    def _shape(self, q: QueueState, m: NewMessage) -> tuple[dict[str, Shape], Shape]:
        """What a plain message shares with others of its kind, and others' that differ by their keys alone.

        Refuses one that is not valid.
        """
        if type(m.fairness_key) is not str or type(m.priority) is not int or type(m.weight) is not int:
            check_new(q.name, m, fifo=q.settings.fifo)
        shapes = q.ready.shapes.setdefault((m.priority, m.weight), {})
        shape = shapes.get(m.fairness_key)
        if shape is None:
            check_new(q.name, m, fifo=q.settings.fifo)
            name = q.lane(m.priority, m.fairness_key, ())
            shape = shapes[m.fairness_key] = Shape(
                name,
                after_order(encode_variable((m.fairness_key, {}, (), None))),
                q.prefix + name,
                _fresh_ready(m.weight),
            )
            self._shape_count += 1
            if self._shape_count >= SHAPES_KEPT:
                self._forget_shapes()
        return shapes, shape

    def _forget_shapes(self) -> None:
        self._shape_count = 0
        for q in self._engine.by_qid.values():
            if q.loaded:
                q.ready.shapes.clear()

    def _tail(self, m: NewMessage) -> bytes:
        check_headers(m.headers)
        return after_order(encode_variable((m.fairness_key, m.headers, (), None)))

    def _count(
        self,
        txn: Transaction,
        q: QueueState,
        ids: list[bytes],
        new: Newcomers,
        rest: _Rest,
    ) -> None:
        if not ids:
            return
        put, ready = txn.put, self._engine.ready
        # No bodies in between, and neighbours side by side if there are any: the engine is faster so.
        if new.lanes_known < len(new.rows):
            new.rows.sort(key=_KEY)
        for key, value, _, _ in new.rows:
            put(key, value, ready)
        q.ready.add_all(txn, new)
        visible = rest.visible_at_ns
        q.counters.counts[StateCode.READY] += len(ids) - len(visible)
        q.counters.enqueued_total += len(ids)
        due = [visible.get(i, txn.now_ns) for i in range(len(ids))] if visible else txn.now_ns
        txn.record(q, Kind.ENQUEUED, ids, due_ns=due)
        txn.rates.append((q, ENQUEUED, len(ids)))
        q.arrived.notify(len(ids))

    def upsert(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        """Create, or replace body and settings of a waiting message, which keeps its place."""
        results: list[EnqueueResult] = []
        at = 0
        while at < len(messages):
            # A batch sees the store as it was: an id that comes again starts the next one.
            seen: set[bytes] = set()
            end = at
            while end < len(messages):
                raw_id = _given_id(messages[end])
                if raw_id is not None:
                    if raw_id in seen:
                        break
                    seen.add(raw_id)
                end += 1
            with self._engine.lock, self._engine.transaction() as txn:
                q = self._engine.queue(queue)
                results += [self._upsert(txn, q, m) for m in messages[at:end]]
                if end == len(messages):
                    txn.answered(results)
            at = end
        return results

    def _upsert(self, txn: Transaction, q: QueueState, m: NewMessage) -> EnqueueResult:
        try:
            check_new(q.name, m, fifo=q.settings.fifo)
            if m.dedup_id is not None:
                raise InvalidMessage("upsert goes by id; leave dedup_id out")
            found = None
            if m.id is not None:
                found = find_many(self._engine, q, [parse_new_id(m.id)])[0]
            if found is None or found.code == StateCode.GONE:
                return self._enqueue(txn, q, [m])[0]
            if found.code == StateCode.LEASED:
                raise MessageLeased(format_id(found.raw_id), q.name)
            if found.code not in (StateCode.READY, StateCode.DELAYED):
                raise InvalidMessage(
                    f"message {m.id} is {STATES[found.code]}; only waiting ones are replaced"
                )
        except ITEMS_OWN as error:
            return EnqueueResult(None, refusal(m, error))
        self._replace(txn, q, m, found)
        return EnqueueResult(format_id(found.raw_id))

    def _replace(self, txn: Transaction, q: QueueState, m: NewMessage, found: Found) -> None:
        leave(txn, q, found)
        row, now_ns = found.row, txn.now_ns
        visible_at_ns = now_ns + to_ns(m.delay_s)
        in_line = found.code == StateCode.DELAYED and not row.until_ns
        if visible_at_ns > now_ns:
            row.order_ns = visible_at_ns
        elif found.code == StateCode.DELAYED and not q.settings.fifo:
            row.order_ns = q.next_order_ns(now_ns)
        row.lane = q.lane(m.priority, m.fairness_key, m.throttle_keys)
        row.weight = m.weight
        row.expires_at_ns = now_ns + to_ns(m.ttl_s) if m.ttl_s is not None else 0
        row.seq = q.counters.next_seq
        body = Body(
            m.priority,
            m.weight,
            found.body.enqueued_at_ns,
            row.order_ns,
            row.expires_at_ns,
            m.fairness_key,
            {**m.headers, **owned(found.body.headers)},
            tuple(m.throttle_keys),
            found.body.dedup_id,
            m.payload,
            placed=found.body.placed or not found.fresh or visible_at_ns > now_ns,
        )
        raw = encode_body(body, q.settings.compress_over_bytes)
        self._engine.ahead.replaced(txn, key := q.prefix + found.raw_id)
        txn.put(key, raw, self._engine.messages)
        if in_line:  # As it was: those before it still wait.
            visible_at_ns = q.line_due_ns(row.since_ns, now_ns)
            enter(txn, q, found.raw_id, StateCode.DELAYED, row)
        elif visible_at_ns > now_ns:
            row.since_ns, row.until_ns = now_ns, visible_at_ns
            enter(txn, q, found.raw_id, StateCode.DELAYED, row)
        else:
            if found.code == StateCode.DELAYED:
                row.since_ns = now_ns
            # Once it has waited in a fifo line, its place does not say when it became visible.
            placed = found.fresh or not q.settings.fifo
            fresh = placed and row.attempts == 0 and row.order_ns <= q.counters.last_order_ns
            enter_ready(txn, q, found.raw_id, row, fresh=fresh)
        txn.record(q, Kind.UPDATED, [found.raw_id], row.attempts, visible_at_ns)


def _given_id(m: NewMessage) -> bytes | None:
    """The id that a message asks for; one that is not valid reports so itself, when its turn comes."""
    given = getattr(m, "id", None)
    with contextlib.suppress(InvalidMessage):
        return None if given is None else parse_id(given)
    return None


class _Rest:
    """The messages of a batch that have more to them than a payload and a key."""

    def __init__(
        self,
        txn: Transaction,
        q: QueueState,
        messages: Sequence[NewMessage],
        ids: list[bytes],
        new: Newcomers,
        kept_bytes: int,
    ) -> None:
        self._txn = txn
        self._q = q
        self._messages = messages
        self._ids = ids
        self._new = new
        self._kept_bytes = kept_bytes
        #: place among the batch's ids -> when it becomes visible, for delayed ones
        self.visible_at_ns: dict[int, int] = {}
        self._looked_up = False
        self._known: dict[bytes, Found | StorageCorrupt | None] = {}
        self._taken: set[bytes] = set()
        self._dedup: dict[bytes, tuple[int, bytes] | StorageCorrupt] = {}

    def enqueue(self, m: NewMessage, new_id: bytes, order_ns: int) -> EnqueueResult:
        txn, q, now_ns = self._txn, self._q, self._txn.now_ns
        check_new(q.name, m, fifo=q.settings.fifo)
        raw_id = new_id if m.id is None else parse_new_id(m.id)
        if not self._looked_up:
            self._look_up()
            self._looked_up = True
        engine = txn.engine
        visible_at_ns = now_ns + to_ns(m.delay_s)
        delayed, in_line = visible_at_ns > now_ns, q.lines_up
        expires_at_ns = now_ns + to_ns(m.ttl_s) if m.ttl_s is not None else 0
        body = Body(
            m.priority,
            m.weight,
            now_ns,
            visible_at_ns if delayed else order_ns,
            expires_at_ns,
            m.fairness_key,
            m.headers or {},
            tuple(m.throttle_keys),
            m.dedup_id,
            m.payload,
            placed=delayed,
        )
        raw_body = encode_body(body, q.settings.compress_over_bytes)
        # Nothing is put before all that may fail has not: a dedup id must not lead to nothing.
        if (first := self._earlier(m, raw_id)) is not None:
            return EnqueueResult(format_id(first), duplicate=True)
        if m.id is not None:  # There may have been another one under it.
            engine.ahead.replaced(txn, q.prefix + raw_id)
        txn.put(q.prefix + raw_id, raw_body, engine.messages)
        lane = q.lane(m.priority, m.fairness_key, m.throttle_keys)
        if delayed:
            seq = q.counters.next_seq + len(self._ids)
            row = StateRow(0, seq, now_ns, visible_at_ns, visible_at_ns, expires_at_ns, m.weight, lane)
            enter(txn, q, raw_id, StateCode.DELAYED, row)
            self.visible_at_ns[len(self._ids)] = visible_at_ns
        elif in_line:
            seq = q.counters.next_seq + len(self._ids)
            row = StateRow(0, seq, 0, 0, order_ns, expires_at_ns, m.weight, lane)
            self.visible_at_ns[len(self._ids)] = enter_line(txn, q, raw_id, row)
        else:
            key = keys.ready(q.qid, lane, order_ns, raw_id)
            value = encode_ready(m.weight, 0, expires_at_ns, has_row=False)
            kept = raw_body if len(raw_body) <= self._kept_bytes else None
            self._new.add(lane, (key, value, kept, None))
            if expires_at_ns:
                txn.put_due(Due.TTL, expires_at_ns, q.qid, [raw_id])
        self._ids.append(raw_id)
        return EnqueueResult(format_id(raw_id))

    def _look_up(self) -> None:
        """Everything that the batch's given ids and dedup ids may meet, in two reads."""
        engine, q = self._txn.engine, self._q
        raw_ids, dedup_keys = set(), set()
        for m in self._messages:
            # An item that is not valid reports so itself, when its turn comes.
            with contextlib.suppress(InvalidMessage, AttributeError):
                if m.id is not None:
                    raw_ids.add(parse_id(m.id))
                if m.dedup_id is not None and q.settings.dedup_window_s:
                    checked_name(m.dedup_id, "dedup_id")
                    dedup_keys.add(keys.dedup(q.qid, m.dedup_id, engine.dedup_secret))
        ids, ordered = list(raw_ids), list(dedup_keys)
        # What is damaged is the answer to the item that asks for it, and to no other.
        self._known = dict(zip(ids, find_sound(engine, q, ids), strict=True))
        for key, raw in zip(ordered, engine.kv.get_many(ordered, engine.dedup), strict=True):
            if raw is not None:
                try:
                    self._dedup[key] = decode_dedup(raw)
                except StorageCorrupt as error:
                    self._dedup[key] = as_answer(error)

    def _found(self, raw_id: bytes) -> Found | None:
        """What the queue has under a given id; a message that is over, but not swept yet, goes now."""
        txn, q = self._txn, self._q
        found = self._known.get(raw_id)
        if isinstance(found, StorageCorrupt):
            raise found
        if found is not None and found.code in WAITING and 0 < found.row.expires_at_ns <= txn.now_ns:
            leave(txn, q, found)
            seq = q.counters.next_seq
            drop_bodies(txn, q, [raw_id], seq)
            txn.record(q, Kind.EXPIRED, [raw_id])
            found.code, found.row.seq = StateCode.GONE, seq
            found = self._known[raw_id] = found if q.required else None
        return found

    def _earlier(self, m: NewMessage, raw_id: bytes) -> bytes | None:
        """The message that answers for this one, if there is one; else this one is now the first."""
        txn, q = self._txn, self._q
        found = self._found(raw_id) if m.id is not None else None
        if raw_id in self._taken or (found is not None and found.code != StateCode.GONE):
            return raw_id
        if m.dedup_id is not None and q.settings.dedup_window_s:
            key = keys.dedup(q.qid, m.dedup_id, txn.engine.dedup_secret)
            remembered = self._dedup.get(key, (0, b""))
            if isinstance(remembered, StorageCorrupt):
                raise remembered
            until_ns, first = remembered
            if until_ns > txn.now_ns:
                return first
            if until_ns:
                txn.delete_due(Due.DEDUP, until_ns, q.qid, key[4:])
            until_ns = txn.now_ns + to_ns(q.settings.dedup_window_s)
            txn.put(key, DEDUP_ROW.pack(ROW_VERSION, until_ns, raw_id), txn.engine.dedup)
            txn.put_due(Due.DEDUP, until_ns, q.qid, [key[4:]])
            self._dedup[key] = (until_ns, raw_id)
        if m.id is not None:
            self._taken.add(raw_id)
            if found is not None:
                unhold(txn, q, found)
        return None
