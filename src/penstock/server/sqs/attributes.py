"""A queue's attributes as SQS has them, and the settings of Penstock's that they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from penstock.backends.base import QueueStats
from penstock.clock import NS_PER_S
from penstock.server.sqs.checks import MAX_DELAY_S, MAX_MESSAGE_BYTES, MAX_VISIBILITY_S, MAX_WAIT_S
from penstock.server.sqs.errors import SqsError
from penstock.server.sqs.place import Place
from penstock.settings import QueueSettings

#: Of annotations: what Penstock has no setting for.
PREFIX = "sqs:"
TAG_PREFIX = "sqs:tag:"
#: Attempts where there is no RedrivePolicy: the most that can be set.
ENDLESS_ATTEMPTS = 1_000_000
MAX_RECEIVE_COUNT = 1000
#: Of a RedrivePolicy that does not say.
RECEIVE_COUNT = 10
#: A lease has a length; a message that is visible at once has none to speak of.
SHORTEST_LEASE_S = 0.001
RETENTION_S = 4 * 86_400
_NO_NOTES: Mapping[str, str] = {}

#: Whole numbers: lowest, highest, and what counts for a queue that was not created here.
NUMBERS: dict[str, tuple[int, int, int]] = {
    "VisibilityTimeout": (0, MAX_VISIBILITY_S, 30),
    "MaximumMessageSize": (1024, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES),
    "MessageRetentionPeriod": (60, 14 * 86_400, 14 * 86_400),
    "DelaySeconds": (0, MAX_DELAY_S, 0),
    "ReceiveMessageWaitTimeSeconds": (0, MAX_WAIT_S, 0),
}
#: Of keys that this server does not have: kept as it was given, and shown, for tools that compare.
_KEY_REUSE = "KmsDataKeyReusePeriodSeconds"
_KEY_REUSE_S = (60, 86_400)
#: The only values that are true here: accepted, so that tools which always send them work.
_FIXED: dict[str, tuple[str, ...]] = {
    "FifoQueue": ("true",),
    "KmsMasterKeyId": ("",),
    "SqsManagedSseEnabled": ("false",),
}
#: One of these; the first is what a queue has without being told.
_CHOICES: dict[str, tuple[str, str]] = {
    "ContentBasedDeduplication": ("false", "true"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
MOST_SOURCES = 10
MAX_POLICY_BYTES = 8192
_FIFO_ONLY = ("FifoQueue", *_CHOICES)
_POLICIES = ("Policy", "RedrivePolicy", "RedriveAllowPolicy")
COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_READ_ONLY = (*COUNTS, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn", "All")
#: Every attribute that AWS's model of the service has.
READABLE = frozenset((*NUMBERS, *_FIXED, *_CHOICES, *_READ_ONLY, *_POLICIES, _KEY_REUSE))


class _Redrive(msgspec.Struct, rename="camel"):
    dead_letter_target_arn: str
    max_receive_count: int = RECEIVE_COUNT


class _RedriveAllow(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    redrive_permission: Literal["allowAll", "denyAll", "byQueue"]
    source_queue_arns: list[str] = []


def number(settings: QueueSettings, name: str) -> int:
    """One of `NUMBERS`, as the queue has it."""
    if name == "VisibilityTimeout":
        return int(settings.lease_s)
    if name == "DelaySeconds" and settings.fifo:
        return int(settings.delay_s)
    try:
        return int(settings.annotations[PREFIX + name])
    except (KeyError, ValueError):
        return NUMBERS[name][2]


def retention_s(settings: QueueSettings) -> float | None:
    """How long a message is kept; None, for ever, in a queue that was not created here."""
    name = "MessageRetentionPeriod"
    return number(settings, name) if PREFIX + name in settings.annotations else None


def dedups_by_content(settings: QueueSettings) -> bool:
    return _choice(settings.annotations, "ContentBasedDeduplication") == "true"


def dedups_by_group(settings: QueueSettings) -> bool:
    return _choice(settings.annotations, "DeduplicationScope") == "messageGroup"


def allows_source(settings: QueueSettings, source_arn: str) -> bool:
    """Whether the queue takes the dead letters of the other one."""
    text = settings.annotations.get(PREFIX + "RedriveAllowPolicy")
    policy = msgspec.json.decode(text, type=_RedriveAllow) if text else _RedriveAllow("allowAll")
    return policy.redrive_permission == "allowAll" or source_arn in policy.source_queue_arns


def changes(
    attributes: Mapping[str, str], place: Place, *, fifo: bool, was: Mapping[str, str] = _NO_NOTES
) -> tuple[dict[str, Any], dict[str, str]]:
    """What the attributes change: settings, and annotations, of which the queue has some already.

    Every value is checked, or none is used. An annotation that is empty is to go.
    """
    settings: dict[str, Any] = {}
    notes: dict[str, str] = {}
    for name, value in attributes.items():
        _check_settable(name, fifo)
        if name in NUMBERS:
            whole = _number(name, value, *NUMBERS[name][:2])
            if name == "VisibilityTimeout":
                settings["lease_s"] = max(whole, SHORTEST_LEASE_S)
            elif name == "DelaySeconds" and fifo:
                settings["delay_s"] = float(whole)
            else:
                notes[PREFIX + name] = str(whole)
        elif name == "RedrivePolicy":
            settings["dead_letter"], settings["max_attempts"] = _redrive(value, place)
        elif name in _KEPT:
            notes[PREFIX + name] = _KEPT[name](value)
        elif name in _CHOICES:
            notes[PREFIX + name] = _one_of(name, value, _CHOICES[name])
        else:
            _one_of(name, "".join(value.split()), _FIXED[name])
    after = {**was, **notes}
    if (
        _choice(after, "FifoThroughputLimit") != "perQueue"
        and _choice(after, "DeduplicationScope") == "queue"
    ):
        raise _refused("FifoThroughputLimit", "perMessageGroupId goes with DeduplicationScope=messageGroup")
    return settings, notes


def annotated(was: Mapping[str, str], notes: Mapping[str, str]) -> dict[str, str]:
    """The annotations of a queue after these have changed."""
    return {name: value for name, value in {**was, **notes}.items() if value or name not in notes}


def shown(settings: QueueSettings, stats: QueueStats, place: Place) -> dict[str, str]:
    """Every attribute that the queue has."""
    notes = settings.annotations
    created = str(stats.created_at_ns // NS_PER_S)
    found = {
        **{name: str(number(settings, name)) for name in NUMBERS},
        **dict(zip(COUNTS, map(str, (stats.ready, stats.leased, stats.delayed)), strict=True)),
        "CreatedTimestamp": created,
        "LastModifiedTimestamp": notes.get(PREFIX + "LastModifiedTimestamp", created),
        "QueueArn": place.arn(settings.name),
        "SqsManagedSseEnabled": "false",
    }
    if settings.dead_letter is not None:
        found["RedrivePolicy"] = redrive_policy(place, settings.dead_letter, settings.max_attempts)
    if settings.fifo:
        found |= {"FifoQueue": "true", **{name: _choice(notes, name) for name in _CHOICES}}
    kept = {name: notes.get(PREFIX + name, "") for name in _KEPT}
    return found | {name: value for name, value in kept.items() if value}


def redrive_policy(place: Place, target: str, most: int) -> str:
    return msgspec.json.encode(_Redrive(place.arn(target), most)).decode()


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


def _number(name: str, value: str, low: int, high: int) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 10 and low <= int(value) <= high):
        raise _refused(name, f"must be a whole number from {low} to {high}")
    return int(value)


def _choice(notes: Mapping[str, str], name: str) -> str:
    return notes.get(PREFIX + name, _CHOICES[name][0])


def _redrive(value: str, place: Place) -> tuple[str | None, int]:
    if not value.strip():
        return None, ENDLESS_ATTEMPTS
    try:
        policy = msgspec.json.decode(value, type=_Redrive, strict=False)
    except msgspec.DecodeError:
        raise _refused("RedrivePolicy", "must be JSON with deadLetterTargetArn and maxReceiveCount") from None
    target = place.queue_of_arn(policy.dead_letter_target_arn)
    if target is None or not 1 <= policy.max_receive_count <= MAX_RECEIVE_COUNT:
        raise _refused(
            "RedrivePolicy",
            f"deadLetterTargetArn must be like {place.arn('NAME')}, "
            f"and maxReceiveCount 1 to {MAX_RECEIVE_COUNT}",
        )
    return target, policy.max_receive_count


def _redrive_allow(value: str) -> str:
    """As it is shown; empty, the default."""
    if not value.strip():
        return ""
    name = "RedriveAllowPolicy"
    try:
        policy = msgspec.json.decode(value, type=_RedriveAllow)
    except msgspec.DecodeError:
        raise _refused(
            name, "must be JSON with redrivePermission, allowAll, denyAll or byQueue, and sourceQueueArns"
        ) from None
    most = MOST_SOURCES if policy.redrive_permission == "byQueue" else 0
    if bool(policy.source_queue_arns) != bool(most) or len(policy.source_queue_arns) > most:
        raise _refused(name, f"byQueue, and it alone, goes with 1 to {MOST_SOURCES} sourceQueueArns")
    return msgspec.json.encode(policy).decode()


def _policy(value: str) -> str:
    """Kept as it was given."""
    if not value.strip():
        return ""
    try:
        policy = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        policy = None
    if not isinstance(policy, dict) or "Statement" not in policy:
        raise _refused("Policy", "must be a JSON object with a Statement")
    if len(value.encode()) > MAX_POLICY_BYTES:
        raise _refused("Policy", f"must have at most {MAX_POLICY_BYTES} bytes")
    return value


def _key_reuse(value: str) -> str:
    return str(_number(_KEY_REUSE, value, *_KEY_REUSE_S))


#: Attributes that are shown once they were given: each as it is kept; empty, it is to go.
_KEPT: dict[str, Callable[[str], str]] = {
    "Policy": _policy,
    "RedriveAllowPolicy": _redrive_allow,
    _KEY_REUSE: _key_reuse,
}


def _refused(name: str, reason: str) -> SqsError:
    return SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}. Reason: {reason}.")
