"""Messages that are received, deleted, and held for longer or shorter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.clock import NS_PER_S
from penstock.errors import MessageNotFound, StaleReceipt
from penstock.message import Delivery, Outcome, format_id, parse_receipt
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
from penstock.server.sqs.sending import TRACE, sequence_number

E = TypeVar("E", bound=shapes.HandleEntry)

_NS_PER_MS = NS_PER_S // 1000

#: System attributes: what each is of a delivery; empty ones are left out.
_SYSTEM: dict[str, Callable[[Delivery, contents.Note, bool], str | None]] = {
    "SenderId": lambda one, note, fifo: note.sender or ANYBODY.name,
    "SentTimestamp": lambda one, note, fifo: str(one.enqueued_at_ns // _NS_PER_MS),
    "ApproximateReceiveCount": lambda one, note, fifo: str(one.attempts),
    "ApproximateFirstReceiveTimestamp": lambda one, note, fifo: str(one.leased_at_ns // _NS_PER_MS),
    "SequenceNumber": lambda one, note, fifo: sequence_number(one.id) if fifo else None,
    "MessageDeduplicationId": lambda one, note, fifo: one.dedup_id,
    "MessageGroupId": lambda one, note, fifo: one.fairness_key,
    TRACE: lambda one, note, fifo: note.trace,
    "DeadLetterQueueSourceArn": lambda one, note, fifo: None,
}


async def receive_message(call: Call, args: shapes.ReceiveMessage) -> shapes.ReceivedMessages:
    """Waits for the first if there is none; takes no thread meanwhile."""
    check_range("MaxNumberOfMessages", args.max_number_of_messages, 1, MOST_ENTRIES)
    check_range("VisibilityTimeout", args.visibility_timeout, 0, MAX_VISIBILITY_S)
    check_range("WaitTimeSeconds", args.wait_time_seconds, 0, MAX_WAIT_S)
    names = {*args.attribute_names, *args.message_system_attribute_names}
    for name in names:
        if name != "All" and name not in _SYSTEM:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name:.80}.")
    settings = await call.settings()
    wait_s = args.wait_time_seconds
    if wait_s is None:
        wait_s = queue_attributes.number(settings, "ReceiveMessageWaitTimeSeconds")
    lease_s: float | None = args.visibility_timeout
    if lease_s == 0:
        lease_s = queue_attributes.SHORTEST_LEASE_S
    deliveries = await call.calls.lease(
        call.queue, args.max_number_of_messages, lease_s, wait_s, call.who.name, call.listening
    )
    shown = tuple(_SYSTEM) if "All" in names else tuple(name for name in _SYSTEM if name in names)
    asked = args.message_attribute_names
    return shapes.ReceivedMessages(
        messages=[_received(one, shown, asked, settings.fifo) for one in deliveries]
    )


def _received(one: Delivery, shown: Sequence[str], asked: Sequence[str], fifo: bool) -> shapes.Received:
    note = contents.note_of(one.headers)
    body, is_base64 = contents.body_of(one.payload)
    found = contents.attributes_of(one.headers, note)
    if is_base64:
        found.append((contents.ENCODING, "String", "base64"))
    listed = contents.wanted(found, asked)
    system = {name: _SYSTEM[name](one, note, fifo) for name in shown}
    return shapes.Received(
        message_id=one.id,
        receipt_handle=handles.handle(one.receipt, one.queue),
        md5_of_body=digests.of_body(body.encode()),
        body=body,
        attributes={name: value for name, value in system.items() if value},
        md5_of_message_attributes=digests.of_attributes(listed) if listed else None,
        message_attributes={attribute[0]: contents.value_of(attribute) for attribute in listed},
    )


async def delete_message(call: Call, args: shapes.DeleteMessage) -> None:
    receipt = handles.receipt(args.receipt_handle, call.queue)
    [outcome] = await call.calls.ack(call.queue, [receipt])
    error = await _refusal(call, receipt, outcome)
    if error is not None:
        raise error


async def delete_message_batch(call: Call, args: shapes.DeleteMessageBatch) -> shapes.DoneBatch:
    check_entries(args.entries, "DeleteMessageBatch")
    good, answer = _with_receipts(call, args.entries)
    outcomes = await call.calls.ack(call.queue, [receipt for _, receipt in good]) if good else ()
    for (entry, receipt), outcome in zip(good, outcomes, strict=True):
        _add(answer, entry.id, await _refusal(call, receipt, outcome))
    return answer


async def _refusal(call: Call, receipt: str, outcome: Outcome) -> SqsError | None:
    """What a client is told of a message that was not deleted.

    A handle that has run out deletes nothing, and is no error, as SQS has it; in a fifo queue it is one,
    unless the message is gone anyway.
    """
    if outcome.error is None:
        return None
    if not isinstance(outcome.error, StaleReceipt):
        return as_sqs(outcome.error)
    parsed = parse_receipt(receipt)
    if not (await call.settings()).fifo or parsed is None:
        return None
    try:
        await call.calls.run(lambda: call.ps.queue(call.queue).get(format_id(parsed[0])))
    except MessageNotFound:
        return None
    return invalid("ReceiptHandle", "given", "The receipt handle has expired.")


async def change_message_visibility(call: Call, args: shapes.ChangeVisibility) -> None:
    check_range("VisibilityTimeout", args.visibility_timeout, 0, MAX_VISIBILITY_S)
    receipt = handles.receipt(args.receipt_handle, call.queue)
    [outcome] = await _hold(call, [receipt], args.visibility_timeout)
    if outcome.error is not None:
        raise _not_held(outcome)


async def change_message_visibility_batch(call: Call, args: shapes.ChangeVisibilityBatch) -> shapes.DoneBatch:
    """One call of the store for each length that is asked for."""
    check_entries(args.entries, "ChangeMessageVisibilityBatch")
    good, answer = _with_receipts(call, args.entries)
    by_length: dict[int, list[tuple[str, str]]] = {}
    for entry, receipt in good:
        length_s = entry.visibility_timeout
        try:
            if length_s is None:
                raise missing("VisibilityTimeout")
            check_range("VisibilityTimeout", length_s, 0, MAX_VISIBILITY_S)
        except SqsError as error:
            _add(answer, entry.id, error)
            continue
        by_length.setdefault(length_s, []).append((entry.id, receipt))
    await call.settings()  # There is such a queue, whatever the entries are.
    for length_s, group in by_length.items():
        outcomes = await _hold(call, [receipt for _, receipt in group], length_s)
        for (entry_id, _), outcome in zip(group, outcomes, strict=True):
            _add(answer, entry_id, None if outcome.ok else _not_held(outcome))
    return answer


async def _hold(call: Call, receipts: list[str], length_s: int) -> Sequence[Outcome]:
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


def _with_receipts(call: Call, entries: Sequence[E]) -> tuple[list[tuple[E, str]], shapes.DoneBatch]:
    good: list[tuple[E, str]] = []
    answer = shapes.DoneBatch(successful=[], failed=[])
    for entry in entries:
        try:
            good.append((entry, handles.receipt(entry.receipt_handle, call.queue)))
        except SqsError as error:
            _add(answer, entry.id, error)
    return good, answer


def _add(answer: shapes.DoneBatch, entry_id: str, error: SqsError | None) -> None:
    if error is None:
        answer.successful.append(shapes.DoneEntry(id=entry_id))
    else:
        answer.failed.append(failed(entry_id, error))
