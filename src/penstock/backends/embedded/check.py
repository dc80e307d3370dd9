"""Proof of a store's invariants, in bounded memory: what `check` reads and what must hold.

One state and one index entry per message, no orphan rows, counters equal to what is there, journal
gap-free with good checksums, and folding the journal gives the states that are stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from penstock.backends.base import CheckReport, Problem
from penstock.backends.embedded import keys
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.fold import fold
from penstock.backends.embedded.history import frames
from penstock.backends.embedded.keys import Due, Meta, StateCode
from penstock.backends.embedded.lookup import fresh_row, ready_parts
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import (
    MARK,
    StateRow,
    decode_dedup,
    decode_job,
    decode_ready,
    decode_state,
    encode_ready,
)
from penstock.backends.embedded.transitions import DUE_OF_STATE
from penstock.backends.embedded.worlds import Worlds
from penstock.codec.body import decode_body
from penstock.codec.entry import decode_entries
from penstock.codec.frame import decode_events, decode_head
from penstock.errors import StorageCorrupt
from penstock.kv.base import Row, Space
from penstock.message import format_id, parse_id

CHUNK = 1000

_CODES = tuple(StateCode)
_WAITING = (StateCode.DELAYED, StateCode.READY)

T = TypeVar("T")
P = ParamSpec("P")


class Checker:
    """One pass over a store. The caller holds the engine's lock."""

    def __init__(self, engine: Engine, worlds: Worlds) -> None:
        self._engine = engine
        self._worlds = worlds
        self._problems: list[Problem] = []
        self._messages = 0
        self._events = 0
        self._entries = 0
        self._dropping = self._queues_being_dropped()

    def run(self) -> CheckReport:
        engine = self._engine
        for name in sorted(engine.queues):
            q = engine.queue(name)
            self._guarded(q.name, self._check_bodies, q)
            self._guarded(q.name, self._check_state_rows, q)
            self._guarded(q.name, self._check_ready_rows, q)
            self._guarded(q.name, self._check_hints, q)
            self._guarded(q.name, self._check_held, q)
            self._guarded(q.name, self._check_journal, q)
            self._guarded(q.name, self._check_fold, q)
        self._guarded("", self._check_due)
        self._guarded("", self._check_dedup)
        self._guarded("", self._check_numbers)
        for world in self._worlds.names():
            self._guarded(world, self._check_world, world)
        self._guarded("", self._check_entries)
        return CheckReport(self._problems, len(engine.queues), self._messages, self._events)

    # -- messages -------------------------------------------------------------------------------

    def _check_bodies(self, q: QueueState) -> None:
        counts = [0] * len(_CODES)
        for chunk in _chunks(self._rows(self._engine.messages, q.prefix)):
            for code in self._check_chunk_of_bodies(q, chunk):
                counts[code] += 1
            self._messages += len(chunk)
        for code in _CODES[:5]:
            stored = q.counters.counts[code]
            if counts[code] != stored:
                self._say(q, f"counter of {code.name.lower()} is {stored}, but {counts[code]} are there")
        if counts[StateCode.GONE] != q.counters.held:
            self._say(q, f"counter of held bodies is {q.counters.held}, but {counts[5]} are there")

    def _check_chunk_of_bodies(self, q: QueueState, chunk: list[Row]) -> Iterator[StateCode]:
        engine = self._engine
        ids = [key[4:] for key, _ in chunk]
        state_keys = [keys.state(q.qid, code, raw_id) for raw_id in ids for code in _CODES]
        rows = engine.kv.get_many(state_keys, engine.state)
        expected: list[tuple[bytes, bytes, bytes]] = []  # ready key, its value, id
        due_keys: list[tuple[bytes, bytes]] = []  # due key, id
        for i, (key, raw) in enumerate(chunk):
            raw_id = key[4:]
            held = [(c, r) for c, r in zip(_CODES, rows[i * 6 : i * 6 + 6], strict=True) if r is not None]
            if len(held) > 1:
                self._say(q, f"{len(held)} states: {', '.join(c.name for c, _ in held)}", raw_id)
            try:
                body = decode_body(raw)
                row = decode_state(held[0][1]) if held else fresh_row(q, body)
            except StorageCorrupt as error:
                self._say(q, str(error), raw_id)
                continue
            code = held[0][0] if held else StateCode.READY
            if code == StateCode.READY:
                value = encode_ready(row.weight, row.attempts, row.expires_at_ns, has_row=bool(held))
                expected.append((keys.ready(q.qid, row.lane, row.order_ns, raw_id), value, raw_id))
            due_keys += [(due_key, raw_id) for due_key in _due_keys(q.qid, code, row, raw_id)]
            yield code
        found = engine.kv.get_many([key for key, _, _ in expected], engine.ready)
        for (_, value, raw_id), stored in zip(expected, found, strict=True):
            if stored != value:
                self._say(q, "ready row is missing" if stored is None else "ready row differs", raw_id)
        there = engine.kv.get_many([key for key, _ in due_keys], engine.due)
        for (due_key, raw_id), stored in zip(due_keys, there, strict=True):
            if stored is None:
                self._say(q, f"due row of its {Due(due_key[0]).name.lower()} is missing", raw_id)

    def _check_state_rows(self, q: QueueState) -> None:
        engine = self._engine
        for chunk in _chunks(self._rows(engine.state, q.prefix)):
            bodies = engine.kv.get_many([q.prefix + key[-16:] for key, _ in chunk], engine.messages)
            for (key, value), body in zip(chunk, bodies, strict=True):
                try:
                    decode_state(value)
                except StorageCorrupt as error:
                    self._say(q, str(error), key[-16:])
                if body is None:
                    self._say(q, f"state row {StateCode(key[4]).name} without a body", key[-16:])
                if key[4] == StateCode.GONE and not self._is_held(q, key[-16:], value):
                    self._say(q, "body that is kept for cursors, but never freed", key[-16:])

    def _check_ready_rows(self, q: QueueState) -> None:
        """Every ready row belongs to a READY message whose one ready row it is."""
        engine = self._engine
        for chunk in _chunks(self._rows(engine.ready, q.prefix)):
            ids = [key[-16:] for key, _ in chunk]
            bodies = engine.kv.get_many([q.prefix + raw_id for raw_id in ids], engine.messages)
            state_keys = [keys.state(q.qid, code, raw_id) for raw_id in ids for code in _CODES]
            rows = engine.kv.get_many(state_keys, engine.state)
            for i, (key, value) in enumerate(chunk):
                lane, order_ns, raw_id = ready_parts((key, value))
                body, held = bodies[i], rows[i * 6 : i * 6 + 6]
                if body is None:
                    self._say(q, "ready row without a body", raw_id)
                    continue
                others = [c for c, r in zip(_CODES, held, strict=True) if r and c != StateCode.READY]
                if others:
                    self._say(q, f"ready row of a message that is {others[0].name.lower()}", raw_id)
                    continue
                own = held[StateCode.READY]
                row = decode_state(own) if own is not None else fresh_row(q, decode_body(body))
                if (row.lane, row.order_ns) != (lane, order_ns) or decode_ready(value)[0] != bool(own):
                    self._say(q, "second ready row", raw_id)

    def _is_held(self, q: QueueState, raw_id: bytes, value: bytes) -> bool:
        try:
            seq = decode_state(value).seq
        except StorageCorrupt:
            return True  # Said already.
        return self._engine.kv.get(keys.held(q.qid, seq, raw_id), self._engine.held) is not None

    def _check_hints(self, q: QueueState) -> None:
        """A lane's written-down head has no live row before it: such a row would never be handed out."""
        engine = self._engine
        prefix = keys.lane_hint(q.qid, b"")
        for key, value in self._rows(engine.meta, prefix):
            lane = q.prefix + key[len(prefix) :]
            for row, _ in engine.kv.scan(engine.ready, lane, max(lane, value[1:]), limit=1):
                self._say(q, "ready row before its lane's hint", row[-16:])

    def _check_held(self, q: QueueState) -> None:
        engine = self._engine
        for chunk in _chunks(self._rows(engine.held, q.prefix)):
            state_keys = [keys.state(q.qid, StateCode.GONE, key[-16:]) for key, _ in chunk]
            for (key, _), raw in zip(chunk, engine.kv.get_many(state_keys, engine.state), strict=True):
                seq = int.from_bytes(key[4:12], "big")
                if raw is None or decode_state(raw).seq != seq:
                    self._say(q, "held row without its state row", key[-16:])

    # -- time, dedup, numbers -------------------------------------------------------------------

    def _check_due(self) -> None:
        engine = self._engine
        earliest: dict[int, int] = {}
        for chunk in _chunks(self._rows(engine.due, b"")):
            for key, _ in chunk:
                what, at_ns, qid, raw_id = keys.parse_due(key)
                earliest.setdefault(what, at_ns)
                q = engine.queue_by_number(qid)
                if q is None:
                    if qid not in self._dropping:
                        self._problems.append(Problem("due row of no queue", str(qid), key.hex()))
                elif not self._due_is_owned(q, what, at_ns, raw_id):
                    self._say(q, f"due row ({Due(what).name.lower()}) that nothing owns", raw_id)
        for kind in Due:
            hint_ns = max(engine.next_due_ns[kind], engine.stored_due_hint_ns(kind))
            if earliest.get(kind, hint_ns) < hint_ns:
                self._problems.append(Problem(f"due rows of {kind.name.lower()} before the hint", "", ""))

    def _due_is_owned(self, q: QueueState, what: int, at_ns: int, raw_id: bytes) -> bool:
        engine = self._engine
        if what == Due.DEDUP:
            raw = engine.kv.get(q.prefix + raw_id, engine.dedup)
            return raw is not None and decode_dedup(raw)[0] == at_ns
        codes = _WAITING if what == Due.TTL else [c for c, d in DUE_OF_STATE.items() if d == what]
        for code in codes:
            raw = engine.kv.get(keys.state(q.qid, code, raw_id), engine.state)
            if raw is not None:
                row = decode_state(raw)
                return at_ns == (row.expires_at_ns if what == Due.TTL else row.until_ns)
        if what != Due.TTL:
            return False
        body = engine.kv.get(q.prefix + raw_id, engine.messages)
        others = engine.kv.get_many([keys.state(q.qid, code, raw_id) for code in _CODES], engine.state)
        return body is not None and not any(others) and decode_body(body).expires_at_ns == at_ns

    def _check_dedup(self) -> None:
        engine = self._engine
        for chunk in _chunks(self._rows(engine.dedup, b"")):
            due_keys = [
                keys.due(Due.DEDUP, decode_dedup(raw)[0], int.from_bytes(key[:4], "big"), key[4:])
                for key, raw in chunk
            ]
            for (key, _), due in zip(chunk, engine.kv.get_many(due_keys, engine.due), strict=True):
                if due is None:
                    qid = str(int.from_bytes(key[:4], "big"))
                    self._problems.append(Problem("dedup row that never ends", qid, key.hex()))

    def _check_numbers(self) -> None:
        """Rows of a queue number that no queue has, and is not being dropped, are orphans."""
        engine = self._engine
        known = {*engine.by_qid, *self._dropping}
        numbered = known | {row.number for _, row in self._worlds.all()}
        for name in ("messages", "ready", "state", "dedup", "held", "journal"):
            space, at = engine.kv.space(name), b"\0\0\0\0"
            while (row := next(engine.kv.scan(space, at, None, limit=1), None)) is not None:
                number = int.from_bytes(row[0][:4], "big")
                if number not in (numbered if name == "journal" else known):
                    self._problems.append(Problem(f"{name} rows of no queue", str(number), row[0].hex()))
                at = keys.u32(number + 1)
        for kind in (Meta.COUNTERS, Meta.CURSOR, Meta.LANE_HINT):
            for key, _ in self._rows(engine.meta, keys.meta(kind)):
                number = int.from_bytes(key[1:5], "big")
                if number not in known:
                    self._problems.append(Problem(f"{kind.name.lower()} of no queue", str(number), key.hex()))

    # -- journals -------------------------------------------------------------------------------

    def _check_journal(self, q: QueueState) -> None:
        c = q.counters
        seq, size, counts = c.base_seq, 0, tuple(c.base_counts)
        for key, raw in frames(self._engine, q.qid, 0):
            size += len(raw)
            try:
                head = decode_head(raw)
                events = sum(1 for _ in decode_events(raw))
            except StorageCorrupt as error:
                self._say(q, str(error), where=f"journal frame {key.hex()}")
                seq = int.from_bytes(key[4:], "big")
                continue
            if head.first_seq != seq + 1:
                self._say(q, f"journal goes from {seq} to {head.first_seq}", where=f"frame {key.hex()}")
            if head.last_seq != int.from_bytes(key[4:], "big"):
                self._say(q, "journal frame under another number", where=f"frame {key.hex()}")
            seq, counts = head.last_seq, head.counts
            self._events += events
        if seq != c.next_seq - 1:
            self._say(q, f"journal ends at {seq}, but {c.next_seq - 1} events were recorded")
        waiting = (counts[0] + counts[1], *counts[2:])
        stored = (c.counts[0] + c.counts[1], *c.counts[2:])
        if waiting != stored:
            self._say(q, f"journal says {waiting} waiting, leased, done, dead; counters say {stored}")
        if size != c.journal_bytes:
            self._say(q, f"journal has {size} bytes; the counter says {c.journal_bytes}")

    def _check_fold(self, q: QueueState) -> None:
        for what, raw_id in fold(self._engine, q):
            self._say(q, what, raw_id or None)

    def _check_world(self, world: str) -> None:
        engine = self._engine
        row = self._worlds.load(world)
        if row is None:
            return
        seq, size, vectors = row.base_seq, 0, row.base_vectors
        for key, raw in frames(engine, row.number, 0):
            entries = list(decode_entries(raw, world))
            size += len(raw)
            vectors += sum(entry.vector is not None for entry in entries)
            if not entries:
                self._problems.append(Problem("world frame without entries", world, key.hex()))
                continue
            if entries[0].seq != seq + 1:
                self._problems.append(Problem(f"world goes from {seq} to {entries[0].seq}", world, key.hex()))
            seq = entries[-1].seq
            places = engine.kv.get_many([parse_id(entry.id or "") for entry in entries], engine.entries)
            for entry, place in zip(entries, places, strict=True):
                if place != MARK + keys.u32(row.number) + keys.u64(entry.seq):
                    self._problems.append(Problem("entry that its id does not lead to", world, str(entry.id)))
            self._events += len(entries)
            self._entries += len(entries)
        if (seq, size, vectors) != (row.next_seq - 1, row.bytes, row.vectors):
            what = f"seq, bytes and vectors are {seq}, {size}, {vectors}; the world says otherwise"
            self._problems.append(Problem(what, world, ""))

    def _check_entries(self) -> None:
        stored = sum(len(chunk) for chunk in _chunks(self._rows(self._engine.entries, b"")))
        if stored != self._entries:
            what = f"{stored} ids of entries, but {self._entries} entries"
            self._problems.append(Problem(what, "", "entries"))

    # -- plumbing -------------------------------------------------------------------------------

    def _rows(self, space: Space, prefix: bytes) -> Iterator[Row]:
        return self._engine.kv.scan(space, prefix, keys.after_prefix(prefix))

    def _queues_being_dropped(self) -> set[int]:
        prefix = keys.meta(Meta.JOB)
        jobs = (decode_job(raw) for key, raw in self._rows(self._engine.meta, prefix) if len(key) == 5)
        return {job.qid for job in jobs if job.what == "drop"}

    def _guarded(self, queue: str, step: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            step(*args, **kwargs)
        except StorageCorrupt as error:
            self._problems.append(Problem(str(error), queue, step.__name__))

    def _say(self, q: QueueState, what: str, raw_id: bytes | None = None, where: str = "") -> None:
        place = where or ("" if raw_id is None else f"message {format_id(raw_id)}")
        self._problems.append(Problem(what, q.name, place))


def _due_keys(qid: int, code: StateCode, row: StateRow, raw_id: bytes) -> Iterator[bytes]:
    if code in DUE_OF_STATE and row.until_ns:
        yield keys.due(DUE_OF_STATE[code], row.until_ns, qid, raw_id)
    if row.expires_at_ns and code in _WAITING:
        yield keys.due(Due.TTL, row.expires_at_ns, qid, raw_id)


def _chunks(rows: Iterable[T]) -> Iterator[list[T]]:
    it = iter(rows)
    while chunk := list(itertools.islice(it, CHUNK)):
        yield chunk
