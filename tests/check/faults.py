"""Faults to plant in queues, one for each invariant: what is done to the rows, and what check must say."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Due, Meta, StateCode
from penstock.backends.embedded.rows import (
    MARK,
    CursorRow,
    decode_counters,
    decode_state,
    encode_counters,
    encode_state,
    packed,
)
from tests.check.stores import Raw, flipped


class Fault(NamedTuple):
    """`kinds` are all reported; `lost` messages are not in their queues after a repair."""

    plant: Callable[[Raw], None]
    kinds: set[str]
    lost: int = 0


FAULTS: dict[str, Fault] = {}


def fault(name: str, *kinds: str, lost: int = 0) -> Callable[[Callable[[Raw], None]], Callable[[Raw], None]]:
    def enter(plant: Callable[[Raw], None]) -> Callable[[Raw], None]:
        FAULTS[name] = Fault(plant, set(kinds), lost)
        return plant

    return enter


def _is(raw: Raw, queue: str, code: StateCode) -> Callable[[bytes, bytes], bool]:
    prefix = keys.state_prefix(raw.number(queue), code)
    return lambda key, value: key.startswith(prefix)


def _of(raw: Raw, queue: str) -> Callable[[bytes, bytes], bool]:
    return lambda key, value: key[:4] == keys.u32(raw.number(queue))


def fresh(raw: Raw, queue: str = "jobs") -> tuple[bytes, bytes]:
    """The ready row of a message without a state row."""
    return raw.row("ready", lambda key, value: key[:4] == keys.u32(raw.number(queue)) and not value[1])


# -- ready rows ---------------------------------------------------------------------------------


@fault("a ready row is missing", "ready_missing")
def _(raw: Raw) -> None:
    raw.delete("ready", fresh(raw)[0])


@fault("a ready row has another value", "ready_differs")
def _(raw: Raw) -> None:
    key, value = fresh(raw)
    raw.put("ready", key, flipped(value, 3))


@fault("a message has two ready rows", "ready_stray")
def _(raw: Raw) -> None:
    key, value = fresh(raw)
    raw.put("ready", key[:-24] + keys.u64(7) + key[-16:], value)


@fault("a ready row has no body", "ready_stray")
def _(raw: Raw) -> None:
    key, value = fresh(raw)
    raw.put("ready", key[:-16] + b"\x01" * 16, value)


@fault("a leased message has a ready row", "ready_stray")
def _(raw: Raw) -> None:
    key, value = raw.row("state", _is(raw, "jobs", StateCode.LEASED))
    row = decode_state(value)
    ready = keys.ready(raw.number("jobs"), row.lane, row.order_ns, key[-16:])
    raw.put("ready", ready, fresh(raw)[1])


# -- due rows -----------------------------------------------------------------------------------


def _due(what: Due) -> Callable[[bytes, bytes], bool]:
    return lambda key, value: key[0] == what


@fault("the end of a lease is missing", "due_missing")
def _(raw: Raw) -> None:
    raw.delete("due", raw.row("due", _due(Due.LEASE))[0])


@fault("the end of a ttl is missing", "due_missing")
def _(raw: Raw) -> None:
    raw.delete("due", raw.row("due", _due(Due.TTL))[0])


@fault("a delay ends twice", "due_stray")
def _(raw: Raw) -> None:
    key, value = raw.row("due", _due(Due.DELAY))
    raw.put("due", flipped(key, 8), value)


@fault("a message that waits for its queue's delay is not in line", "due_missing")
def _(raw: Raw) -> None:
    raw.delete("due", raw.row("due", _due(Due.LINE))[0])


@fault("a line says that a message came at another time", "due_differs")
def _(raw: Raw) -> None:
    key, value = raw.row("due", _due(Due.LINE))
    raw.put("due", key, flipped(value, 5))


@fault("a message stands in line twice", "due_stray")
def _(raw: Raw) -> None:
    key, value = raw.row("due", _due(Due.LINE))
    raw.put("due", key[:5] + keys.u64(7) + key[-16:], value)


@fault("a line is of no queue", "orphan_rows")
def _(raw: Raw) -> None:
    key, value = raw.row("due", _due(Due.LINE))
    raw.put("due", key[:1] + keys.u32(999) + key[5:], value)


@fault("a due row is of no queue", "orphan_rows")
def _(raw: Raw) -> None:
    raw.put("due", keys.due(Due.DELAY, 1 << 60, 4_000_000, b"\x02" * 16), MARK)


@fault("due rows are before the hint", "due_hint")
def _(raw: Raw) -> None:
    raw.put("meta", keys.meta(Meta.DUE_HINT, bytes((Due.LEASE,))), MARK + keys.u64(1 << 62))


@fault("a dedup window never ends", "due_missing")
def _(raw: Raw) -> None:
    raw.delete("due", raw.row("due", _due(Due.DEDUP))[0])


@fault("a dedup row is damaged", "dedup_damaged", "due_stray")
def _(raw: Raw) -> None:
    key, value = raw.row("dedup")
    raw.put("dedup", key, value[:-3])


# -- states and bodies --------------------------------------------------------------------------


@fault("a message is in two states", "state_double", "counters_differ")
def _(raw: Raw) -> None:
    key, value = raw.row("state", _is(raw, "jobs", StateCode.LEASED))
    row = decode_state(value)
    row.seq += 1
    raw.put("state", keys.state(raw.number("jobs"), StateCode.DEAD, key[-16:]), encode_state(row))


@fault("the state row of a lease is missing", "state_missing", "ready_missing", "due_stray")
def _(raw: Raw) -> None:
    raw.delete("state", raw.row("state", _is(raw, "jobs", StateCode.LEASED))[0])


@fault("the state row of a retried message is missing", "state_missing")
def _(raw: Raw) -> None:
    raw.delete("state", raw.row("state", _is(raw, "jobs", StateCode.READY))[0])


@fault("the state row of a dead message is missing", "state_missing")
def _(raw: Raw) -> None:
    raw.delete("state", raw.row("state", _is(raw, "jobs", StateCode.DEAD))[0])


@fault("a bit of a state row's lengths is flipped", "state_damaged")
def _(raw: Raw) -> None:
    key, value = raw.row("state", _is(raw, "jobs", StateCode.DELAYED))
    raw.put("state", key, flipped(value, 48, 3))


@fault("a bit of a state row's lane is flipped", "state_differs")
def _(raw: Raw) -> None:
    key, value = raw.row("state", _is(raw, "jobs", StateCode.LEASED))
    raw.put("state", key, flipped(value, 55))


@fault("a bit of a state row's time is flipped", "due_missing", "due_stray")
def _(raw: Raw) -> None:
    key, value = raw.row("state", _is(raw, "jobs", StateCode.LEASED))
    raw.put("state", key, flipped(value, 28))


@fault("a state row counts other attempts than the journal", "fold_differs")
def _(raw: Raw) -> None:
    key, value = raw.row("state", _is(raw, "jobs", StateCode.DEAD))
    raw.put("state", key, flipped(value, 4, 5))


@fault("a state row counts attempts of a message that was never leased", "fold_differs")
def _(raw: Raw) -> None:
    delayed = _is(raw, "jobs", StateCode.DELAYED)
    key, value = raw.row("state", lambda key, value: delayed(key, value) and not decode_state(value).attempts)
    raw.put("state", key, flipped(value, 4, 5))


@fault("a body is missing", "body_missing", "ready_stray", "counters_differ", lost=1)
def _(raw: Raw) -> None:
    key = fresh(raw)[0]
    raw.delete("messages", key[:4] + key[-16:])


@fault("the body of a leased message is missing", "body_missing", "counters_differ", lost=1)
def _(raw: Raw) -> None:
    key = raw.row("state", _is(raw, "jobs", StateCode.LEASED))[0]
    raw.delete("messages", key[:4] + key[-16:])


@fault("a body is cut short", "body_damaged", lost=1)
def _(raw: Raw) -> None:
    key = fresh(raw)[0]
    body = key[:4] + key[-16:]
    raw.put("messages", body, dict(raw.rows("messages"))[body][:30])


@fault("a bit of a body's version is flipped", "body_damaged", lost=1)
def _(raw: Raw) -> None:
    key = raw.row("state", _is(raw, "jobs", StateCode.DEAD))[0]
    body = key[:4] + key[-16:]
    raw.put("messages", body, flipped(dict(raw.rows("messages"))[body], 0, 7))


@fault("a bit of a body's priority is flipped", "ready_missing", "ready_stray")
def _(raw: Raw) -> None:
    key = fresh(raw)[0]
    body = key[:4] + key[-16:]
    raw.put("messages", body, flipped(dict(raw.rows("messages"))[body], 2))


@fault("a body is there that the journal has seen going", "body_left", "counters_differ")
def _(raw: Raw) -> None:
    key = raw.row("state", _is(raw, "kept", StateCode.GONE))[0]
    raw.delete("state", key)
    raw.delete("held", raw.row("held", lambda k, v: k[-16:] == key[-16:])[0])


@fault("a body is there that the journal has never seen", "body_left", "ready_missing", "counters_differ")
def _(raw: Raw) -> None:
    key, value = raw.row("messages", _of(raw, "jobs"))
    raw.put("messages", key[:4] + b"\x03" * 16, value)


@fault("a held body has no held row", "held_missing")
def _(raw: Raw) -> None:
    raw.delete("held", raw.row("held")[0])


@fault("a held row has no body", "held_stray")
def _(raw: Raw) -> None:
    raw.put("held", keys.held(raw.number("kept"), 3, b"\x04" * 16), MARK)


@fault("a held body has lost its state row", "body_left", "held_stray", "ready_missing")
def _(raw: Raw) -> None:
    raw.delete("state", raw.row("state", _is(raw, "kept", StateCode.GONE))[0])


# -- counters and hints -------------------------------------------------------------------------


def _counters(raw: Raw, queue: str = "jobs") -> bytes:
    return keys.meta(Meta.COUNTERS, keys.u32(raw.number(queue)))


@fault("a counter is wrong", "counters_differ")
def _(raw: Raw) -> None:
    counters = decode_counters(dict(raw.rows("meta"))[_counters(raw)])
    counters.counts[StateCode.READY] += 3
    raw.put("meta", _counters(raw), encode_counters(counters))


@fault("a total is wrong", "counters_differ")
def _(raw: Raw) -> None:
    counters = decode_counters(dict(raw.rows("meta"))[_counters(raw)])
    counters.acked_total += 1
    raw.put("meta", _counters(raw), encode_counters(counters))


@fault("the journal's size is wrong", "counters_differ")
def _(raw: Raw) -> None:
    counters = decode_counters(dict(raw.rows("meta"))[_counters(raw)])
    counters.journal_bytes -= 1
    raw.put("meta", _counters(raw), encode_counters(counters))


@fault("the next seq is absurd", "frame_missing")
def _(raw: Raw) -> None:
    counters = decode_counters(dict(raw.rows("meta"))[_counters(raw)])
    counters.next_seq = 1 << 50
    raw.put("meta", _counters(raw), encode_counters(counters))


@fault("the next seq is behind the journal", "counters_damaged")
def _(raw: Raw) -> None:
    counters = decode_counters(dict(raw.rows("meta"))[_counters(raw)])
    counters.next_seq -= 20
    raw.put("meta", _counters(raw), encode_counters(counters))


@fault("counters do not decode", "counters_damaged")
def _(raw: Raw) -> None:
    raw.put("meta", _counters(raw), b"\x01\xc1\xc1")


@fault("counters are missing", "counters_damaged")
def _(raw: Raw) -> None:
    raw.delete("meta", _counters(raw))


@fault("a ready row is before its lane's hint", "lane_hint")
def _(raw: Raw) -> None:
    key = fresh(raw)[0]
    raw.put("meta", keys.lane_hint(raw.number("jobs"), key[4:-24]), MARK + key + b"\xff")


@fault("a lane's hint points elsewhere", "lane_hint")
def _(raw: Raw) -> None:
    key = fresh(raw)[0]
    raw.put("meta", keys.lane_hint(raw.number("jobs"), key[4:-24]), MARK + b"\xff")


@fault("the next number is taken", "next_number")
def _(raw: Raw) -> None:
    raw.put("meta", keys.meta(Meta.NEXT_NUMBER), MARK + keys.u32(2))


# -- journals -----------------------------------------------------------------------------------


def _frame(raw: Raw, queue: str = "jobs", at: int = 2) -> tuple[bytes, bytes]:
    return raw.rows("journal", keys.u32(raw.number(queue)))[at]


@fault("a bit of a frame is flipped", "frame_damaged", "frame_missing")
def _(raw: Raw) -> None:
    key, value = _frame(raw)
    raw.put("journal", key, flipped(value, 70))


@fault("a frame is cut short", "frame_damaged", "frame_missing")
def _(raw: Raw) -> None:
    key, value = _frame(raw, at=0)
    raw.put("journal", key, value[:40])


@fault("a frame is missing", "frame_missing")
def _(raw: Raw) -> None:
    raw.delete("journal", _frame(raw)[0])


@fault("the last frame is missing", "frame_missing")
def _(raw: Raw) -> None:
    raw.delete("journal", _frame(raw, at=-1)[0])


@fault("a frame is under another number", "frame_misplaced", "frame_missing")
def _(raw: Raw) -> None:
    key, value = _frame(raw)
    raw.delete("journal", key)
    raw.put("journal", key[:4] + keys.u64(int.from_bytes(key[4:], "big") - 1), value)


@fault("a frame is there twice", "frame_misplaced")
def _(raw: Raw) -> None:
    key, value = _frame(raw)
    raw.put("journal", key[:4] + keys.u64(int.from_bytes(key[4:], "big") - 1), value)


@fault("a frame tells of what cannot be", "fold_illegal")
def _(raw: Raw) -> None:
    from penstock.codec.frame import decode_head, decode_runs, encode_frame, encode_run
    from penstock.event import Kind

    for key, value in raw.rows("journal", keys.u32(raw.number("bystander"))):
        head, runs = decode_head(value), list(decode_runs(value))
        if runs[0].kind is Kind.LEASED:
            changed = encode_run(Kind.EXTENDED, runs[0].at_ns, runs[0].ids, 1, runs[0].due_ns[0])
            raw.put(
                "journal", key, encode_frame(head.first_seq, head.count, head.at_ns, head.counts, [changed])
            )


@fault("a cursor has read what is not there", "cursor_ahead")
def _(raw: Raw) -> None:
    key = keys.cursor(raw.number("kept"), b"archive")
    raw.put("meta", key, packed(CursorRow(10_000, True)))


@fault("a cursor does not decode", "cursor_damaged")
def _(raw: Raw) -> None:
    raw.put("meta", keys.cursor(raw.number("kept"), b"archive"), b"\x01\x00")
