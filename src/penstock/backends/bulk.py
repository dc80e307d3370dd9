"""The bulk contract beside `QueueBackend`: whole tables out of a backend, and into one, as Arrow.

Reading has two sides. The backend takes a *snapshot*: a moment of everything that it holds, as a plain value
that travels. A `BulkReader` (`registry.open_reader`) opens that value in any process that can reach its
place, without the backend and without a word to it: one process plans a request as partitions, each of which
is again a plain value, and as many others as there are partitions read them. Tables and their columns are in
`penstock.tables`.

    with penstock.open(folder) as ps:           # owns the store, or attaches to its owner
        snapshot = ps.take_snapshot()
    with open_reader(snapshot) as reader:
        plan = reader.plan(BulkRequest(table="events", names=("orders",), partitions=2))
        for partition in plan.partitions:       # here, or each in a process of its own
            for batch in reader.read(partition):
                ...
        reader.release()

Writing goes the other way. The backend gives a *ticket*; with it a `BulkWriter` (`registry.open_writer`)
stages rows in any process that can reach the ticket's place, as many at a time as there are partitions,
without a word to the backend and invisible to everyone. Then the backend commits what was staged:

    with penstock.open(folder) as ps:
        ticket = ps.begin_write("orders")
    txn = Txn("nightly", 17)
    with open_writer(ticket) as writer:         # here, or in processes of their own
        staged = [writer.stage(txn, 0, batches)]
    with penstock.open(folder) as ps:
        written = ps.commit_write(ticket, txn, staged)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from penstock.message import DEFAULT_PRIORITY, EnqueueResult
from penstock.tables import TableName

if TYPE_CHECKING:
    import pyarrow

#: How long a snapshot is kept after it was taken, opened or last read from, unless it is released before.
SNAPSHOT_LIFETIME_S = 3600.0

#: A batch has so many rows at most, and ends with the row that brings it to so many bytes.
BATCH_ROWS = 16_384
BATCH_BYTES = 8 * 1024 * 1024


class SeqRange(msgspec.Struct, frozen=True):
    """Events (or entries) from `first` up to, not including, `end`.

    `first` 0: from the first that retention has left; `end` None: to the last of the snapshot.
    """

    first: int = 0
    end: int | None = None


class BulkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to read of a snapshot. What is left out filters nothing.

    `names` are queues, each of which must be there (`QueueNotFound`), or for `entries` worlds, where one that
    nothing was appended to is empty. `pattern` is a regular expression that whole names match, any number of
    them. Without both: all.

    `seqs`, by name, go with `events`, `entries` and `bodies`. A range that starts before what the journal
    still has is `HistoryTruncated`, unless `on_truncated` is "skip"; one that reaches beyond the snapshot
    ends there, and the plan's extents say where that is.

    `since_ns` (inclusive) and `until_ns` (exclusive) are compared with `at_ns` of events and entries, and
    with `enqueued_at_ns` of messages and bodies. `states` go with `messages`, `kinds` with `events` and
    `entries`.

    Of the columns only those named are read and decoded, and come in this order; None: all.

    `partitions` is a wish: there may be fewer, where there is little to read, or a few more.

    With `on_damage` "skip", rows and frames that do not decode or open are set aside, one by one, and told;
    with "fail" the first of them raises, naming its queue and place.
    """

    table: TableName
    names: tuple[str, ...] | None = None
    pattern: str | None = None
    states: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    seqs: dict[str, SeqRange] = {}
    since_ns: int | None = None
    until_ns: int | None = None
    columns: tuple[str, ...] | None = None
    partitions: int = 1
    on_truncated: Literal["fail", "skip"] = "fail"
    on_damage: Literal["fail", "skip"] = "fail"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A moment of a backend, for those who can reach its place. Nothing in it is secret.

    `reader` names what reads it, as the registry knows it. Whatever it shows, no later crash takes away from
    the backend.
    """

    reader: str
    id: str
    place: str
    at_ns: int
    lifetime_s: float = SNAPSHOT_LIFETIME_S


class Extent(msgspec.Struct, frozen=True):
    """What the snapshot has of one queue or world: its first and last event, and its rows in the table.

    `rows` is of the whole table, before any filter. With nothing in the journal, `last_seq` is one less than
    `first_seq`. `created_at_ns` tells a queue from another that had its name; 0: it is not known.
    """

    first_seq: int
    last_seq: int
    rows: int
    created_at_ns: int = 0


class Span(msgspec.Struct, frozen=True):
    """A part of one queue or world. `lower` and `upper` mean something to their reader alone."""

    name: str
    lower: bytes
    upper: bytes
    #: Estimated.
    rows: int = 0


class BulkPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what was asked for: a plain value, all that a process elsewhere needs besides keys."""

    snapshot: Snapshot
    request: BulkRequest
    number: int
    spans: tuple[Span, ...]


