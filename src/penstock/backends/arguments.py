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
