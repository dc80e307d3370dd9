"""A queue's attributes as SQS has them, and the settings of Penstock's that they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.backends.base import QueueStats
from penstock.clock import NS_PER_S
from penstock.server.sqs.call import arn, queue_of_arn
from penstock.server.sqs.checks import MAX_DELAY_S, MAX_MESSAGE_BYTES, MAX_VISIBILITY_S, MAX_WAIT_S
from penstock.server.sqs.errors import SqsError
from penstock.settings import QueueSettings

#: Of annotations: what Penstock has no setting for.
PREFIX = "sqs:"
TAG_PREFIX = "sqs:tag:"
#: Attempts where there is no RedrivePolicy: the most that can be set.
ENDLESS_ATTEMPTS = 1_000_000
MAX_RECEIVE_COUNT = 1000
#: A lease has a length; a message that is visible at once has none to speak of.
SHORTEST_LEASE_S = 0.001
RETENTION_S = 4 * 86_400

#: Whole numbers: lowest, highest, and what counts for a queue that was not created here.
NUMBERS: dict[str, tuple[int, int, int]] = {
    "VisibilityTimeout": (0, MAX_VISIBILITY_S, 30),
    "MaximumMessageSize": (1024, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES),
    "MessageRetentionPeriod": (60, 14 * 86_400, 14 * 86_400),
    "DelaySeconds": (0, MAX_DELAY_S, 0),
    "ReceiveMessageWaitTimeSeconds": (0, MAX_WAIT_S, 0),
}
#: The only values that are true here: accepted, so that tools which always send them work.
_FIXED: dict[str, tuple[str, ...]] = {
    "FifoQueue": ("true",),
    "Policy": ("",),
    "KmsMasterKeyId": ("",),
    "SqsManagedSseEnabled": ("false",),
    "DeduplicationScope": ("queue",),
    "FifoThroughputLimit": ("perQueue",),
    "RedriveAllowPolicy": ("", '{"redrivePermission":"allowAll"}'),
}
_FIFO_ONLY = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_READ_ONLY = (*COUNTS, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn", "All")
READABLE = frozenset((*NUMBERS, *_FIXED, *_FIFO_ONLY, *_READ_ONLY, "RedrivePolicy"))


class _Redrive(msgspec.Struct, rename="camel"):
    dead_letter_target_arn: str
    max_receive_count: int


def number(settings: QueueSettings, name: str) -> int:
    """One of `NUMBERS`, as the queue has it."""
    if name == "VisibilityTimeout":
        return int(settings.lease_s)
    try:
        return int(settings.annotations[PREFIX + name])
    except (KeyError, ValueError):
        return NUMBERS[name][2]


def retention_s(settings: QueueSettings) -> float | None:
    """How long a message is kept; None, for ever, in a queue that was not created here."""
    name = "MessageRetentionPeriod"
    return number(settings, name) if PREFIX + name in settings.annotations else None


def dedups_by_content(settings: QueueSettings) -> bool:
    return settings.annotations.get(PREFIX + "ContentBasedDeduplication") == "true"


def changes(attributes: Mapping[str, str], *, fifo: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """What the attributes change: settings, and annotations. Every value is checked, or none is used."""
    settings: dict[str, Any] = {}
    notes: dict[str, str] = {}
    for name, value in attributes.items():
        _check_settable(name, fifo)
        if name == "VisibilityTimeout":
            settings["lease_s"] = max(_number(name, value), SHORTEST_LEASE_S)
        elif name in NUMBERS:
            notes[PREFIX + name] = str(_number(name, value))
            if name == "DelaySeconds" and fifo and _number(name, value):
                raise _refused(name, "a fifo queue of this server has no delay")
        elif name == "RedrivePolicy":
            settings["dead_letter"], settings["max_attempts"] = _redrive(value)
        elif name == "ContentBasedDeduplication":
            notes[PREFIX + name] = _one_of(name, value, ("true", "false"))
        else:
            _one_of(name, "".join(value.split()), _FIXED[name])
    return settings, notes


def shown(settings: QueueSettings, stats: QueueStats) -> dict[str, str]:
    """Every attribute that the queue has."""
    notes = settings.annotations
    created = str(stats.created_at_ns // NS_PER_S)
    found = {
        **{name: str(number(settings, name)) for name in NUMBERS},
        **dict(zip(COUNTS, map(str, (stats.ready, stats.leased, stats.delayed)), strict=True)),
        "CreatedTimestamp": created,
        "LastModifiedTimestamp": notes.get(PREFIX + "LastModifiedTimestamp", created),
        "QueueArn": arn(settings.name),
        "SqsManagedSseEnabled": "false",
    }
    if settings.dead_letter is not None:
        policy = _Redrive(arn(settings.dead_letter), settings.max_attempts)
        found["RedrivePolicy"] = msgspec.json.encode(policy).decode()
    if settings.fifo:
        found["FifoQueue"] = "true"
        found["ContentBasedDeduplication"] = "true" if dedups_by_content(settings) else "false"
        found |= {name: _FIXED[name][0] for name in ("DeduplicationScope", "FifoThroughputLimit")}
    return found


def tags(settings: QueueSettings) -> dict[str, str]:
    notes = settings.annotations
    return {name.removeprefix(TAG_PREFIX): notes[name] for name in notes if name.startswith(TAG_PREFIX)}


def _check_settable(name: str, fifo: bool) -> None:
    if name not in READABLE or name in _READ_ONLY:
        raise SqsError("InvalidAttributeName", f"Unknown Attribute {name:.80}.")
    if name in _FIFO_ONLY and not fifo:
        raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}: the queue is not fifo.")


def _one_of(name: str, value: str, accepted: tuple[str, ...]) -> str:
    if value not in accepted:
        raise _refused(name, f"this server has {' or '.join(map(repr, accepted))} alone")
    return value


def _number(name: str, value: str) -> int:
    low, high, _ = NUMBERS[name]
    if not (value.isascii() and value.isdigit() and len(value) < 10 and low <= int(value) <= high):
        raise _refused(name, f"must be a whole number from {low} to {high}")
    return int(value)


def _redrive(value: str) -> tuple[str | None, int]:
    if not value.strip():
        return None, ENDLESS_ATTEMPTS
    try:
        policy = msgspec.json.decode(value, type=_Redrive, strict=False)
    except msgspec.DecodeError:
        raise _refused("RedrivePolicy", "must be JSON with deadLetterTargetArn and maxReceiveCount") from None
    target = queue_of_arn(policy.dead_letter_target_arn)
    if target is None or not 1 <= policy.max_receive_count <= MAX_RECEIVE_COUNT:
        raise _refused(
            "RedrivePolicy",
            f"deadLetterTargetArn must be like {arn('NAME')}, and maxReceiveCount 1 to {MAX_RECEIVE_COUNT}",
        )
    return target, policy.max_receive_count


def _refused(name: str, reason: str) -> SqsError:
    return SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}. Reason: {reason}.")
