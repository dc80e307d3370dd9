"""What may come into a queue: new messages checked, and refusals that fail their own item alone."""

from __future__ import annotations

from penstock.codec.body import check_message
from penstock.errors import InvalidMessage, PenstockError, as_answer
from penstock.hooks.scripts import Refused
from penstock.message import DEFAULT_PRIORITY, OWNED_HEADER_PREFIX, NewMessage

#: What is wrong with an item is its own answer, whatever it is: the others are stored.
ITEMS_OWN = (PenstockError, AttributeError, TypeError, ValueError, LookupError, ArithmeticError)


def check_new(queue: str, m: NewMessage, *, fifo: bool) -> None:
    """Refuse what is no message, is outside the limits, or would break the order of a fifo queue."""
    if not isinstance(m, NewMessage):
        raise m.error if isinstance(m, Refused) else _not_a_message(m)
    check_message(m)
    if fifo and (m.delay_s or m.priority != DEFAULT_PRIORITY):
        raise InvalidMessage(
            f"queue {queue!r} is fifo: a message's own delay_s or priority would break its order"
        )


def owned(headers: dict[str, str]) -> dict[str, str]:
    """Headers that Penstock put there: a mended dead letter still knows where it came from."""
    return {name: value for name, value in headers.items() if name.startswith(OWNED_HEADER_PREFIX)}


def refusal(m: object, error: Exception) -> PenstockError:
    if isinstance(m, Refused):
        return m.error
    if isinstance(error, PenstockError):
        return as_answer(error)
    if not isinstance(m, NewMessage):
        return _not_a_message(m)
    return InvalidMessage(f"the message cannot be stored: {type(error).__name__}: {error!s:.200}")


def _not_a_message(m: object) -> InvalidMessage:
    return InvalidMessage(f"a message must be a NewMessage, not {type(m).__name__}")
