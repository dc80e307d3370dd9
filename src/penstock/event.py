"""Events: what the journal records of each transition."""

from __future__ import annotations

import enum

import msgspec


class Kind(enum.StrEnum):
    """What happened; stored as the number in `KIND_CODES`."""

    ENQUEUED = "enqueued"
    UPDATED = "updated"
    LEASED = "leased"
    EXTENDED = "extended"
    ACKED = "acked"
    NACKED = "nacked"
    RELEASED = "released"
    DEAD = "dead"
    REDRIVEN = "redriven"
    MOVED = "moved"
    EXPIRED = "expired"
    PURGED = "purged"
    REMOVED = "removed"
    DROPPED = "dropped"
    REPAIRED = "repaired"


#: Stored numbers: append only, never renumber.
KIND_CODES: dict[Kind, int] = {kind: code for code, kind in enumerate(Kind, start=1)}
KINDS_BY_CODE: dict[int, Kind] = {code: kind for kind, code in KIND_CODES.items()}


#: The world that Penstock records its own administration in.
SYSTEM_WORLD = "_penstock"

#: The id in an event that concerns no single message: a correction of counters, or a hole.
NOBODY = bytes(16)
#: `extra` of an event that stands for one which was lost: what came before it is not known any more.
HOLE = "hole"


class Event(msgspec.Struct, frozen=True, gc=False):
    """One recorded transition of one message.

    `due_ns` is the time that the transition set: when it becomes visible (enqueued, updated, nacked,
    released, redriven), when the lease ends (leased, extended), when a kept one is removed (acked,
    dead); 0 where it set none: an `acked` or `dead` event with 0 and no other queue in `extra` says
    whether the message stayed (dead) or is gone (acked). `extra` names the other queue of a
    dead-lettering, move or redrive.
    """

    seq: int
    at_ns: int
    kind: Kind
    raw_id: bytes
    attempt: int
    due_ns: int
    consumer: str
    reason: str
    extra: str

    @property
    def message_id(self) -> str:
        h = self.raw_id.hex()
        return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    def __repr__(self) -> str:
        return (
            f"Event(seq={self.seq}, kind={str(self.kind)!r}, message_id={self.message_id!r}, "
            f"at_ns={self.at_ns}, attempt={self.attempt}, due_ns={self.due_ns}, "
            f"consumer={self.consumer!r}, reason={self.reason!r}, extra={self.extra!r})"
        )


class Entry(msgspec.Struct, gc=False):
    """A user's own journal entry. `id`, `world`, `seq` and `at_ns` are set by the journal."""

    kind: str
    body: bytes = b""
    labels: list[str] = []
    flags: list[str] = []
    vector: list[float] | None = None
    id: str | None = None
    world: str = ""
    seq: int = 0
    at_ns: int = 0
