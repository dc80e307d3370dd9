"""Enqueue and upsert: a batch becomes one script call, cut where it is very large."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeGuard

import msgspec

from penstock.backends.incoming import ITEMS_OWN, check_new, owned, refusal
from penstock.backends.redis.capabilities import HAVING
from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import Engine, Known, QueueChanged
from penstock.backends.redis.hooking import Hooking
from penstock.backends.redis.looking import Looking
from penstock.backends.redis.records import CODES, GONE, STATES, StateRecord, lane, level_of
from penstock.codec.body import (
    Body,
    after_order,
    before_order,
    check_headers,
    compact_body,
    decode_body,
    encode_body,
    encode_variable,
)
from penstock.errors import (
    InvalidMessage,
    MessageLeased,
    PenstockError,
    QueueNotFound,
    Unsupported,
    as_answer,
)
from penstock.message import (
    DEFAULT_PRIORITY,
    MAX_PAYLOAD_BYTES,
    EnqueueResult,
    NewMessage,
    State,
    format_id,
    parse_new_id,
)

#: What one script call takes at most: it must not keep the server from others for long.
MOST_MESSAGES = 1000
MOST_BYTES = 8 << 20

GIVEN, DEDUP = 1, 2
WAITING = (CODES[State.READY], CODES[State.DELAYED])
_PLAIN_ROW = struct.Struct(">H")
_ROW = struct.Struct(">HBQQ16s")
_REPLACE_ROW = struct.Struct(">QHQQ")
_NO_TIME = bytes(8)
#: Shapes of plain messages that are remembered.
SHAPES_KEPT = 8192

#: What has become of a message that nothing was answered of yet.
_UNKNOWN = EnqueueResult(None)

#: What a message has that was given none: the very objects, so that equal ones of other types are checked.
_NO_KEYS: tuple[str, ...] = ()
_NO_DELAY: float = 0


class _Item(NamedTuple):
    """A message that can be stored, and its place in the caller's batch."""

    place: int
    raw_id: bytes
    #: Lane and weight.
    shape: bytes
    body: bytes
    m: NewMessage
    plain: bool


