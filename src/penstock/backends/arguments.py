"""What callers may pass: checked once, where a call comes in."""

from __future__ import annotations

from penstock.codec.body import check_duration
from penstock.errors import InvalidMessage
from penstock.message import MAX_HEADERS_BYTES, STORED_STATES, State


def check_lease_s(value: float) -> None:
    check_duration(value, "lease_s")
    if value < 0.001:
        raise InvalidMessage(f"lease_s is {value!r}; the shortest lease is 0.001 seconds")


def check_reason(reason: str) -> None:
    try:
        size = len(reason.encode())
    except (AttributeError, UnicodeEncodeError):
        raise InvalidMessage("reason must be a str that UTF-8 can write") from None
    if size > MAX_HEADERS_BYTES:
        raise InvalidMessage(f"reason has {size} bytes; the limit is {MAX_HEADERS_BYTES}")


def checked_state(state: str) -> State:
    try:
        checked = State(state)
    except ValueError:
        checked = State.EXPIRED
    if checked == State.EXPIRED:
        raise InvalidMessage(f"state {state!r:.40} cannot be listed; accepted: {', '.join(STORED_STATES)}")
    return checked


def due_position(after: str | None) -> tuple[int, int, int, bytes] | None:
    """Time, kind, queue and id of the item that a page of due ones goes on after."""
    if after is None:
        return None
    try:
        raw = bytes.fromhex(after)
    except (ValueError, TypeError):
        raw = b""
    if len(raw) != 29:
        raise InvalidMessage(f"after {after!r:.60} is not the position of a due item")
    return int.from_bytes(raw[:8], "big"), raw[8], int.from_bytes(raw[9:13], "big"), raw[13:]
