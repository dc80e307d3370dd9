"""Looking without touching: get, peek, list, due, stats."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Iterator, Sequence

from penstock.backends.arguments import due_position
from penstock.backends.base import QueueStats
from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.history import read_by_all
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.lookup import CODES, find_each, find_many, to_message
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import decode_state
from penstock.clock import NS_PER_S
from penstock.errors import InvalidMessage, StorageCorrupt
from penstock.kv.base import Row
from penstock.message import (
    MAX_COUNT,
    Delivery,
    DueItem,
    Message,
    Page,
    State,
    format_id,
    parse_receipt,
)

log = logging.getLogger("penstock")

#: A filtered page looks at so many rows a message that was asked for, then ends short, with `next` set.
ROWS_PER_FILTERED_ITEM = 20


def get_many(engine: Engine, q: QueueState, raw_ids: Sequence[bytes]) -> list[Message | None]:
    return [
        None if found is None or found.code == StateCode.GONE else to_message(q, found)
        for found in find_many(engine, q, raw_ids)
    ]


def _sound(engine: Engine, q: QueueState, raw_ids: Sequence[bytes]) -> list[Message]:
    """The messages that are there; one that does not decode would stop the listing for good: left out."""
    out = []
    for raw_id, found in zip(raw_ids, find_each(engine, q, raw_ids), strict=True):
        if isinstance(found, StorageCorrupt):
            log.error("queue %r, message %s cannot be listed: %s", q.name, format_id(raw_id), found)
        elif found is not None and found.code != StateCode.GONE:
            out.append(to_message(q, found))
    return out


def peek(engine: Engine, q: QueueState, limit: int, offset: int) -> list[Message]:
    rows = itertools.islice(q.ready.scan(None), offset, min(offset + limit, MAX_COUNT))
    return _sound(engine, q, [row[0][-16:] for row in rows])


def page(
    engine: Engine, q: QueueState, state: State, fairness_key: str | None, after: str | None, limit: int
) -> Page:
    """A page in index order; its cost depends on the page, whatever the queue holds."""
    start = _position(q, state, after)
    rows = (
        _ready_rows(q, fairness_key, start)
        if state == State.READY
        else _state_rows(engine, q, CODES[state], start)
    )
    ids: list[bytes] = []
    last = None
    for looked, (key, value) in enumerate(rows, start=1):
        if fairness_key is None or state == State.READY or _key_of(value) == fairness_key:
            ids.append(key[-16:])
        last = key
        if len(ids) == limit or looked == limit * ROWS_PER_FILTERED_ITEM:
            break
    else:
        last = None
    return Page(_sound(engine, q, ids), None if last is None else last[4:].hex())


def _position(q: QueueState, state: State, after: str | None) -> bytes | None:
    """The key to go on after; refused unless it is of this listing."""
    if after is None:
        return None
    try:
        key = q.prefix + bytes.fromhex(after)
    except (ValueError, TypeError):
        key = b""
    minimum = 4 + 5 + 24 if state == State.READY else 4 + 1 + 16
    if len(key) < minimum or (state != State.READY and (len(key) != minimum or key[4] != CODES[state])):
        raise InvalidMessage(f"after {after!r:.60} is not a position in the {state} list of {q.name!r}")
    return key


def _state_rows(engine: Engine, q: QueueState, code: StateCode, start: bytes | None) -> Iterator[Row]:
    prefix = keys.state_prefix(q.qid, code)
    lower = prefix if start is None else start + b"\0"
    return engine.kv.scan(engine.state, lower, keys.after_prefix(prefix))


def _ready_rows(q: QueueState, fairness_key: str | None, start: bytes | None) -> Iterator[Row]:
    if fairness_key is None:
        return q.ready.scan(start)
    lanes = (keys.lanes_of_key(priority, fairness_key.encode()) for priority in range(9, -1, -1))
    if start is not None:
        lanes = (lane for lane in lanes if q.prefix + lane >= start[: 4 + len(lane)])
    return itertools.chain.from_iterable(q.ready.scan(start, lane) for lane in lanes)


def _key_of(state_row: bytes) -> str:
    return keys.lane_fairness_key(decode_state(state_row).lane)


def due(engine: Engine, since_ns: int, until_ns: int | None, limit: int, after: str | None) -> list[DueItem]:
    """What falls due in any queue, earliest first: the kinds' ranges merged by time."""
    resume = due_position(after)
    start_ns = max(since_ns, resume[0]) if resume else since_ns

    def of_kind(kind: Due) -> Iterator[tuple[int, int, int, bytes]]:
        lower = bytes((kind,)) + keys.u64(max(start_ns, engine.first_due_ns(kind)))
        for key, _ in engine.kv.scan(engine.due, lower, bytes((kind + 1,))):
            what, at_ns, qid, raw_id = keys.parse_due(key)
            if until_ns is not None and at_ns >= until_ns:
                return
            yield at_ns, what, qid, raw_id

    def of_line(line: Iterator[tuple[int, int, int, bytes]]) -> Iterator[tuple[int, int, int, bytes]]:
        return itertools.takewhile(lambda one: until_ns is None or one[0] < until_ns, line)

    out: list[DueItem] = []
    by_time = [of_kind(kind) for kind in Due if kind != Due.LINE]
    by_time += [of_line(line) for line in engine.lines.times(start_ns)]
    for at_ns, what, qid, raw_id in heapq.merge(*by_time):
        if len(out) == limit:
            break
        q = engine.by_qid.get(qid)
        if q is None or (resume is not None and (at_ns, what, qid, raw_id) <= resume):
            continue
        position = (keys.u64(at_ns) + bytes((what,)) + keys.u32(qid) + raw_id).hex()
        message_id = None if what == Due.DEDUP else format_id(raw_id)
        out.append(DueItem(at_ns, Due(what).name.lower(), q.name, message_id, position))
    return out


