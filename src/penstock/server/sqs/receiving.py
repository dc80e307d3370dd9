"""Messages that are received, deleted, and held for longer or shorter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from penstock.backends.burial import ATTEMPTS, ORIGIN
from penstock.clock import NS_PER_S
from penstock.errors import MessageNotFound, StaleReceipt
from penstock.message import (
    OWNED_HEADER_PREFIX,
    Delivery,
    Message,
    NewMessage,
    Outcome,
    State,
    format_id,
)
from penstock.penstock import Penstock
from penstock.server.access import ANYBODY
from penstock.server.sqs import attributes as queue_attributes
from penstock.server.sqs import contents, digests, handles, shapes
from penstock.server.sqs.call import Call
from penstock.server.sqs.checks import (
    MAX_VISIBILITY_S,
    MAX_WAIT_S,
    MOST_ENTRIES,
    as_sqs,
    check_entries,
    check_range,
    failed,
    invalid,
    missing,
)
from penstock.server.sqs.errors import SqsError
from penstock.server.sqs.memory import Attempt
from penstock.server.sqs.place import Place
from penstock.server.sqs.sending import OTHER_TYPE, TOKEN, TRACE, given_dedup_id, sequence_number
from penstock.settings import QueueSettings

E = TypeVar("E", bound=shapes.HandleEntry)

_NS_PER_MS = NS_PER_S // 1000
_WAITING = (State.READY, State.DELAYED)
#: What is deleted while it waits is hidden for longer than it lives.
_HIDDEN_S, _LEFT_S = 60, 0.001


class _View(NamedTuple):
    """A delivery, and what else its system attributes are made of."""

    one: Delivery
    note: contents.Note
    first_ns: int
    fifo: bool
    place: Place


def _origin(view: _View) -> str | None:
    queue = view.one.headers.get(ORIGIN)
    return None if queue is None else view.place.arn(queue)


def _receives(view: _View) -> str:
    """In all the queues that it was in: a dead letter's go on from those that it died of."""
    before = view.one.headers.get(ATTEMPTS, "")
    return str(view.one.attempts + (int(before) if before.isdecimal() else 0))


