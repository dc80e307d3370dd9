"""Requests: what cannot be asked for, and how what is asked for is cut into partitions."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import groupby, pairwise
from math import ceil
from operator import itemgetter
from typing import Any, Protocol

from penstock.backends.bulk import (
    BulkPartition,
    BulkPlan,
    BulkRequest,
    Damage,
    Extent,
    SeqRange,
    Snapshot,
    Span,
)
from penstock.errors import HistoryTruncated, InvalidMessage, QueueNotFound, StorageCorrupt
from penstock.event import Kind
from penstock.message import MAX_COUNT, STORED_STATES, check_count
from penstock.tables import columns_of

#: A partition of fewer rows than this costs more than it saves.
LEAST_ROWS = 1000
#: Each partition is put together from about so many parts, so that large and small queues even out.
PARTS_PER_PARTITION = 4
MOST_PARTITIONS = 100_000

#: Filter -> the tables that it goes with.
FILTERS: dict[str, tuple[str, ...]] = {
    "states": ("messages",),
    "kinds": ("events", "entries"),
    "seqs": ("events", "entries", "bodies"),
    "since_ns": ("messages", "events", "dead", "entries", "bodies"),
    "until_ns": ("messages", "events", "dead", "entries", "bodies"),
}


class Target(Protocol):
    """A queue or world as a snapshot has it."""

    @property
    def name(self) -> str: ...

    @property
    def first_seq(self) -> int: ...

    @property
    def last_seq(self) -> int: ...

    @property
    def created_at_ns(self) -> int: ...


class Source(Protocol):
    """What a backend knows of a snapshot. It gets back the targets that it gave."""

    def names(self, *, of_worlds: bool) -> Collection[str]: ...

    def queue(self, name: str) -> Target:
        """`StorageCorrupt` if what the snapshot says of it does not decode."""
        ...

    def world(self, name: str) -> Target: ...

    def rows(self, request: BulkRequest, one: Any) -> int:
        """Of the whole table."""
        ...

    def spans(self, request: BulkRequest, one: Any, rows: int) -> list[Span]:
        """The parts of messages or bodies of one queue that are not asked for by seq."""
        ...


def planned(source: Source, snapshot: Snapshot, request: BulkRequest) -> BulkPlan:
    check_request(request)
    damage: list[Damage] = []
    extents: dict[str, Extent] = {}
    spans: list[Span] = []
    for one in _targets(source, request, damage):
        seqs = _seq_range(request, one)
        rows = source.rows(request, one)
        extents[one.name] = Extent(one.first_seq, one.last_seq, rows, one.created_at_ns)
        spans += _spans(source, request, one, rows, seqs)
    unknown = sorted(set(request.seqs) - set(extents))
    if unknown and not damage:
        raise InvalidMessage(f"seqs has {unknown[0]!r:.80}, which is not among the names that are asked for")
    partitions = tuple(
        BulkPartition(snapshot=snapshot, request=request, number=number, spans=tuple(part))
        for number, part in enumerate(_packed(spans, request.partitions))
    )
    return BulkPlan(
        snapshot=snapshot, request=request, partitions=partitions, extents=extents, damage=tuple(damage)
    )


# -- what is asked for --------------------------------------------------------------------------


def check_request(request: BulkRequest) -> None:
    """Refuse what cannot be asked for, saying what can."""
    columns_of(request.table, request.columns)
    for name, tables in FILTERS.items():
        if request.table not in tables and getattr(request, name):
            raise InvalidMessage(
                f"{name} does not go with the table {request.table}, but {', '.join(tables)}"
            )
    if request.names is not None and request.pattern is not None:
        raise InvalidMessage("names and pattern are both given; use one of them")
    _check_words(request.states, [str(state) for state in STORED_STATES], "state")
    if request.table == "events":
        _check_words(request.kinds, [str(kind) for kind in Kind], "kind")
    for bound in (request.since_ns, request.until_ns):
        if bound is not None:
            check_count(bound, "since_ns or until_ns")
    for name, seqs in request.seqs.items():
        check_count(seqs.first, f"seqs of {name!r:.60}: first")
        check_count(MAX_COUNT if seqs.end is None else seqs.end, f"seqs of {name!r:.60}: end")
    if not isinstance(request.partitions, int) or not 1 <= request.partitions <= MOST_PARTITIONS:
        raise InvalidMessage(f"partitions is {request.partitions!r:.40}; accepted: 1 to {MOST_PARTITIONS}")


def _check_words(wanted: Sequence[str] | None, known: list[str], what: str) -> None:
    for word in wanted or ():
        if word not in known:
            raise InvalidMessage(f"{what} {word!r:.60} is not known; accepted: {', '.join(known)}")


def _targets(source: Source, request: BulkRequest, damage: list[Damage]) -> list[Target]:
    """The queues or worlds, by name; a damaged one is set aside where the request says so."""
    of_worlds = request.table == "entries"
    found: list[Target] = []
    for name in _names(source.names(of_worlds=of_worlds), request, of_worlds):
        try:
            found.append(source.world(name) if of_worlds else source.queue(name))
        except StorageCorrupt as error:
            error = sound(name, error, "world" if of_worlds else "queue")
            if request.on_damage == "fail":
                raise error from None
            damage.append(Damage(name, "its own row", str(error), 0))
    return found


def _names(known: Collection[str], request: BulkRequest, of_worlds: bool) -> list[str]:
    if request.names is not None:
        for name in request.names:
            if name not in known and not of_worlds:
                raise QueueNotFound(name)
        return list(dict.fromkeys(request.names))
    if request.pattern is None:
        return sorted(known)
    try:
        pattern = re.compile(request.pattern)
    except re.error as error:
        raise InvalidMessage(
            f"pattern {request.pattern!r:.80} is not a regular expression: {error}"
        ) from None
    return sorted(name for name in known if pattern.fullmatch(name))


def _seq_range(request: BulkRequest, one: Target) -> tuple[int, int]:
    """From, and up to but not including: what the snapshot has of what is asked for."""
    wanted = request.seqs.get(one.name, SeqRange())
    if 0 < wanted.first < one.first_seq and request.on_truncated == "fail":
        what = "world" if request.table == "entries" else "queue"
        raise HistoryTruncated(f"the read of {what} {one.name!r}", wanted.first - 1, one.first_seq)
    end = one.last_seq + 1 if wanted.end is None else min(wanted.end, one.last_seq + 1)
    return max(wanted.first, one.first_seq), end


# -- parts --------------------------------------------------------------------------------------


def wanted_states(request: BulkRequest) -> tuple[str, ...] | None:
    """Those that are asked for; None: all."""
    return ("dead",) if request.table == "dead" else request.states


def _spans(source: Source, request: BulkRequest, one: Target, rows: int, seqs: tuple[int, int]) -> list[Span]:
    """The parts of one queue or world, small enough to be put together into even partitions."""
    if request.table == "queues":
        return [Span(one.name, b"", b"", 1)]
    if request.table in ("events", "entries") or one.name in request.seqs:
        return _cut_seqs(one.name, seqs, parts_of(request, seqs[1] - seqs[0]))
    return source.spans(request, one, rows)


def parts_of(request: BulkRequest, rows: int) -> int:
    """How many parts these rows are worth: as many as all of the table would be."""
    return max(1, min(request.partitions * PARTS_PER_PARTITION, rows * PARTS_PER_PARTITION // LEAST_ROWS))


def _cut_seqs(name: str, seqs: tuple[int, int], parts: int) -> list[Span]:
    first, end = seqs
    cuts = [first + (end - first) * part // parts for part in range(parts + 1)]
    return [
        Span(name, low.to_bytes(8, "big"), high.to_bytes(8, "big"), high - low)
        for low, high in pairwise(cuts)
        if low < high
    ]


# -- partitions ---------------------------------------------------------------------------------


def _packed(spans: list[Span], wanted: int) -> list[list[Span]]:
    """Neighbours together, until each partition has its share."""
    share = max(ceil(sum(span.rows for span in spans) / wanted), LEAST_ROWS)
    placed: list[tuple[int, Span]] = []
    passed = 0
    for span in spans:
        # By where its middle falls: what is over or short does not add up.
        placed.append((min((2 * passed + span.rows) // (2 * share), wanted - 1), span))
        passed += span.rows
    return [_merged([span for _, span in part]) for _, part in groupby(placed, key=itemgetter(0))]


def _merged(spans: list[Span]) -> list[Span]:
    """Those that follow each other in one queue are one."""
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last is not None and span.lower and (last.name, last.upper) == (span.name, span.lower):
            merged[-1] = Span(span.name, last.lower, span.upper, last.rows + span.rows)
        else:
            merged.append(span)
    return merged


def sound(name: str, error: StorageCorrupt, what: str) -> StorageCorrupt:
    """The same error, with what it concerns."""
    return type(error)(f"{what} {name!r} is damaged: {error}; run check with repair")
