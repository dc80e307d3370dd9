"""What a report says, as plain values: small tables, each row a record. The JSON beside the page is these."""

from __future__ import annotations

import msgspec

#: What is counted of every queue and every moment.
COUNTS = ("enqueued", "delivered", "acked", "failed", "dead")


class Spans(msgspec.Struct, frozen=True):
    """Percentiles of durations in seconds; None where there was nothing to measure."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queue over the whole time of the report; what waits, is leased and waits longest: now."""

    queue: str
    enqueued: int
    delivered: int
    acked: int
    failed: int
    dead: int
    wait_s: Spans
    work_s: Spans
    waiting: int
    leased: int
    oldest_s: float


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in one piece of time; what was there, and for how long, at its end."""

    queue: str | None
    at_ns: int
    enqueued: int = 0
    delivered: int = 0
    acked: int = 0
    failed: int = 0
    dead: int = 0
    wait_s: Spans = Spans()
    work_s: Spans = Spans()
    waiting: int = 0
    leased: int = 0
    oldest_s: float = 0.0


class AttemptRow(msgspec.Struct, frozen=True):
    """Deliveries that were a message's first, second and so on, and how they ended."""

    attempt: int
    delivered: int
    acked: int
    failed: int


class ReasonRow(msgspec.Struct, frozen=True):
    """Why deliveries failed, or messages died: the last line of what was said."""

    queue: str
    kind: str
    reason: str
    count: int
    last_at_ns: int


class ShareRow(msgspec.Struct, frozen=True):
    """What a fairness key was delivered while it or others went short, and what its weight made due.

    `short_s`: for how long it had messages that waited from end to end of a piece of time; 0: it was given
    all that it asked for.
    """

    queue: str
    priority: int
    key: str
    weight: float
    delivered: int
    due: float
    share: float
    due_share: float
    short_s: float


class KeyRow(msgspec.Struct, frozen=True):
    """A fairness key by how long its messages took."""

    queue: str
    key: str
    finished: int
    wait_s: Spans
    work_s: Spans


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A report. Without events there is nothing in it but its source."""

    source: str
    made_at_ns: int
    since_ns: int = 0
    until_ns: int = 0
    #: The width of a piece of time.
    bucket_s: float = 0.0
    events: int = 0
    queue_count: int = 0
    #: Whether every queue's history reaches back to its beginning.
    whole: bool = True
    #: Queues that dead letters went to. What waits there waits for a person: only the table of queues has it.
    dead_letter_queues: tuple[str, ...] = ()
    #: All of them, and those whose fairness key is known; and how many such keys there are.
    deliveries: int = 0
    deliveries_with_key: int = 0
    key_count: int = 0
    wait_s: Spans = Spans()
    work_s: Spans = Spans()
    queues: tuple[QueueRow, ...] = ()
    timeline: tuple[Moment, ...] = ()
    timeline_by_queue: tuple[Moment, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    failures: tuple[ReasonRow, ...] = ()
    deaths: tuple[ReasonRow, ...] = ()
    shares: tuple[ShareRow, ...] = ()
    slowest: tuple[KeyRow, ...] = ()