class Damage(msgspec.Struct, frozen=True):
    """Something that was set aside: the queue or world, the place in it, and what is wrong there.

    `rows` of the table are missing for it, as far as that is known.
    """

    name: str
    where: str
    what: str
    rows: int = 1


class BulkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a request is read: partitions, no two of which share a row, and what there is by name."""

    snapshot: Snapshot
    request: BulkRequest
    partitions: tuple[BulkPartition, ...]
    extents: dict[str, Extent]
    #: Queues and worlds that were set aside as a whole, where the request says so.
    damage: tuple[Damage, ...] = ()


class BulkReader(Protocol):
    """A snapshot that is open in this process. For one thread at a time."""

    snapshot: Snapshot

    def plan(self, request: BulkRequest) -> BulkPlan:
        """Cheap: what it costs does not grow with the number of rows.

        Bad requests are `InvalidMessage`; a queue or world that the snapshot does not have `QueueNotFound`.
        """
        ...

    def read(
        self, partition: BulkPartition, told: Callable[[Damage], None] | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """The rows of a partition, in the order of the store, in the schema `tables.arrow_schema` gives.

        Memory depends on the size of a batch, not of the partition. Renews the snapshot as it goes.
        `told` hears of what is set aside, where the request says so.
        """
        ...

    def renew(self) -> None:
        """Keep the snapshot for another lifetime from now; `SnapshotNotFound` if it is gone."""
        ...

    def release(self) -> None:
        """Give the snapshot up for everyone, and what it occupies; done twice is as once."""
        ...

    def close(self) -> None:
        """Let go of it in this process; others may still read."""
        ...

    def __enter__(self) -> BulkReader: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


#: What starts the name of an application that was given one: its jobs are not known for long.
UNNAMED = "~"


class Txn(msgspec.Struct, frozen=True):
    """Which job a write is: the `version`th of an application. Committed once, whoever tries how often."""

    app: str
    version: int


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What staging must know of a queue."""

    number: int
    #: A place in line that no message has; the write's own, unless it begins later.
    order_ns: int
    fifo: bool = False
    compress_over_bytes: int | None = None
    #: Why nothing can be written to it in bulk, if so.
    refusal: str = ""


class WriteTicket(msgspec.Struct, frozen=True, kw_only=True):
    """Leave to stage rows for a backend, for those who can reach its place. Nothing in it is secret.

    `writer` names what stages them, as the registry knows it. Rows go to `queue`, or each to the one that its
    column `queue` names. Their place in line, delays and times to live count from `at_ns` on, when it began.
    """

    writer: str
    id: str
    place: str
    at_ns: int
    queues: dict[str, Target]
    queue: str | None = None
    #: Which of a configuration's backends it is of.
    backend: str = "default"
    #: How files are to be made: the store's tuning, and the key that seals them with what proves it.
    mode: str = ""
    key_id: str = ""
    verifier: bytes = b""


