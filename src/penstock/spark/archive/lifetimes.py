"""What tells journals of one name apart: when their queues were made and deleted, and single events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Literal, NamedTuple

from penstock.backends.bulk import BulkReader, BulkRequest, Extent, SeqRange
from penstock.event import HOLE, NOBODY
from penstock.message import format_id
from penstock.spark.archive.layout import SYSTEM_WORLD
from penstock.spark.archive.log import Position

_MADE, _DELETED = "queue_created", "queue_deleted"
#: What a repair puts in the place of a lost entry is of this kind.
_LOST_ENTRY = "_penstock.lost"


class Lifetimes(NamedTuple):
    """By queue. What the system's world has forgotten, or never knew, is not there."""

    #: When the one that there is was made.
    made_ns: dict[str, int]
    #: When those of the name were deleted, the first time first.
    deleted_ns: dict[str, list[int]]

    def ended_ns(self, name: str, position: Position) -> int:
        """When a queue that was archived was deleted; 0: not known, or it was not."""
        after_ns = max(position.began_ns, position.at_ns)
        return next((at_ns for at_ns in self.deleted_ns.get(name, ()) if at_ns >= after_ns), 0)


def lifetimes(reader: BulkReader) -> Lifetimes:
    made_ns: dict[str, int] = {}
    deleted_ns: dict[str, list[int]] = defaultdict(list)
    request = BulkRequest(
        table="entries",
        names=(SYSTEM_WORLD,),
        kinds=(_MADE, _DELETED),
        columns=("at_ns", "kind", "labels"),
    )
    for part in reader.plan(request).partitions:
        for batch in reader.read(part):
            for row in batch.to_pylist():
                for name in row["labels"]:
                    if row["kind"] == _MADE:
                        made_ns[name] = row["at_ns"]
                    else:
                        deleted_ns[name].append(row["at_ns"])
    return Lifetimes(made_ns, dict(deleted_ns))


def last_archived(
    reader: BulkReader,
    table: Literal["events", "entries"],
    extents: Mapping[str, Extent],
    known: Mapping[str, Position],
) -> dict[str, tuple[int, str]]:
    """Of the last event, or entry, that was archived of each: when it was and whose, if it is still there.

    What a repair has put in its place is not it, and not another journal's.
    """
    events = table == "events"
    name_of, id_of, mark = ("queue", "message_id", "extra") if events else ("world", "id", "kind")
    seqs = {
        name: SeqRange(known[name].seq, known[name].seq + 1)
        for name, extent in extents.items()
        if name in known and extent.first_seq <= known[name].seq <= extent.last_seq
    }
    if not seqs:
        return {}
    request = BulkRequest(table=table, names=tuple(seqs), seqs=seqs, columns=(name_of, "at_ns", id_of, mark))
    return {
        row[name_of]: (row["at_ns"], row[id_of])
        for part in reader.plan(request).partitions
        for batch in reader.read(part)
        for row in batch.to_pylist()
        if not (is_hole(row) if events else row["kind"] == _LOST_ENTRY)
    }


def is_hole(event: Mapping[str, object]) -> bool:
    """Whether an event, of which `message_id` and `extra` are here, stands for one that was lost."""
    return event["message_id"] == format_id(NOBODY) and event["extra"] == HOLE