def stats(engine: Engine, q: QueueState) -> QueueStats:
    now_ns, c = engine.clock.now_ns(), q.counters
    try:
        oldest_ns = q.ready.oldest_order_ns() if c.counts[StateCode.READY] else None
    except BaseException:
        q.unload()  # Half of what it found may be noted.
        raise
    enqueue_rate, ack_rate, fail_rate = q.meter.rates.per_second(now_ns)
    delayed, ready, leased, done, dead = c.counts
    return QueueStats(
        delayed=delayed,
        ready=ready,
        leased=leased,
        done=done,
        dead=dead,
        oldest_ready_age_s=None if oldest_ns is None else max(0, now_ns - oldest_ns) / NS_PER_S,
        enqueued_total=c.enqueued_total,
        acked_total=c.acked_total,
        failed_total=c.failed_total,
        enqueue_rate_per_s=enqueue_rate,
        ack_rate_per_s=ack_rate,
        fail_rate_per_s=fail_rate,
        first_seq=c.base_seq + 1,
        last_seq=c.next_seq - 1,
        journal_bytes=c.journal_bytes,
        held_bodies=c.held,
        unread_by_required=c.next_seq - 1 - read_by_all(q),
        durability=engine.durability,
        created_at_ns=q.created_at_ns,
    )


def delivered(engine: Engine, q: QueueState, receipts: Sequence[str]) -> list[Delivery]:
    """What these receipts were handed out for, as far as they still hold it."""
    parsed = [one for one in map(parse_receipt, receipts) if one is not None]
    out = []
    for (raw_id, token), found in zip(parsed, find_many(engine, q, [p[0] for p in parsed]), strict=True):
        if found is None or found.code != StateCode.LEASED or q.prefix + keys.u64(found.row.seq) != token:
            continue
        row, body = found.row, found.body
        out.append(
            Delivery(
                raw_id,
                token,
                q.name,
                body.payload,
                body.headers,
                row.attempts,
                body.fairness_key,
                body.weight,
                body.throttle_keys,
                body.priority,
                body.dedup_id,
                body.enqueued_at_ns,
                row.expires_at_ns or None,
                row.consumer,
                row.since_ns,
                row.until_ns,
            )
        )
    return out
