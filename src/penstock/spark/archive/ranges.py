"""What there is to archive: where each journal goes on, and whether it is the one that was begun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from penstock.backends.bulk import Extent
from penstock.errors import PenstockError
from penstock.spark.archive.log import Position


class ArchiveGap(PenstockError):
    """Events were removed before they were archived."""


class Started(NamedTuple):
    """Where each journal goes on. `based`: those whose state has to be archived too, for no events say it."""

    positions: dict[str, Position]
    based: list[str]
    #: Journals that are not the ones that were archived under their names.
    anew: list[str]


class Seen(NamedTuple):
    """What a snapshot has of a journal, and how it is told from another of the same name."""

    extent: Extent
    #: Its event of the last number that was archived, if it is there: when, and of which message.
    last: tuple[int, str] | None = None
    #: When the queue was made; 0: not known.
    made_ns: int = 0

    def is_other(self, was: Position) -> bool:
        """A queue that was made since, or a store that was put back from a copy and went another way."""
        if was.seq > self.extent.last_seq or self.made_ns > max(was.began_ns, was.at_ns):
            return True
        if self.last is not None:
            return self.last != (was.at_ns, was.id)
        return was.gone_ns > 0


def started(
    seen: Mapping[str, Seen], known: Mapping[str, Position], at_ns: int, *, accept_gaps: bool = False
) -> Started:
    """For each journal that there is at this moment: how far it is archived already."""
    positions, based, anew = {}, [], []
    for name, one in seen.items():
        was = known.get(name)
        if was is not None and _goes_on(name, one, was, accept_gaps):
            positions[name] = msgspec.structs.replace(was, gone_ns=0)
            continue
        positions[name] = _begun(one, was, at_ns)
        if was is not None:
            anew.append(name)
        if positions[name].base_seq:
            based.append(name)
    return Started(positions, based, anew)


def _goes_on(name: str, seen: Seen, was: Position, accept_gaps: bool) -> bool:
    if seen.is_other(was):
        return False
    first_seq = seen.extent.first_seq
    if first_seq > was.seq + 1 and not accept_gaps:
        raise ArchiveGap(
            f"queue {name!r}: events {was.seq + 1} to {first_seq - 1} were removed before they were "
            "archived; --accept-gaps archives the rest, and how the queue stands now, as a history of its own"
        )
    return first_seq <= was.seq + 1


def _begun(seen: Seen, was: Position | None, at_ns: int) -> Position:
    """Another history. Up to the last event of the one before, that one counts."""
    first_seq, last_seq = seen.extent.first_seq, seen.extent.last_seq
    cut_off = first_seq > 1
    return Position(
        generation=1 if was is None else was.generation + 1,
        seq=first_seq - 1,
        began_ns=seen.made_ns if was is None else max(seen.made_ns, was.began_ns + 1, was.at_ns + 1),
        base_seq=last_seq if cut_off else 0,
        base_at_ns=at_ns if cut_off else 0,
    )


def after_hole(was: Position, last_seq: int, at_ns: int, *, known: bool) -> Position:
    """Where a journal goes on with events that only stand for lost ones: no event says what those did.

    So another history begins, unless none has that would be `known` to the archive: from how the queue stands
    after its last event, at this moment.
    """
    return msgspec.structs.replace(
        was,
        generation=was.generation + known,
        began_ns=max(was.began_ns, was.at_ns) + 1 if known else was.began_ns,
        base_seq=last_seq,
        base_at_ns=at_ns,
        goes_on=was.goes_on or known,
    )


def worlds_started(seen: Mapping[str, Seen], known: Mapping[str, Position]) -> dict[str, Position]:
    """The same for worlds, which have no cursors: what retention has removed is passed over."""
    positions = {}
    for name, one in seen.items():
        was = known.get(name, Position())
        if one.is_other(was):
            was = Position(generation=was.generation + 1)
        positions[name] = msgspec.structs.replace(was, seq=max(was.seq, one.extent.first_seq - 1))
    return positions
