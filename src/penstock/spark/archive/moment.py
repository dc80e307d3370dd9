"""A moment of a store that is to be archived: a snapshot, what is in it, and where each journal goes on."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.backends.bulk import ALL_QUEUES, ARCHIVES, BulkReader, BulkRequest, Extent, Snapshot
from penstock.backends.registry import release_snapshot
from penstock.errors import BackendUnavailable, InvalidConfig, InvalidMessage
from penstock.message import checked_name
from penstock.penstock import Penstock
from penstock.spark.archive.cursors import cursor_positions, move_cursors, open_cursors
from penstock.spark.archive.lifetimes import Lifetimes, last_archived, lifetimes
from penstock.spark.archive.log import ArchiveLog, ArchiveState, Position
from penstock.spark.archive.ranges import Seen, Started, started, worlds_started
from penstock.spark.store import KeySource, Store, opened

if TYPE_CHECKING:
    import pyarrow

CURSOR = "archive"
#: Events of one commit at most: what a kill makes to be done again.
EVENTS_PER_COMMIT = 2_000_000
#: A snapshot that a killed job has left is deleted by the store after so long.
SNAPSHOT_S = 900.0
#: Under this the store notes what tells it from others, wherever it is copied to.
STORE_ID = "penstock/store-id"
#: Queues that come between a snapshot and their cursor have it looked for again.
_MOST_LOOKS = 20


class ArchiveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to archive, and how. `names` and `pattern` choose queues; worlds come all."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    cursor: str = CURSOR
    events_per_commit: int = EVENTS_PER_COMMIT
    partitions: int | None = None
    accept_gaps: bool = False
    #: The files of an archive are not encrypted: an encrypted store is archived only if this says so.
    unencrypted: bool = False
    #: The archive is of another store: this one takes its place, and its queues begin other histories.
    other_store: bool = False


class Moment(NamedTuple):
    """A snapshot and what it has of what is wanted."""

    snapshot: Snapshot
    keys: KeySource
    queues: dict[str, Extent]
    worlds: dict[str, Extent]
    begun: Started
    world_positions: dict[str, Position]
    #: The table `queues`, of those that are wanted.
    queue_rows: pyarrow.Table
    #: Queues that were archived and then deleted, and when; some were made anew since.
    gone: dict[str, int]
    #: How the archive stood.
    state: ArchiveState
    store_id: str = ""


def check_before(ps: Penstock, log: ArchiveLog, options: ArchiveOptions) -> None:
    """Refuse what cannot be archived into this folder, before anything is made in it."""
    log.check_own()
    _check_plain(ps, options)
    _check_store(ps, options, log.read())
    _check_cursor(ps, options, log.known_identity())
    for name in options.names or ():
        ps.queue(name)
    if options.pattern is not None:
        try:
            re.compile(options.pattern)
        except re.error as error:
            raise InvalidConfig(f"{options.pattern!r:.80} is not a regular expression: {error}") from None


@contextmanager
def moment_of(store: Store, options: ArchiveOptions, log: ArchiveLog) -> Iterator[Moment]:
    """Cursors are there before the snapshot is: of what it shows, nothing that is needed goes."""
    with store.open() as ps:
        check_before(ps, log, options)
        state = log.read()
        # What is refused has left no folder behind; and where none can be made, no cursors are left behind.
        archive_id = log.identity()
        store_id = _identity(ps)
        snapshot = _taken(ps, store, options)
        try:
            _register(ps, options, archive_id)
            found = _looked_at(store, snapshot, options, state)._replace(store_id=store_id)
            _set_cursors(ps, found.begun.positions, options.cursor)
        except BaseException:
            release_snapshot(snapshot)
            raise
    try:
        yield found
    finally:
        release_snapshot(snapshot)


def _check_plain(ps: Penstock, options: ArchiveOptions) -> None:
    if ps.info().default.sealed_with is not None and not options.unencrypted:
        raise InvalidConfig(
            "the store is encrypted, and the files of an archive are not: say --unencrypted if this is meant"
        )


def _identity(ps: Penstock) -> str:
    """Made the first time that the store is archived; a copy of the store has the same."""
    if ps.state.get(STORE_ID) is None:
        ps.state.put(STORE_ID, uuid.uuid4().hex.encode())
    return (ps.state.get(STORE_ID) or b"").decode()


def _check_store(ps: Penstock, options: ArchiveOptions, state: ArchiveState) -> None:
    """Two stores in one archive would each take the other's queues for its own, deleted or made anew."""
    store_id = (ps.state.get(STORE_ID) or b"").decode()
    if state.store_id in ("", store_id) or options.other_store:
        return
    raise InvalidConfig(
        f"the archive is of another store, {state.store_place} (id {state.store_id}), and "
        f"{ps.info().default.path} has {f'the id {store_id}' if store_id else 'none'}: name another folder "
        "or, if this store takes the other's place, say --other-store"
    )