#: System attributes: what each is of a delivery; empty ones are left out.
_SYSTEM: dict[str, Callable[[_View], str | None]] = {
    "SenderId": lambda view: view.note.sender or ANYBODY.name,
    "SentTimestamp": lambda view: str(view.one.enqueued_at_ns // _NS_PER_MS),
    "ApproximateReceiveCount": _receives,
    "ApproximateFirstReceiveTimestamp": lambda view: str(view.first_ns // _NS_PER_MS),
    "SequenceNumber": lambda view: sequence_number(view.one.id) if view.fifo else None,
    "MessageDeduplicationId": lambda view: given_dedup_id(view.one.dedup_id),
    "MessageGroupId": lambda view: view.one.fairness_key,
    TRACE: lambda view: view.note.trace,
    "DeadLetterQueueSourceArn": _origin,
}


#: Names that may be asked for besides: AWS's page has the second of them, which no message has.
_ALSO_NAMED = ("All", "SqsManagedSseEnabled")


async def receive_message(call: Call, args: shapes.ReceiveMessage) -> shapes.ReceivedMessages:
    """Waits for the first if there is none; takes no thread meanwhile."""
    check_range("MaxNumberOfMessages", args.max_number_of_messages, 1, MOST_ENTRIES)
    check_range("VisibilityTimeout", args.visibility_timeout, 0, MAX_VISIBILITY_S)
    check_range("WaitTimeSeconds", args.wait_time_seconds, 0, MAX_WAIT_S)
    names = {*args.attribute_names, *args.message_system_attribute_names}
    for name in names:
        if name not in _SYSTEM and name not in _ALSO_NAMED:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name:.80}.")
    settings = await call.settings()
    attempt = args.receive_request_attempt_id
    if attempt is not None and not settings.fifo:
        raise invalid("ReceiveRequestAttemptId", attempt, OTHER_TYPE)
    if attempt is not None and not TOKEN.fullmatch(attempt):
        raise invalid(
            "ReceiveRequestAttemptId", attempt, "It has 1 to 128 letters, digits and punctuation marks."
        )
    deliveries = await (
        _leased(call, settings, args)
        if attempt is None
        else _leased_once(call, settings, args, (call.queue, call.who.name, attempt))
    )
    shown = tuple(_SYSTEM) if "All" in names else tuple(name for name in _SYSTEM if name in names)
    return shapes.ReceivedMessages(
        messages=[
            _received(call, one, shown, args.message_attribute_names, settings.fifo) for one in deliveries
        ]
    )


async def _leased(call: Call, settings: QueueSettings, args: shapes.ReceiveMessage) -> Sequence[Delivery]:
    wait_s = args.wait_time_seconds
    if wait_s is None:
        wait_s = queue_attributes.number(settings, "ReceiveMessageWaitTimeSeconds")
    lease_s: float | None = args.visibility_timeout
    if lease_s == 0:
        lease_s = queue_attributes.SHORTEST_LEASE_S
    return await call.calls.lease(
        call.queue, args.max_number_of_messages, lease_s, wait_s, call.who.name, call.listening
    )


async def _leased_once(
    call: Call, settings: QueueSettings, args: shapes.ReceiveMessage, attempt: Attempt
) -> Sequence[Delivery]:
    """An attempt that comes again gets the messages that it got, as far as they are still its own."""
    before = call.memory.attempt(attempt)
    if before is not None:
        deliveries = await asyncio.shield(before)
        lease_s = settings.lease_s if args.visibility_timeout is None else args.visibility_timeout
        outcomes = await _hold(call, [one.receipt for one in deliveries], lease_s) if deliveries else ()
        held = [one for one, outcome in zip(deliveries, outcomes, strict=True) if outcome.ok]
        if held:
            return held
    answer = call.memory.begin(attempt)
    try:
        deliveries = await _leased(call, settings, args)
    except BaseException:
        answer.set_result(())  # Whoever repeats it starts anew.
        raise
    answer.set_result(deliveries)
    return deliveries


def _received(
    call: Call, one: Delivery, shown: Sequence[str], asked: Sequence[str], fifo: bool
) -> shapes.Received:
    note = contents.note_of(one.headers)
    body, is_base64 = contents.body_of(one.payload)
    found = contents.attributes_of(one.headers, note)
    if is_base64:
        found.append((contents.ENCODING, "String", "base64"))
    listed = contents.wanted(found, asked)
    view = _View(one, note, call.memory.first_ns(one), fifo, call.place)
    system = {name: _SYSTEM[name](view) for name in shown}
    return shapes.Received(
        message_id=one.id,
        receipt_handle=handles.handle(one),
        md5_of_body=digests.of_body(body.encode()),
        body=body,
        attributes={name: value for name, value in system.items() if value},
        md5_of_message_attributes=digests.of_attributes(listed) if listed else None,
        message_attributes={attribute[0]: contents.value_of(attribute) for attribute in listed},
    )


async def delete_message(call: Call, args: shapes.DeleteMessage) -> None:
    handle = handles.parsed(args.receipt_handle, call.queue)
    [outcome] = await call.calls.ack(call.queue, [handle.receipt])
    error = await _refusal(call, handle, outcome)
    if error is not None:
        raise error


async def delete_message_batch(call: Call, args: shapes.DeleteMessageBatch) -> shapes.DoneBatch:
    check_entries(args.entries, "DeleteMessageBatch")
    good, answer = _with_receipts(call, args.entries)
    await call.settings()  # There is such a queue, whatever the entries are.
    outcomes = await call.calls.ack(call.queue, [handle.receipt for _, handle in good]) if good else ()
    for (entry, handle), outcome in zip(good, outcomes, strict=True):
        _add(answer, entry.id, await _refusal(call, handle, outcome))
    return answer


async def _refusal(call: Call, handle: handles.Handle, outcome: Outcome) -> SqsError | None:
    """What a client is told of a message that was not deleted.

    A handle that has run out is no error, as SQS has it, and the latest one deletes all the same. In a fifo
    queue it is an error, unless the message is gone anyway.
    """
    if outcome.error is None:
        call.memory.deleted(handle.raw_id)
        return None
    if not isinstance(outcome.error, StaleReceipt):
        return as_sqs(outcome.error)
    try:
        message = await call.calls.run(lambda: call.ps.queue(call.queue).get(format_id(handle.raw_id)))
    except MessageNotFound:
        return None
    if (await call.settings()).fifo:
        return invalid("ReceiptHandle", "given", "The receipt handle has expired.")
    if message.state in _WAITING and message.attempts == handle.attempts:
        await call.calls.run(_take_out, call.ps, message)
    return None


def _take_out(ps: Penstock, message: Message) -> None:
    """Remove a message that waits: it is made one that nobody sees before it expires.

    Nothing comes of it if somebody has received it meanwhile. If it is gone by now, what is made expires too.
    """
    gone = NewMessage(
        message.payload,
        {name: text for name, text in message.headers.items() if not name.startswith(OWNED_HEADER_PREFIX)},
        delay_s=_HIDDEN_S,
        ttl_s=_LEFT_S,
        id=message.id,
    )
    ps.queue(message.queue).upsert([gone])


async def change_message_visibility(call: Call, args: shapes.ChangeVisibility) -> None:
    handle = handles.parsed(args.receipt_handle, call.queue)
    _check_length(call, handle, args.visibility_timeout)
    [outcome] = await _hold(call, [handle.receipt], args.visibility_timeout)
    if outcome.error is not None:
        raise _not_held(outcome)


async def change_message_visibility_batch(call: Call, args: shapes.ChangeVisibilityBatch) -> shapes.DoneBatch:
    """One call of the store for each length that is asked for."""
    check_entries(args.entries, "ChangeMessageVisibilityBatch")
    good, answer = _with_receipts(call, args.entries)
    by_length: dict[int, list[tuple[str, str]]] = {}
    for entry, handle in good:
        length_s = entry.visibility_timeout
        try:
            if length_s is None:
                raise missing("VisibilityTimeout")
            _check_length(call, handle, length_s)
        except SqsError as error:
            _add(answer, entry.id, error)
            continue
        by_length.setdefault(length_s, []).append((entry.id, handle.receipt))
    await call.settings()  # There is such a queue, whatever the entries are.
    for length_s, group in by_length.items():
        outcomes = await _hold(call, [receipt for _, receipt in group], length_s)
        for (entry_id, _), outcome in zip(group, outcomes, strict=True):
            _add(answer, entry_id, None if outcome.ok else _not_held(outcome))
    return answer


def _check_length(call: Call, handle: handles.Handle, length_s: int) -> None:
    """From when the message was received, it can be held for so long in all."""
    check_range("VisibilityTimeout", length_s, 0, MAX_VISIBILITY_S)
    held_s = call.known.clock.now_ns() // NS_PER_S - handle.received_at_s
    if length_s + held_s > MAX_VISIBILITY_S:
        raise invalid(
            "VisibilityTimeout",
            length_s,
            f"Total VisibilityTimeout for the message is beyond the limit [{MAX_VISIBILITY_S} seconds].",
        )


async def _hold(call: Call, receipts: list[str], length_s: float) -> Sequence[Outcome]:
    """For no time at all: given back, to be received at once."""

    def hold() -> Sequence[Outcome]:
        queue = call.ps.queue(call.queue)
        return queue.extend(receipts, length_s) if length_s else queue.nack(receipts, 0)

    return await call.calls.run(hold)


def _not_held(outcome: Outcome) -> SqsError:
    assert outcome.error is not None
    if isinstance(outcome.error, StaleReceipt):
        return SqsError("MessageNotInflight", "The specified message isn't in flight.")
    return as_sqs(outcome.error)


def _with_receipts(
    call: Call, entries: Sequence[E]
) -> tuple[list[tuple[E, handles.Handle]], shapes.DoneBatch]:
    good: list[tuple[E, handles.Handle]] = []
    answer = shapes.DoneBatch(successful=[], failed=[])
    for entry in entries:
        try:
            good.append((entry, handles.parsed(entry.receipt_handle, call.queue)))
        except SqsError as error:
            _add(answer, entry.id, error)
    return good, answer


def _add(answer: shapes.DoneBatch, entry_id: str, error: SqsError | None) -> None:
    if error is None:
        answer.successful.append(shapes.DoneEntry(id=entry_id))
    else:
        answer.failed.append(failed(entry_id, error))