class Sending:
    """Enqueues into one store."""

    def __init__(self, engine: Engine, looking: Looking, hooking: Hooking, name: str) -> None:
        self._engine = engine
        self._looking = looking
        self._hooking = hooking
        self._name = name
        self._shapes: dict[tuple[str, int, int], tuple[bytes, bytes]] = {}

    def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        if not messages:
            self._engine.with_queue(queue, lambda q: self._looking.find(q, []))
            return []
        # Made once, whatever is tried again: who sends a batch twice must not store it twice.
        ids = self._engine.new_ids(len(messages))
        return self._engine.with_queue(queue, lambda q: self._enqueue(q, messages, ids))

    def _enqueue(self, q: Known, messages: Sequence[NewMessage], ids: Sequence[bytes]) -> list[EnqueueResult]:
        # Inside the call: on what the queue's settings are when it is stored, not on what they were.
        messages = self._hooking.enqueued(q, messages)
        results: list[EnqueueResult] = [EnqueueResult(None)] * len(messages)
        items: list[_Item] = []
        for place, (m, raw_id) in enumerate(zip(messages, ids, strict=True)):
            try:
                items.append(self._item(q, place, m, raw_id))
            except ITEMS_OWN as error:
                results[place] = EnqueueResult(None, refusal(m, error))
        done = 0
        for some in _cut(items):
            try:
                answers = self._send(q, some)
            except PenstockError as error:
                if not done:
                    raise
                # Others are stored: who learns nothing of them would send them again.
                for item in items[done:]:
                    results[item.place] = EnqueueResult(None, as_answer(error))
                break
            done += len(some)
            for item, answer in zip(some, answers, strict=True):
                results[item.place] = EnqueueResult(format_id(answer or item.raw_id), None, bool(answer))
        return results

    def _send(self, q: Known, items: Sequence[_Item]) -> Sequence[bytes]:
        """For each '' or the id of the message that answers for it."""
        shapes: dict[bytes, int] = {}
        plain = True
        for item in items:
            plain = plain and item.plain
            if item.shape not in shapes:
                shapes[item.shape] = len(shapes) + 1
        rows = b""  # All of one shape, and plain: nothing to say of each.
        if not plain:
            secret = self._engine.seals.dedup_secret
            rows = b"".join([_row(item, shapes[item.shape], secret) for item in items])
        elif len(shapes) > 1:
            pack = _PLAIN_ROW.pack
            rows = b"".join([pack(shapes[item.shape]) for item in items])

        def sealed() -> list[Arg]:
            sent: list[Arg] = [len(items), rows, int(plain), len(shapes), *shapes]
            for item in items:
                sent += (item.raw_id, self._engine.sealed_body(q, item.raw_id, item.body))
            return sent

        reply = self._engine.run_sealed("enqueue", [q], sealed)
        answers: Sequence[bytes] = reply[2] if len(reply) > 2 else [b""] * len(items)
        return answers

    def _item(self, q: Known, place: int, m: NewMessage, new_id: bytes) -> _Item:
        # By far the most are plain: nothing to them but payload, headers and where they belong.
        if (
            type(m) is NewMessage
            and type(m.payload) is bytes
            and len(m.payload) <= MAX_PAYLOAD_BYTES
            and type(m.headers) is dict
            and m.throttle_keys is _NO_KEYS
            and m.delay_s is _NO_DELAY
            and m.ttl_s is None
            and m.dedup_id is None
            and m.id is None
        ):
            shape, head = self._shape(q, m)
            if m.headers:
                check_headers(m.headers)
                variable = encode_variable((m.fairness_key, m.headers, (), None))
                head = before_order(m.priority, m.weight, 0) + _NO_TIME + after_order(variable)
            body = head + m.payload
            over = q.compress_over_bytes
            if over is not None and len(m.payload) > over:
                body = compact_body(body, len(m.payload))
            return _Item(place, new_id, shape, body, m, True)
        self._check(q, m)
        raw_id = new_id if m.id is None else parse_new_id(m.id)
        body = encode_body(_body(m, m.headers, m.dedup_id), q.compress_over_bytes)
        return _Item(place, raw_id, _shape_of(q, m), body, m, False)

    def _shape(self, q: Known, m: NewMessage) -> tuple[bytes, bytes]:
        """What plain messages of one key, priority and weight share: lane, and all before the payload."""
        fifo = q.settings.fifo
        if type(m.fairness_key) is not str or type(m.priority) is not int or type(m.weight) is not int:
            self._check(q, m)
        shape = self._shapes.get((m.fairness_key, m.priority, m.weight))
        if shape is None or (fifo and m.priority != DEFAULT_PRIORITY):
            self._check(q, m)
            variable = encode_variable((m.fairness_key, {}, (), None))
            head = before_order(m.priority, m.weight, 0) + _NO_TIME + after_order(variable)
            shape = lane(level_of(m.priority), m.fairness_key.encode()) + m.weight.to_bytes(2, "big"), head
            if len(self._shapes) >= SHAPES_KEPT:
                self._shapes = {}
            self._shapes[str(m.fairness_key), m.priority, m.weight] = shape
        return shape

    def _check(self, q: Known, m: NewMessage) -> None:
        check_new(q.name, m, fifo=q.settings.fifo)
        if m.throttle_keys:
            raise Unsupported("throttle_keys", "throttling", self._name, HAVING["throttling"])

    # -- upsert

    def upsert(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        """Create, or replace body and settings of a waiting message, which keeps its place."""
        ids = self._engine.new_ids(len(messages))
        return self._engine.with_queue(queue, lambda q: self._upsert_all(q, messages, ids))

    def _upsert_all(
        self, q: Known, messages: Sequence[NewMessage], ids: Sequence[bytes]
    ) -> list[EnqueueResult]:
        messages = self._hooking.enqueued(q, messages)
        results = [_UNKNOWN] * len(messages)
        pending: list[_Item] = []
        for place, (m, raw_id) in enumerate(zip(messages, ids, strict=True)):
            try:
                self._check(q, m)
                if m.dedup_id is not None:
                    raise InvalidMessage("upsert goes by id; leave dedup_id out")
                pending.append(self._item(q, place, m, raw_id))
            except ITEMS_OWN as error:
                results[place] = EnqueueResult(None, refusal(m, error))
        if not pending:
            self._looking.find(q, [])
        try:
            self._upsert_rounds(q, pending, results)
        except PenstockError as error:
            if not any(result.id is not None for result in results):
                raise
            # Others are stored: who learns nothing of them would not know which to send again.
            failed = EnqueueResult(None, as_answer(error))
            results = [failed if result == _UNKNOWN else result for result in results]
        return results

    def _upsert_rounds(self, q: Known, pending: list[_Item], results: list[EnqueueResult]) -> None:
        while pending:
            # What was changed by others meanwhile, and ids that come again, are for the next round.
            now, later = _first_of_each(pending)
            for some in _cut(now):
                later += self._upsert(q, some, results)
            pending = sorted(later, key=lambda item: item.place)

    def _upsert(self, q: Known, items: Sequence[_Item], results: list[EnqueueResult]) -> list[_Item]:
        """One round; those that were not as they had been found."""
        again: list[_Item] = []
        for run in _runs(items, self._found(q, [item.raw_id for item in items])):
            new = [item for item, found in run if found is None]
            if new:
                for item, answer in zip(new, self._send(q, new), strict=True):
                    if answer:
                        again.append(item)
                    else:
                        results[item.place] = EnqueueResult(format_id(item.raw_id))
                continue
            again += self._replace(q, run, results)
        return again

    def _found(self, q: Known, raw_ids: Sequence[bytes]) -> list[_Found | None]:
        """What a queue has under these ids, in any of its lines."""
        out = self._looking.find(q, raw_ids)
        for address in q.further_lines:
            try:
                line = self._engine.queue(address)
            except QueueNotFound:
                raise QueueChanged(q.address) from None  # The group was dropped meanwhile.
            theirs = self._looking.find(line, raw_ids)
            out = [_deciding(*both) for both in zip(out, theirs, strict=True)]
        return out

    def _replace(
        self, q: Known, run: Sequence[tuple[_Item, _Found | None]], results: list[EnqueueResult]
    ) -> list[_Item]:
        good: list[tuple[_Item, _Found]] = []
        for item, found in run:
            if found is None:
                continue
            text, code = format_id(item.raw_id), found[0].code
            if code == CODES[State.LEASED] or found[0].transfer:  # Held by a consumer, or by a transfer.
                results[item.place] = EnqueueResult(None, MessageLeased(text, q.name))
            elif code not in WAITING:
                error = InvalidMessage(f"message {text} is {STATES[code]}; only waiting ones are replaced")
                results[item.place] = EnqueueResult(None, error)
            else:
                good.append((item, found))
        if not good:
            return []
        rows: list[bytes] = []
        bodies: list[tuple[_Item, bytes]] = []
        for item, (record, raw) in good:
            m, old = item.m, decode_body(raw)
            body = _body(m, {**m.headers, **owned(old.headers)}, old.dedup_id)
            rows.append(_REPLACE_ROW.pack(record.seq, m.weight, _us(m.delay_s), _us(m.ttl_s)))
            bodies.append((item, encode_body(body, q.compress_over_bytes)))
        answers = self._engine.run_sealed(
            "replace", [q], lambda: [b"".join(rows), *self._replacements(q, bodies)]
        )[2]
        again = []
        for (item, _), answer in zip(good, answers, strict=True):
            if answer == ord("1"):
                results[item.place] = EnqueueResult(format_id(item.raw_id))
            else:
                again.append(item)
        return again

    def _replacements(self, q: Known, bodies: Sequence[tuple[_Item, bytes]]) -> Iterator[Arg]:
        for item, body in bodies:
            yield from (item.raw_id, item.shape[:-2], self._engine.sealed_body(q, item.raw_id, body))


_Found = tuple[StateRecord, bytes]


def _is_there(found: _Found | None) -> TypeGuard[_Found]:
    return found is not None and found[0].code != GONE


def _deciding(mine: _Found | None, theirs: _Found | None) -> _Found | None:
    """Which of two lines says whether a message may be replaced; of a further one without a seq."""
    if not _is_there(theirs) or (_is_there(mine) and (mine[0].code not in WAITING or _waits(theirs[0]))):
        return mine
    return msgspec.structs.replace(theirs[0], seq=0), theirs[1]


def _waits(record: StateRecord) -> bool:
    return record.code in WAITING and not record.transfer


def _shape_of(q: Known, m: NewMessage) -> bytes:
    level = level_of(DEFAULT_PRIORITY if q.settings.fifo else m.priority)
    return lane(level, m.fairness_key.encode()) + m.weight.to_bytes(2, "big")


def _body(m: NewMessage, headers: dict[str, str], dedup_id: str | None) -> Body:
    """Without times: those are the server's to say, and stand in the record."""
    return Body(
        m.priority, m.weight, 0, 0, 0, m.fairness_key, headers, tuple(m.throttle_keys), dedup_id, m.payload
    )


def _us(seconds: float | None) -> int:
    return 0 if not seconds else max(1, round(seconds * 1_000_000))


def _row(item: _Item, number: int, secret: bytes) -> bytes:
    m = item.m
    hashed, flags = bytes(16), GIVEN if m.id is not None else 0
    if m.dedup_id is not None:
        flags |= DEDUP
        hashed = hashlib.blake2b(m.dedup_id.encode(), digest_size=16, key=secret).digest()
    return _ROW.pack(number, flags, _us(m.delay_s), _us(m.ttl_s), hashed)


def _cut(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """What fits into one call each."""
    start, size = 0, 0
    for place, item in enumerate(items):
        if place > start and (size + len(item.body) > MOST_BYTES or place - start == MOST_MESSAGES):
            yield items[start:place]
            start, size = place, 0
        size += len(item.body)
    if items:
        yield items[start:]


def _first_of_each(items: Sequence[_Item]) -> tuple[list[_Item], list[_Item]]:
    """Those before an id comes again, and the rest."""
    seen: set[bytes] = set()
    for place, item in enumerate(items):
        if item.raw_id in seen:
            return list(items[:place]), list(items[place:])
        seen.add(item.raw_id)
    return list(items), []


def _runs(
    items: Sequence[_Item], found: Sequence[_Found | None]
) -> Iterator[list[tuple[_Item, _Found | None]]]:
    """Neighbours that are all new, or all there already: the order of a batch is kept."""
    run: list[tuple[_Item, _Found | None]] = []
    for item, one in zip(items, found, strict=True):
        there = one if _is_there(one) else None
        if run and (run[-1][1] is None) != (there is None):
            yield run
            run = []
        run.append((item, there))
    if run:
        yield run