def _register(ps: Penstock, options: ArchiveOptions, archive_id: str) -> None:
    """Which archive has the cursor; where that is all queues', the store gives it to new ones, too."""
    everything = options.names is None and options.pattern is None
    ps.state.put(ARCHIVES + options.cursor, archive_id.encode() + (ALL_QUEUES if everything else b""))


def _check_cursor(ps: Penstock, options: ArchiveOptions, archive_id: str | None) -> None:
    """Two archives that move one cursor would let go of what the other has not read."""
    try:
        checked_name(options.cursor, "the name of a cursor")
    except InvalidMessage as error:
        raise InvalidConfig(str(error)) from None
    known = ps.state.get(ARCHIVES + options.cursor)
    if known is None or known.removesuffix(ALL_QUEUES).decode() == archive_id:
        return
    having = cursor_positions(ps, [settings.name for settings in ps.queues()], options.cursor)
    if having:
        raise InvalidConfig(
            f"the cursor {options.cursor!r} is that of another archive of this store; name another with "
            f"--cursor or, if that archive is no more, drop it from each of its {len(having)} queues: "
            f"penstock cursors drop {next(iter(having))} {options.cursor}"
        )


def _taken(ps: Penstock, store: Store, options: ArchiveOptions) -> Snapshot:
    """A snapshot all of whose queues have the cursor."""
    for _ in range(_MOST_LOOKS):
        snapshot = ps.take_snapshot(lifetime_s=SNAPSHOT_S)
        kept = False
        try:
            with opened(snapshot, store.key_source()) as reader:
                names = set(_chosen(reader, options))
            lacking = names - set(cursor_positions(ps, names, options.cursor))
            kept = not lacking
        finally:
            if not kept:
                release_snapshot(snapshot)
        if kept:
            return snapshot
        open_cursors(ps, lacking, options.cursor)
    raise BackendUnavailable("queues come and go too fast to be archived; try again")


def _chosen(reader: BulkReader, options: ArchiveOptions) -> dict[str, Extent]:
    return reader.plan(BulkRequest(table="events", names=options.names, pattern=options.pattern)).extents


def _looked_at(store: Store, snapshot: Snapshot, options: ArchiveOptions, state: ArchiveState) -> Moment:
    """All of it from the snapshot: what the store does meanwhile is for the next one."""
    keys = store.key_source()
    with opened(snapshot, keys) as reader:
        queues = _chosen(reader, options)
        worlds = reader.plan(BulkRequest(table="entries")).extents
        there = reader.plan(BulkRequest(table="queues")).extents
        settings = _table(reader, tuple(queues))
        lives = lifetimes(reader)
        last = last_archived(reader, "events", queues, state.queues)
        last_entries = last_archived(reader, "entries", worlds, state.worlds)
    seen = {name: Seen(one, last.get(name), lives.made_ns.get(name, 0)) for name, one in queues.items()}
    begun = started(seen, state.queues, snapshot.at_ns, accept_gaps=options.accept_gaps)
    seen_worlds = {name: Seen(one, last_entries.get(name)) for name, one in worlds.items()}
    return Moment(
        snapshot=snapshot,
        keys=keys,
        queues=queues,
        worlds=worlds,
        begun=begun,
        world_positions=worlds_started(seen_worlds, state.worlds),
        queue_rows=settings,
        gone=_gone(state, set(there), begun, lives, snapshot.at_ns),
        state=state,
    )


def _gone(
    state: ArchiveState, there: set[str], begun: Started, lives: Lifetimes, at_ns: int
) -> dict[str, int]:
    """Those that are not there any more, or are others; when they went, or when that was seen."""
    found = {}
    for name, position in state.queues.items():
        if position.gone_ns:
            continue
        if name not in there:
            found[name] = lives.ended_ns(name, position) or at_ns
        elif name in begun.anew and (ended_ns := lives.ended_ns(name, position)):
            found[name] = ended_ns
    return found


def _table(reader: BulkReader, names: tuple[str, ...]) -> pyarrow.Table:
    import pyarrow as pa

    from penstock.tables import arrow_schema

    batches = []
    if names:
        for part in reader.plan(BulkRequest(table="queues", names=names)).partitions:
            batches += list(reader.read(part))
    return pa.Table.from_batches(batches, arrow_schema("queues"))


def _set_cursors(ps: Penstock, positions: Mapping[str, Position], cursor: str) -> None:
    """Where the archive is: a kill may have kept one behind; or the archive is an older copy of itself."""
    for name, position in positions.items():
        with suppress(InvalidMessage):  # Removed meanwhile; what is in the snapshot is archived.
            move_cursors(ps, {name: position.seq}, cursor)