class Chunk(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Rows of one queue, staged. `name` and `sizes_bytes` mean something to their writer alone."""

    name: str
    number: int
    rows: int
    first: bytes
    last: bytes
    sizes_bytes: tuple[int, ...]
    #: "new": ids that only this job makes. "ids": some were given. "dedup": some have a dedup id.
    ids: Literal["new", "ids", "dedup"] = "new"
    repeated: int = 0
    #: Rows that wait or expire.
    timed: int = 0


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a partition's rows: staged, or set aside, and why the first of those were."""

    partition: int
    rows: int
    chunks: tuple[Chunk, ...]
    rejected: int = 0
    reasons: tuple[str, ...] = ()


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has done: messages that are new, and rows that an earlier message answered for.

    `again`: it was done before, by an earlier commit; `superseded`: a later version of its application was
    committed before it, so it did nothing.

    `by`: the id of the ticket whose rows were enqueued, where that is not the one that was committed now: the
    job was done before under it, or was under way.
    """

    enqueued: int = 0
    existing: int = 0
    rejected: int = 0
    again: bool = False
    superseded: bool = False
    by: str = ""


class BulkWriter(Protocol):
    """Stages rows for a ticket, in this process. For one thread at a time."""

    ticket: WriteTicket

    def stage(
        self,
        txn: Txn,
        partition: int,
        batches: Iterable[pyarrow.RecordBatch],
        set_aside: Callable[[pyarrow.RecordBatch], None] | None = None,
        first_row: int = 0,
    ) -> Staged:
        """Check rows as `enqueue` does and write them where only a commit finds them; memory stays flat.

        Columns are the fields of `NewMessage`, and `queue`; all but `payload` may be missing, or null.
        Another column, or one of another type, is `InvalidMessage`. Rows that are not valid go to
        `set_aside`, with the columns `row` (its place in the partition) and `reason` in front; they fail no
        other.

        A partition that is staged again, by a task that is tried again, is other files: only those count
        whose result is committed.

        A partition may be staged in several calls: `first_row` is then the place of their first row in it,
        and `tables.jobs.joined` makes one result of theirs.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> BulkWriter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


#: Who is named as consumer by the event that says how a restored message stands.
RESTORED = "restored"

#: Under this, and the name of the required cursor, a store's state has which archive that is of.
ARCHIVES = "penstock/archive/"
#: What such a value ends with while all queues are archived: one that is made then is given the cursor.
ALL_QUEUES = b" all"


class StoredMessage(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """A message and all that a store knows of it, to be put into another.

    `state` is delayed (until `visible_at_ns`), ready, done or dead (until `until_ns`; 0: for good): a lease
    cannot be carried over, for its receipt would not hold. `order_ns` is its place in line; 0: the end.
    Headers that Penstock owns are taken as they are.
    """

    id: str
    state: str
    payload: bytes = b""
    headers: dict[str, str] = {}
    fairness_key: str = ""
    weight: int = 1
    throttle_keys: Sequence[str] = ()
    priority: int = DEFAULT_PRIORITY
    dedup_id: str | None = None
    enqueued_at_ns: int = 0
    visible_at_ns: int = 0
    expires_at_ns: int | None = None
    until_ns: int = 0
    order_ns: int = 0
    attempts: int = 0
    reason: str = ""


class BulkBackend(Protocol):
    """What a backend offers beside `QueueBackend` to be read, and written, in bulk."""

    # -- reading

    def take_snapshot(self, lifetime_s: float = SNAPSHOT_LIFETIME_S, id: str | None = None) -> Snapshot:
        """A moment of all queues and worlds, as time has left them; whatever it shows is durable.

        It goes when it is released, or when nobody has read from it for `lifetime_s`; swept by the backend.
        `id`, a UUID, is for those who ask several times for one moment: if there is a snapshot of that id, it
        is renewed and answered.
        """
        ...

    # -- writing

    def begin_write(self, queue: str | None) -> WriteTicket:
        """Leave to stage rows for a queue, or for any; nothing is changed by it.

        A queue whose script would have to see every message refuses it, by name.
        """
        ...

    def commit_write(self, ticket: WriteTicket, txn: Txn, staged: Sequence[Staged]) -> Written:
        """Enqueue what was staged, durably, all of it once. Before, nothing of it is seen.

        From its beginning all of it comes, in atomic slices, also if the backend is killed meanwhile. Rows
        with an id or dedup id that is there already store nothing, and are counted. A job that was committed
        before changes nothing and is answered as it was.
        """
        ...

    def abort_write(self, ticket: WriteTicket, txn: Txn) -> None:
        """Throw away what was staged, unless its commit has begun. What nobody aborts goes after a day."""
        ...

    def restore(self, queue: str, messages: Sequence[StoredMessage]) -> list[EnqueueResult]:
        """Put messages into a queue as they stood elsewhere, as one write, durable when it returns.

        One whose id is there stores nothing and is answered as a duplicate, so that a call may be repeated.
        No script sees them. Each is recorded as enqueued; where that does not say how it stands, as repaired
        too, by the consumer `RESTORED`.
        """
        ...
