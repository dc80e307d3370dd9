"""What can be restored, and what cannot."""

from __future__ import annotations

from penstock.backends.arguments import check_reason
from penstock.backends.bulk import StoredMessage
from penstock.codec.body import check_message
from penstock.errors import InvalidMessage, PenstockError, as_answer
from penstock.message import (
    DEFAULT_PRIORITY,
    OWNED_HEADER_PREFIX,
    NewMessage,
    check_count,
    checked_name,
    parse_new_id,
)

#: States that a message may be restored in: nobody holds it here.
STATES = ("delayed", "ready", "done", "dead")


#: Those that came in together stand in line by nanoseconds; a place that is later by more is another time.
_TOGETHER_NS = 1_000_000


def came_in_ns(m: StoredMessage) -> int:
    """When a message came into the queue that it was in: by its enqueue, or later from another queue."""
    place_ns = m.order_ns or m.enqueued_at_ns
    return m.enqueued_at_ns if 0 <= place_ns - m.enqueued_at_ns < _TOGETHER_NS else place_ns


def checked(queue: str, m: StoredMessage, *, fifo: bool) -> bytes | PenstockError:
    """Its id, or why it cannot be restored."""
    try:
        return _check(queue, m, fifo=fifo)
    except PenstockError as error:
        return as_answer(error)
    except (AttributeError, TypeError, ValueError) as error:
        return InvalidMessage(f"the message cannot be restored: {type(error).__name__}: {error!s:.200}")


def _check(queue: str, m: StoredMessage, *, fifo: bool) -> bytes:
    if not isinstance(m, StoredMessage):
        raise InvalidMessage(f"a message must be a StoredMessage, not {type(m).__name__}")
    raw_id = parse_new_id(m.id)
    check_message(
        NewMessage(
            payload=m.payload,
            headers={k: v for k, v in m.headers.items() if not k.startswith(OWNED_HEADER_PREFIX)},
            fairness_key=m.fairness_key,
            weight=m.weight,
            throttle_keys=m.throttle_keys,
            priority=m.priority,
        )
    )
    if m.dedup_id is not None:
        checked_name(m.dedup_id, "dedup_id")
    check_reason(m.reason)
    if m.state not in STATES:
        raise InvalidMessage(
            f"message {m.id} is {m.state!r:.40}; accepted: {', '.join(STATES)}: nobody holds it here"
        )
    for name in ("enqueued_at_ns", "visible_at_ns", "expires_at_ns", "until_ns", "order_ns"):
        check_count(getattr(m, name) or 0, name)
    if isinstance(m.attempts, bool) or not isinstance(m.attempts, int) or not 0 <= m.attempts < 2**32:
        raise InvalidMessage(f"attempts is {m.attempts!r:.40}; accepted: whole numbers from 0 to 2**32 - 1")
    if m.state == "done" and not m.until_ns:
        raise InvalidMessage(f"message {m.id} is done, and until_ns does not say when it is removed")
    if m.state == "delayed" and not m.visible_at_ns:
        raise InvalidMessage(f"message {m.id} is delayed, and visible_at_ns does not say until when")
    if fifo and m.priority != DEFAULT_PRIORITY:
        raise InvalidMessage(f"queue {queue!r} is fifo: a message's own priority would break its order")
    return raw_id
