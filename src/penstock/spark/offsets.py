"""Where a stream stands: for each queue the seq of the last event that it has read. Arithmetic alone.

An offset is a dict of queue to seq. What Spark notes has also, for each queue, when it was made: another
queue of the same name has other events under the same numbers. It is in the order of the names, for Spark
compares offsets by their texts.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.backends.bulk import Extent
from penstock.errors import PenstockError
from penstock.spark.options import Places

Offset = dict[str, int]
#: Queue to seq and the time when it was made, 0 if that is not known. JSON has no tuples.
Noted = dict[str, list[int]]


class DataLost(PenstockError):
    """Events that a stream was to read are not there any more."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}; failOnDataLoss=false goes on with what there is, and the option cursor keeps retention "
            "behind a stream"
        )


def initial(places: Places, extents: Mapping[str, Extent]) -> Offset:
    """Where a new stream starts; queues that nothing is said of, at the first event that there is."""
    offset = {}
    for name in sorted(extents):
        place = places.get(name, "earliest") if isinstance(places, dict) else places
        if place == "latest":
            offset[name] = extents[name].last_seq
        else:
            offset[name] = _base(extents[name]) if place == "earliest" else int(place)
    return offset


def noted(offset: Mapping[str, int], extents: Mapping[str, Extent]) -> Noted:
    """For Spark to keep; queues that are gone by now are not in it."""
    return {name: [offset[name], extents[name].created_at_ns] for name in sorted(offset) if name in extents}


def unchanged(start: Noted, extents: Mapping[str, Extent]) -> Offset:
    """Where it stands in those queues that are still the ones that it has read."""
    return {
        name: seq
        for name, (seq, created_at_ns) in start.items()
        if name in extents and not _differ(created_at_ns, extents[name].created_at_ns)
    }


def spans(start: Noted, end: Noted) -> Noted:
    """The end of each queue that has events between the two.

    A queue that has just come, also under the name of another, is put down first and read in the next batch.
    """
    return {
        name: to
        for name, to in end.items()
        if name in start and start[name][0] < to[0] and not _differ(start[name][1], to[1])
    }


def _differ(one_ns: int, other_ns: int) -> bool:
    return one_ns != other_ns and one_ns != 0 != other_ns


def losses(start: Noted, extents: Mapping[str, Extent]) -> list[str]:
    """What a stream that stands at `start` can never read."""
    found = []
    for name, (seq, created_at_ns) in start.items():
        extent = extents.get(name)
        if extent is None:
            found.append(f"queue {name!r}, which was read up to {seq}, does not exist any more")
        elif _differ(created_at_ns, extent.created_at_ns):
            found.append(
                f"queue {name!r} was read up to {seq}, and then deleted and made anew: what was left is gone"
            )
        elif extent.last_seq < seq:
            found.append(
                f"queue {name!r} was read up to {seq}, but its journal ends at {extent.last_seq}: it was "
                "restored from a copy"
            )
        elif extent.first_seq > seq + 1:
            found.append(
                f"queue {name!r}: events {seq + 1} to {extent.first_seq - 1} were removed by retention "
                "before they were read"
            )
    return found


def advanced(start: Mapping[str, int], extents: Mapping[str, Extent], limit: int | None) -> Offset:
    """The end of the next batch: everything, or `limit` events, shared between the queues.

    A queue that is new, or new under its old name, is put down at its start and read by the batch after: from
    then on Spark knows where it started, and what is removed from there on is a loss.
    """
    end, available = {}, {}
    for name, extent in extents.items():
        known = name in start and start[name] <= extent.last_seq
        end[name] = max(start[name], _base(extent)) if known else _base(extent)
        available[name] = extent.last_seq - end[name] if known else 0
    taken = available if limit is None else _shares(available, limit, sum(start.values()))
    return {name: end[name] + taken[name] for name in sorted(end)}


def _base(extent: Extent) -> int:
    return extent.first_seq - 1


def _shares(available: Mapping[str, int], limit: int, turn: int) -> dict[str, int]:
    """Equal parts; what one cannot use goes to the others, so that no queue waits behind a long one.

    Of a limit that is smaller than the number of queues each gets one in turn.
    """
    shares = dict.fromkeys(available, 0)
    hungry = [name for name in sorted(available) if available[name]]
    while hungry and (each := limit // len(hungry)):
        for name in hungry:
            taken = min(each, available[name] - shares[name])
            shares[name] += taken
            limit -= taken
        hungry = [name for name in hungry if shares[name] < available[name]]
    if hungry:
        turn %= len(hungry)
        for name in (hungry[turn:] + hungry[:turn])[:limit]:
            shares[name] += 1
    return shares
