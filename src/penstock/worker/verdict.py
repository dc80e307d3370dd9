"""What becomes of a delivery in a handler's hands, and the exceptions by which a handler decides it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

import msgspec

from penstock.codec.body import check_duration
from penstock.errors import InvalidMessage
from penstock.message import Delivery
from penstock.worker.reason import bounded, explained

Kind = Literal["done", "failed", "rejected", "timed out", "died", "returned"]


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of one delivery. `delay_s` None leaves the time of the next try to the queue's policy."""

    kind: Kind
    reason: str = ""
    delay_s: float | None = None


DONE = Verdict("done")


def _text(reason: object) -> str:
    return "" if reason is None else str(reason)


class RetryLater(Exception):
    """Raised by a handler: try this message again after `delay_s`, or when the queue's policy says.

    The reason is text; anything else, another exception say, is what `str` makes of it.
    """

    #: For kinds of it whose constructor does not call this one's.
    delay_s: float | None = None
    reason: str = ""

    def __init__(self, delay_s: float | None = None, reason: object = "") -> None:
        if delay_s is not None:
            check_duration(delay_s, "delay_s")
        self.delay_s = delay_s
        self.reason = _text(reason)
        super().__init__(self.reason or "the handler asks for another try")


class Reject(Exception):
    """Raised by a handler: this message must not be tried again; it is dead with this reason.

    The reason is text; anything else, another exception say, is what `str` makes of it.
    """

    reason: str = ""

    def __init__(self, reason: object = "") -> None:
        self.reason = _text(reason)
        super().__init__(self.reason or "the handler rejects the message")


Handler = Callable[[Any], object]
AsyncHandler = Callable[[Any], Coroutine[Any, Any, object]]


def verdicts_of(handler: Handler, deliveries: list[Delivery], *, batch: bool) -> list[Verdict]:
    """Run the handler; whatever it does, each delivery has a verdict."""
    try:
        answer = handler(deliveries if batch else deliveries[0])
        return _said(answer, deliveries) if batch else [DONE]
    except BaseException as error:  # noqa: BLE001 (a handler's sys.exit is the failure of its message)
        return [_raised(error, delivery) for delivery in deliveries]


async def verdicts_of_async(
    handler: AsyncHandler, deliveries: list[Delivery], *, batch: bool
) -> list[Verdict]:
    """The same for a coroutine function."""
    try:
        answer = await handler(deliveries if batch else deliveries[0])
        return _said(answer, deliveries) if batch else [DONE]
    except BaseException as error:  # noqa: BLE001 (a cancelled task's message needs a verdict like any other)
        return [_raised(error, delivery) for delivery in deliveries]


def _said(answer: object, deliveries: list[Delivery]) -> list[Verdict]:
    """A batch handler's answer: None, or for each delivery None or the exception that it failed with."""
    if answer is None:
        return [DONE] * len(deliveries)
    if not isinstance(answer, Sequence) or len(answer) != len(deliveries):
        found = f"{len(answer)} answers" if isinstance(answer, list | tuple) else type(answer).__name__
        raise TypeError(
            f"a batch handler returns None, or a list with one answer for each of its {len(deliveries)} "
            f"deliveries, not {found}"
        )
    return [_one(said, delivery) for said, delivery in zip(answer, deliveries, strict=True)]


def _one(said: object, delivery: Delivery) -> Verdict:
    if said is None:
        return DONE
    if not isinstance(said, BaseException):
        said = TypeError(f"a batch handler's answer is None or an exception, not {type(said).__name__}")
    return _raised(said, delivery)


def _raised(error: BaseException, delivery: Delivery) -> Verdict:
    """Whatever the error is like: a delivery without a verdict would keep its slot and its lease for ever."""
    try:
        match error:
            case Reject():
                return Verdict("rejected", bounded(_text(error.reason)) or explained(error, delivery))
            case RetryLater():
                reason = bounded(_text(error.reason)) or explained(error, delivery)
                return Verdict("failed", reason, _accepted(error.delay_s))
            case _:
                return Verdict("failed", explained(error, delivery))
    except Exception as another:  # noqa: BLE001 (a user's, that fails when it is looked at)
        kind: Kind = "rejected" if isinstance(error, Reject) else "failed"
        return Verdict(kind, f"{type(error).__name__}, which cannot be shown: {type(another).__name__}")


def _accepted(delay_s: float | None) -> float | None:
    """A delay that was set past the constructor is left to the queue's policy if no queue would take it."""
    try:
        if delay_s is not None:
            check_duration(delay_s, "delay_s")
    except InvalidMessage:
        return None
    return delay_s
