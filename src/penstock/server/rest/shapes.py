"""What messages, events and outcomes look like in requests and answers.

The answers' shapes have what those of the facade have, and what these tell by properties. Times are in
nanoseconds, bytes in JSON are base64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock import event, message
from penstock.errors import InvalidMessage, PenstockError
from penstock.event import Kind
from penstock.message import DEFAULT_PRIORITY, MAX_COUNT, State
from penstock.server.rest.errors import ItemError, item_error

#: Items of one request, and of one answer.
MOST = 10_000

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Limit = Annotated[int, Meta(ge=1, le=MOST)]
Names = Annotated[list[str], Meta(max_length=MOST)]
#: Of a query.
Few = Annotated[list[str], Meta(max_length=100)]
#: How payloads are given: as `payload` in base64; or, where that can be, `payload_text` or `payload_json`.
View = Literal["base64", "text", "json"]


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """What a request asks; a name that is not known is refused."""


class Answered(msgspec.Struct):
    """What is answered."""


class ById(Asked):
    """Ids, one parameter each."""

    id: Few = msgspec.field(default_factory=list)


class NewMessage(Asked):
    """A message to store. Its payload is one of `payload` (base64), `payload_text` and `payload_json`."""

    payload: bytes | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_json: Any = UNSET
    headers: dict[str, str] = {}
    fairness_key: str = ""
    weight: int = 1
    throttle_keys: list[str] = []
    priority: int = DEFAULT_PRIORITY
    delay_s: float = 0
    ttl_s: float | None = None
    dedup_id: str | None = None
    id: str | None = None


class NewMessages(Asked):
    """Messages to store; each has a result of its own."""

    messages: Annotated[list[NewMessage], Meta(max_length=MOST)]


class _Payload(Answered, kw_only=True):
    payload: bytes | UnsetType = UNSET
    payload_text: str | UnsetType = UNSET
    payload_json: Any = UNSET


class _Content(_Payload, kw_only=True):
    id: str
    queue: str
    headers: dict[str, str]
    attempts: int
    fairness_key: str
    weight: int
    throttle_keys: list[str]
    priority: int
    dedup_id: str | None
    enqueued_at_ns: int
    expires_at_ns: int | None
    consumer: str | None
    leased_at_ns: int | None
    lease_expires_at_ns: int | None


class Message(_Content, kw_only=True):
    """A stored message as it stands."""

    state: State
    visible_at_ns: int
    reason: str | None


class Delivery(_Content, kw_only=True):
    """A message under a lease of its own, which `receipt` stands for."""

    receipt: str


class Messages(Answered):
    """Messages in index order."""

    messages: list[Message]


class Page(Answered):
    """A page of messages; pass `next` as `after` for the following one, null at the end."""

    messages: list[Message]
    next: str | None


class Deliveries(Answered):
    """What was leased; nothing, if nothing came in time."""

    deliveries: list[Delivery]


class Event(Answered):
    """One recorded transition of one message."""

    seq: int
    at_ns: int
    kind: Kind
    message_id: str
    attempt: int
    due_ns: int
    consumer: str
    reason: str
    extra: str


class Events(Answered):
    """Events in order, and the seq to go on after."""

    events: list[Event]
    last_seq: int


class Enqueued(Answered):
    """What became of one message; `duplicate` when an earlier one answered for it."""

    ok: bool
    id: str | None
    duplicate: bool
    error: ItemError | None


class EnqueuedMany(Answered):
    """One for each message, in their order."""

    results: list[Enqueued]


class Outcome(Answered):
    """What became of one item."""

    ok: bool
    error: ItemError | None


class Outcomes(Answered):
    """One for each item, in their order."""

    outcomes: list[Outcome]


class Changed(Answered):
    """How many."""

    count: int


class Done(Answered):
    """It is so."""

    ok: Literal[True] = True


DONE = Done()
_OK = Outcome(True, None)


def new_messages(asked: Sequence[NewMessage]) -> list[message.NewMessage]:
    return [
        message.NewMessage(
            _payload(one),
            one.headers,
            one.fairness_key,
            one.weight,
            one.throttle_keys,
            one.priority,
            one.delay_s,
            one.ttl_s,
            one.dedup_id,
            one.id,
        )
        for one in asked
    ]


def _payload(asked: NewMessage) -> bytes:
    given = [name for name in _Payload.__struct_fields__ if getattr(asked, name) is not UNSET]
    if len(given) > 1:
        raise InvalidMessage(f"a message has {' and '.join(given)}; one of them is its payload")
    if isinstance(asked.payload, bytes):
        return asked.payload
    if isinstance(asked.payload_text, str):
        return asked.payload_text.encode()
    if asked.payload_json is UNSET:
        return b""
    try:
        return msgspec.json.encode(asked.payload_json)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"payload_json cannot be JSON: {error}") from None


def messages(found: Iterable[message.Message], view: View) -> list[Message]:
    return _viewed(msgspec.convert(list(found), list[Message], from_attributes=True), view)


def deliveries(found: Iterable[message.Delivery], view: View) -> Deliveries:
    return Deliveries(_viewed(msgspec.convert(list(found), list[Delivery], from_attributes=True), view))


def _viewed(shown: list[Any], view: View) -> list[Any]:
    """What is no text, or no JSON, stays as it is."""
    for one in shown if view != "base64" else ():
        try:
            if view == "text":
                one.payload_text = one.payload.decode()
            else:
                one.payload_json = msgspec.json.decode(one.payload)
                msgspec.msgpack.encode(
                    one.payload_json
                )  # Of numbers that it cannot have, the bytes are true.
        except (ValueError, OverflowError, RecursionError):
            one.payload_json = UNSET
        else:
            one.payload = UNSET
    return shown


def events(found: Iterable[event.Event], after: int) -> Events:
    shown = msgspec.convert(list(found), list[Event], from_attributes=True)
    return Events(shown, shown[-1].seq if shown else after)


def enqueued(results: Iterable[message.EnqueueResult]) -> EnqueuedMany:
    return EnqueuedMany([Enqueued(one.ok, one.id, one.duplicate, item_error(one.error)) for one in results])


def outcomes(found: Iterable[message.Outcome]) -> Outcomes:
    return Outcomes([_OK if one.error is None else Outcome(False, item_error(one.error)) for one in found])


def of_error(error: PenstockError) -> Outcome:
    return Outcome(False, item_error(error))
