"""Messages that are sent, one or a batch."""

from __future__ import annotations

import hashlib
import re
from uuid import UUID

from penstock.message import DEFAULT_PRIORITY, EnqueueResult, NewMessage
from penstock.server.access import ANYBODY
from penstock.server.sqs import attributes as queue_attributes
from penstock.server.sqs import contents, digests, shapes
from penstock.server.sqs.call import Call
from penstock.server.sqs.checks import (
    MAX_DELAY_S,
    MAX_MESSAGE_BYTES,
    as_sqs,
    check_entries,
    check_range,
    failed,
    has_forbidden,
    invalid,
    missing,
)
from penstock.server.sqs.errors import SqsError
from penstock.settings import QueueSettings

TRACE = "AWSTraceHeader"
TOKEN = re.compile(r"[!-~]{1,128}")
#: Between a deduplication id and its group: neither may have it.
_SCOPE = "\n"
OTHER_TYPE = "The request include parameter that is not valid for this queue type"


class _Prepared:
    """A message that can be enqueued, and what is answered of it."""

    def __init__(self, call: Call, settings: QueueSettings, sent: shapes.Sent) -> None:
        body = sent.message_body.encode()
        listed = contents.checked(sent.message_attributes)
        trace = _trace(sent)
        self.size = len(body) + contents.size(listed)
        most = queue_attributes.number(settings, "MaximumMessageSize")
        if not body:
            raise missing("MessageBody")
        if self.size > most:
            raise SqsError(
                "InvalidParameterValue",
                f"One or more parameters are invalid. Reason: Message must be shorter than {most} bytes.",
            )
        if has_forbidden(sent.message_body):
            raise SqsError("InvalidMessageContents", "Invalid characters found in the message body.")
        self._fifo = settings.fifo
        self.body_md5 = digests.of_body(body)
        self.attributes_md5 = digests.of_attributes(listed) if listed else None
        self.trace_md5 = digests.of_attributes([(TRACE, "String", trace)]) if trace else None
        interpreted = {name: str(value) for name, _, value in listed if name.startswith("Penstock.")}
        sender = "" if call.who is ANYBODY else call.who.name
        self.message = NewMessage(
            body,
            contents.headers(listed, trace, sender),
            fairness_key=_group(settings, sent),
            weight=_whole(interpreted, "Penstock.Weight", 1),
            throttle_keys=_keys(interpreted["Penstock.ThrottleKeys"])
            if "Penstock.ThrottleKeys" in interpreted
            else (),
            priority=_whole(interpreted, "Penstock.Priority", DEFAULT_PRIORITY),
            delay_s=_delay_s(settings, sent),
            ttl_s=queue_attributes.retention_s(settings),
            dedup_id=_scoped(settings, sent, _dedup_id(settings, sent, body)),
        )

    def receipt(self, result: EnqueueResult) -> dict[str, str | None]:
        if result.error is not None:
            raise as_sqs(result.error)
        assert result.id is not None
        return {
            "message_id": result.id,
            "md5_of_message_body": self.body_md5,
            "md5_of_message_attributes": self.attributes_md5,
            "md5_of_message_system_attributes": self.trace_md5,
            "sequence_number": sequence_number(result.id) if self._fifo else None,
        }


async def send_message(call: Call, args: shapes.SendMessage) -> shapes.Receipt:
    prepared = _Prepared(call, await call.settings(), args)
    [result] = await call.calls.enqueue(call.queue, [prepared.message])
    return shapes.Receipt(**prepared.receipt(result))  # type: ignore[arg-type]


