"""Routes of messages: in, out under leases, settled, looked at, and moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from penstock import message
from penstock.server.portions import paged, peeked, portioned
from penstock.server.rest import shapes
from penstock.server.rest.arrow import Rows
from penstock.server.rest.queues import OfGroup
from penstock.server.rest.route import Call, Route
from penstock.server.rest.shapes import (
    Asked,
    Count,
    Deliveries,
    EnqueuedMany,
    Limit,
    Message,
    Messages,
    Names,
    NewMessages,
    Outcomes,
    Page,
    View,
)

#: Longer than this nobody waits in one request.
MAX_WAIT_S = 3600.0


class Lease(Asked):
    """How many, for how long, and how long to wait for the first."""

    max_messages: Limit = 1
    lease_s: float | None = None
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0
    consumer: str = ""
    group: str | None = None
    view: View = "base64"


class Receipts(Asked):
    """Which deliveries."""

    receipts: Names


class Nack(Receipts):
    """Which deliveries failed, when they shall be tried again, and why they failed."""

    delay_s: float | None = None
    reason: str = ""


class Reject(Receipts):
    """Which deliveries must not be tried again, and why."""

    reason: str = ""


class Extend(Receipts, kw_only=True):
    """Which deliveries are held for how long from now."""

    lease_s: float


class Listing(OfGroup):
    """Which page of which state."""

    state: str = "ready"
    fairness_key: str | None = None
    after: str | None = None
    limit: Limit = 100
    view: View = "base64"


class Peek(OfGroup):
    """How many of those that come next."""

    limit: Limit = 10
    offset: Count = 0
    view: View = "base64"


class Look(OfGroup):
    """How the payload is shown."""

    view: View = "base64"


class Move(Asked):
    """Which messages go where."""

    ids: Names
    target: str


async def enqueue(call: Call, asked: NewMessages) -> EnqueuedMany:
    """Store messages. They are durable when this is answered."""
    if call.id is not None or isinstance(asked, Rows):
        return await call.calls.run(lambda: shapes.enqueued(call.make("enqueue", call.name, _stored(asked))))
    return shapes.enqueued(await call.calls.enqueue(call.name, _stored(asked)))


def upsert(call: Call, asked: NewMessages) -> EnqueuedMany:
    """Store messages, or replace those of the same id that wait."""
    return shapes.enqueued(call.make("upsert", call.name, _stored(asked)))


async def lease(call: Call, asked: Lease) -> Deliveries:
    """Take messages, each under its own lease; waits up to `wait_s` for the first."""
    if asked.group is not None:
        return await _lease_group(call, asked)
    found = await call.calls.lease(
        call.name, asked.max_messages, asked.lease_s, asked.wait_s, asked.consumer, call.listening
    )
    return shapes.deliveries(found, asked.view)


async def _lease_group(call: Call, asked: Lease) -> Deliveries:
    def look() -> Sequence[message.Delivery]:
        return portioned(
            lambda count: call.queue().lease(count, asked.lease_s, 0, asked.consumer, asked.group),
            asked.max_messages,
            call.calls.answer_bytes,
        )

    return shapes.deliveries(await call.calls.look(look, asked.wait_s, call.listening), asked.view)


async def ack(call: Call, asked: Receipts) -> Outcomes:
    """These are done."""
    if call.id is not None:
        return shapes.outcomes(await call.calls.run(call.make, "ack", call.name, asked.receipts))
    return shapes.outcomes(await call.calls.ack(call.name, asked.receipts))


def nack(call: Call, asked: Nack) -> Outcomes:
    """These failed: try again after `delay_s`, or when the queue's retry policy says."""
    return shapes.outcomes(call.make("nack", call.name, asked.receipts, asked.delay_s, asked.reason))


def reject(call: Call, asked: Reject) -> Outcomes:
    """These must not be tried again."""
    return shapes.outcomes(call.make("reject", call.name, asked.receipts, asked.reason))


def extend(call: Call, asked: Extend) -> Outcomes:
    """Hold these for `lease_s` from now."""
    return shapes.outcomes(call.make("extend", call.name, asked.receipts, asked.lease_s))


def list_messages(call: Call, asked: Listing) -> Page:
    """A page of the messages of one state, in index order."""
    queue = call.queue(asked.group)

    def take(after: str | None, count: int) -> message.Page:
        return queue.list(asked.state, asked.fairness_key, after, count)

    page = paged(take, asked.after, asked.limit, call.calls.answer_bytes)
    return Page(shapes.messages(page.items, asked.view), page.next)


def get_message(call: Call, asked: Look) -> Message:
    """One message."""
    found = call.queue(asked.group).get(call.path["id"])
    return shapes.messages([found], asked.view)[0]


def peek(call: Call, asked: Peek) -> Messages:
    """Ready messages in index order, without leasing them."""
    found = peeked(call.queue(asked.group).peek, asked.limit, asked.offset, call.calls.answer_bytes)
    return Messages(shapes.messages(found, asked.view))


def move(call: Call, asked: Move) -> Outcomes:
    """Waiting and dead messages go to another queue under their own ids, and start anew there."""
    return shapes.outcomes(call.make("move", call.name, asked.ids, asked.target))


def _stored(asked: NewMessages | Rows) -> list[message.NewMessage]:
    return asked.messages() if isinstance(asked, Rows) else shapes.new_messages(asked.messages)


def _moved(call: Call, asked: Move) -> tuple[str, list[str], str]:
    return call.name, asked.ids, asked.target


ROUTES = (
    Route("POST", "/queues/{queue}/messages", enqueue, "enqueue"),
    Route("PUT", "/queues/{queue}/messages", upsert, "upsert"),
    Route("GET", "/queues/{queue}/messages", list_messages, "page"),
    Route("GET", "/queues/{queue}/messages/{id}", get_message, "get_many"),
    Route("GET", "/queues/{queue}/peek", peek, "peek"),
    Route("POST", "/queues/{queue}/lease", lease, "lease"),
    Route("POST", "/queues/{queue}/ack", ack, "ack"),
    Route("POST", "/queues/{queue}/nack", nack, "nack"),
    Route("POST", "/queues/{queue}/reject", reject, "reject"),
    Route("POST", "/queues/{queue}/extend", extend, "extend"),
    Route("POST", "/queues/{queue}/move", move, "move", needs=_moved),
)
