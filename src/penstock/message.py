"""Messages, their states, and the table of legal transitions."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from penstock.errors import InvalidMessage, PenstockError
from penstock.event import HOLE, Event, Kind

T = TypeVar("T")

#: The text of a kind of str, which encoders do not know; its own `__str__` may say something else.
plain = str.__str__

MAX_NAME_BYTES = 1024
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
MAX_HEADERS_BYTES = 64 * 1024
MAX_WEIGHT = 1000
MAX_PRIORITY = 9
DEFAULT_PRIORITY = 4
MAX_THROTTLE_KEYS = 16
#: Of counts, of positions in a journal, and of times in nanoseconds (the year 2262).
MAX_COUNT = 2**63 - 1
OWNED_HEADER_PREFIX = "penstock-"
#: Keys of the state that a server keeps for itself: neither its clients nor their scripts see them.
SERVER_STATE_PREFIX = "penstock/server/"


class State(enum.StrEnum):
    """Where a message stands. `EXPIRED` is passed through: such a message is removed."""

    DELAYED = "delayed"
    READY = "ready"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    EXPIRED = "expired"


STORED_STATES = (State.DELAYED, State.READY, State.LEASED, State.DONE, State.DEAD)

_WAITING = (State.DELAYED, State.READY)

#: (state before, event) -> states after. `None` before: not in this queue yet; after: gone from it.
#: DELAYED to READY happens by the passing of time: no event records it.
TRANSITIONS: dict[tuple[State | None, Kind], tuple[State | None, ...]] = {
    (None, Kind.ENQUEUED): _WAITING,
    (State.DELAYED, Kind.UPDATED): _WAITING,
    (State.READY, Kind.UPDATED): _WAITING,
    (State.READY, Kind.LEASED): (State.LEASED,),
    (State.LEASED, Kind.EXTENDED): (State.LEASED,),
    (State.LEASED, Kind.ACKED): (State.DONE, None),
    (State.LEASED, Kind.NACKED): _WAITING,
    (State.LEASED, Kind.RELEASED): _WAITING,
    (State.LEASED, Kind.DEAD): (State.DEAD, None),
    (State.LEASED, Kind.DROPPED): (None,),
    (State.DEAD, Kind.REDRIVEN): (State.DELAYED, State.READY, None),
    (State.READY, Kind.REDRIVEN): (None,),
    (State.DELAYED, Kind.MOVED): (None,),
    (State.READY, Kind.MOVED): (None,),
    (State.DEAD, Kind.MOVED): (None,),
    (State.DELAYED, Kind.EXPIRED): (None,),
    (State.READY, Kind.EXPIRED): (None,),
    (State.LEASED, Kind.EXPIRED): (None,),
    (State.DELAYED, Kind.PURGED): (None,),
    (State.READY, Kind.PURGED): (None,),
    (State.LEASED, Kind.PURGED): (None,),
    (State.DONE, Kind.PURGED): (None,),
    (State.DEAD, Kind.PURGED): (None,),
    (State.DONE, Kind.REMOVED): (None,),
    (State.DEAD, Kind.REMOVED): (None,),
    **{(state, Kind.REPAIRED): (*STORED_STATES, None) for state in (*STORED_STATES, None)},
}


def state_after(event: Event) -> State | None:
    """Where an event leaves its message; None: not in this queue any more.

    A delay passes without an event: what this calls DELAYED is READY from the event's `due_ns` on.
    """
    match event.kind:
        case Kind.REDRIVEN if event.extra:
            return None
        case Kind.ENQUEUED | Kind.UPDATED | Kind.NACKED | Kind.RELEASED | Kind.REDRIVEN:
            return State.DELAYED if event.due_ns > event.at_ns else State.READY
        case Kind.LEASED | Kind.EXTENDED:
            return State.LEASED
        case Kind.ACKED:
            return State.DONE if event.due_ns else None
        case Kind.DEAD:
            return None if event.extra else State.DEAD
        case Kind.REPAIRED:
            return State(event.extra) if event.extra and event.extra != HOLE else None
        case _:
            return None


class NewMessage(msgspec.Struct, gc=False, omit_defaults=True):
    """What a producer hands over. Durations are seconds."""

    payload: bytes = b""
    headers: dict[str, str] = {}
    fairness_key: str = ""
    weight: int = 1
    throttle_keys: Sequence[str] = ()
    priority: int = DEFAULT_PRIORITY
    delay_s: float = 0
    ttl_s: float | None = None
    dedup_id: str | None = None
    id: str | None = None


class Message(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """A stored message as it stands: what `get`, `peek` and `list` answer."""

    raw_id: bytes
    queue: str
    state: State
    payload: bytes
    headers: dict[str, str]
    fairness_key: str
    weight: int
    throttle_keys: tuple[str, ...]
    priority: int
    dedup_id: str | None
    enqueued_at_ns: int
    visible_at_ns: int
    expires_at_ns: int | None
    attempts: int
    consumer: str | None = None
    leased_at_ns: int | None = None
    lease_expires_at_ns: int | None = None
    reason: str | None = None

    @property
    def id(self) -> str:
        return format_id(self.raw_id)

    def __repr__(self) -> str:
        return _shown(self, f"state={str(self.state)!r}")


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message handed to a consumer under its own lease."""

    raw_id: bytes
    token: bytes
    queue: str
    payload: bytes
    headers: dict[str, str]
    attempts: int
    fairness_key: str
    weight: int
    throttle_keys: tuple[str, ...]
    priority: int
    dedup_id: str | None
    enqueued_at_ns: int
    expires_at_ns: int | None
    consumer: str
    leased_at_ns: int
    lease_expires_at_ns: int

    @property
    def id(self) -> str:
        return format_id(self.raw_id)

    @property
    def receipt(self) -> str:
        """The fencing token: proves to `ack` and its kin which lease is meant."""
        return (self.raw_id + self.token).hex()

    def __repr__(self) -> str:
        return _shown(self, f"receipt={self.receipt!r}")


class EnqueueResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one enqueued item; `duplicate` when an earlier message answered for it."""

    id: str | None
    error: PenstockError | None = None
    duplicate: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one item of a batch."""

    error: PenstockError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


#: Shared by every item that went well: batches allocate outcomes only for failures.
OK = Outcome()


class Page(msgspec.Struct, frozen=True):
    """A page of a listing; pass `next` as `after` for the following one, None at the end."""

    items: list[Message]
    next: str | None


class DueItem(msgspec.Struct, frozen=True):
    """Something that falls due: `what` is lease, delay, ttl, retention or dedup."""

    at_ns: int
    what: str
    queue: str
    message_id: str | None
    position: str


def _shown(message: Message | Delivery, what: str) -> str:
    """For people and logs: nothing of payload or header values."""
    return (
        f"{type(message).__name__}(id={message.id!r}, queue={message.queue!r}, {what}, "
        f"attempts={message.attempts}, fairness_key={message.fairness_key!r}, priority={message.priority}, "
        f"payload=<{len(message.payload)} bytes>, headers=<{len(message.headers)}>)"
    )


def format_id(raw: bytes) -> str:
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def parse_new_id(text: str | uuid.UUID) -> bytes:
    """The same of an id that a producer has chosen."""
    try:
        return parse_id(text)
    except InvalidMessage:
        raise InvalidMessage(
            f"id {text!r:.80} is not a UUID in its usual lower-case form; to enqueue under a key of your "
            "own, use dedup_id, or an id from uuid.uuid5"
        ) from None


def parse_id(text: str | uuid.UUID) -> bytes:
    """The 16 bytes of a canonical UUID string; a `uuid.UUID` is taken too."""
    if isinstance(text, uuid.UUID):
        return text.bytes
    if isinstance(text, str) and len(text) == 36:
        try:
            raw = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            raw = b""
        if len(raw) == 16 and format_id(raw) == text:
            return raw
    raise InvalidMessage(f"id {text!r:.80} is not a UUID in its usual lower-case form, as lists show them")


def parse_receipt(text: str) -> tuple[bytes, bytes] | None:
    """(message id, lease token), or None for anything that was never a receipt."""
    if isinstance(text, str) and len(text) == 56:
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            return None
        if len(raw) == 28:
            return raw[:16], raw[16:]
    return None


def checked_name(name: str, what: str) -> bytes:
    """The UTF-8 bytes of a name, refused where it is empty, too long or has a NUL in it."""
    if not isinstance(name, str):
        raise InvalidMessage(f"{what} must be a str, not {type(name).__name__}")
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(f"{what} {name!r:.60} has a lone surrogate: not UTF-8") from None
    if not 1 <= len(raw) <= MAX_NAME_BYTES:
        raise InvalidMessage(f"{what} has {len(raw)} bytes; accepted: 1 to {MAX_NAME_BYTES} bytes of UTF-8")
    if b"\0" in raw:
        raise InvalidMessage(f"{what} {name!r:.60} has a NUL character; every other is accepted")
    return raw


def checked_batch(items: Sequence[T], name: str) -> Sequence[T]:
    """A list or tuple of the items. A str would be taken for its letters: one item must be in a list too."""
    if isinstance(items, list | tuple):
        return items
    if isinstance(items, str | bytes) or not isinstance(items, Sequence):
        raise InvalidMessage(f"{name} must be a list, not {type(items).__name__}")
    return list(items)


def check_count(value: int, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise InvalidMessage(f"{name} is {value!r:.40}; accepted: whole numbers from 0 to 2**63 - 1")