async def send_message_batch(call: Call, args: shapes.SendMessageBatch) -> shapes.SentBatch:
    """Each entry has its own answer; what is wrong with one is no matter of the others."""
    check_entries(args.entries, "SendMessageBatch")
    settings = await call.settings()
    answer = shapes.SentBatch(successful=[], failed=[])
    good: list[tuple[str, _Prepared]] = []
    total = 0
    for entry in args.entries:
        # Refused ones count as well, by their bodies: they were sent.
        total += len(entry.message_body.encode())
        try:
            prepared = _Prepared(call, settings, entry)
        except SqsError as error:
            answer.failed.append(failed(entry.id, error))
            continue
        total += prepared.size - len(prepared.message.payload)
        good.append((entry.id, prepared))
    if total > MAX_MESSAGE_BYTES:
        raise SqsError(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {MAX_MESSAGE_BYTES} bytes. You have sent {total} bytes.",
        )
    results = await call.calls.enqueue(call.queue, [one.message for _, one in good]) if good else ()
    for (entry_id, prepared), result in zip(good, results, strict=True):
        try:
            receipt = prepared.receipt(result)
            answer.successful.append(shapes.ReceiptEntry(id=entry_id, **receipt))  # type: ignore[arg-type]
        except SqsError as error:
            answer.failed.append(failed(entry_id, error))
    return answer


def sequence_number(message_id: str) -> str:
    """Ids are in the order in which messages came: one as a number is a sequence number."""
    return str(UUID(message_id).int)


def _trace(sent: shapes.Sent) -> str | None:
    given = sent.message_system_attributes
    if not given:
        return None
    value = given.get(TRACE)
    if len(given) > 1 or value is None or value.data_type != "String" or not value.string_value:
        raise SqsError("InvalidParameterValue", f"The one system attribute that can be sent is {TRACE}.")
    if has_forbidden(value.string_value):
        raise invalid(TRACE, "", "It has characters that are not taken.")
    return value.string_value


def _group(settings: QueueSettings, sent: shapes.Sent) -> str:
    group = sent.message_group_id
    if group is None:
        if settings.fifo:
            raise missing("MessageGroupId")
        return ""
    if not TOKEN.fullmatch(group):
        raise invalid("MessageGroupId", group, "It has 1 to 128 letters, digits and punctuation marks.")
    return group


def _dedup_id(settings: QueueSettings, sent: shapes.Sent, body: bytes) -> str | None:
    given = sent.message_deduplication_id
    if given is None:
        if not settings.fifo:
            return None
        if queue_attributes.dedups_by_content(settings):
            return hashlib.sha256(body).hexdigest()
        raise SqsError(
            "InvalidParameterValue",
            "The queue should either have ContentBasedDeduplication enabled"
            " or MessageDeduplicationId provided explicitly",
        )
    if not settings.fifo:
        raise invalid("MessageDeduplicationId", given, OTHER_TYPE)
    if not TOKEN.fullmatch(given):
        raise invalid(
            "MessageDeduplicationId", given, "It has 1 to 128 letters, digits and punctuation marks."
        )
    return given


def _scoped(settings: QueueSettings, sent: shapes.Sent, dedup_id: str | None) -> str | None:
    """With the group, where each has its own duplicates."""
    if dedup_id is None or not queue_attributes.dedups_by_group(settings):
        return dedup_id
    return f"{dedup_id}{_SCOPE}{sent.message_group_id}"


def given_dedup_id(dedup_id: str | None) -> str | None:
    """Of a stored one, what the sender gave."""
    return dedup_id and dedup_id.partition(_SCOPE)[0]


def _delay_s(settings: QueueSettings, sent: shapes.Sent) -> int:
    check_range("DelaySeconds", sent.delay_seconds, 0, MAX_DELAY_S)
    if settings.fifo:
        if sent.delay_seconds:
            raise invalid("DelaySeconds", sent.delay_seconds, OTHER_TYPE)
        return 0
    if sent.delay_seconds is None:
        return queue_attributes.number(settings, "DelaySeconds")
    return sent.delay_seconds


def _keys(text: str) -> tuple[str, ...]:
    return tuple(key.strip() for key in text.split(",") if key.strip())


def _whole(interpreted: dict[str, str], name: str, default: int) -> int:
    text = interpreted.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise invalid("MessageAttribute", name, "It must be a whole number.")
    return int(text)
