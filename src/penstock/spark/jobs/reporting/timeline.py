"""From rows by piece of time to moments in a line: what happened in each, and what was there at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from pyspark.sql import Row

from penstock.clock import NS_PER_S
from penstock.spark.jobs.reporting.buckets import Buckets
from penstock.spark.jobs.reporting.facts import COUNTS, Moment
from penstock.spark.jobs.reporting.measures import spans
from penstock.spark.jobs.reporting.standing import NOTHING, Standing


def timeline(
    rows: Iterable[Row],
    oldest: Iterable[Row],
    buckets: Buckets,
    final: Mapping[str | None, Standing],
    queues: Sequence[str] | None,
) -> list[Moment]:
    """All moments of each queue, or of all together, under None; the empty ones included.

    `final` is what is there after the last event, from which changes are counted back.
    """
    wanted: Sequence[str | None] = [None] if queues is None else queues
    by_queue: dict[str | None, dict[int, Row]] = {queue: {} for queue in wanted}
    for row in rows:
        by_queue[_queue(row)][row.piece] = row
    since = {(_queue(row), row.edge): row.visible_ns for row in oldest}
    moments: list[Moment] = []
    for queue, pieces in by_queue.items():
        end = final.get(queue, NOTHING)
        waiting = _start(pieces, "waiting", end.waiting)
        leased = _start(pieces, "leased", end.leased)
        for piece in range(buckets.count):
            found = pieces.get(piece)
            waiting, leased = waiting + _of(found, "waiting"), leased + _of(found, "leased")
            visible_ns = since.get((queue, piece + 1))
            edge_ns = min(buckets.edge_ns(piece + 1), buckets.until_ns - 1)
            moments.append(
                Moment(
                    queue=queue,
                    at_ns=buckets.edge_ns(piece),
                    **{name: _of(found, name) for name in COUNTS},
                    wait_s=spans(found and found.wait_ns),
                    work_s=spans(found and found.work_ns),
                    waiting=waiting,
                    leased=leased,
                    oldest_s=0.0 if visible_ns is None else max(0, edge_ns - visible_ns) / NS_PER_S,
                )
            )
    return moments


def _start(pieces: Mapping[int, Row], name: str, end: int) -> int:
    """What was there before the first piece: as much as leaves the end, and never less than nothing.

    Where history begins in the middle, and nobody has counted, that is the least that can have been there.
    """
    changes = [int(pieces[piece][name] or 0) for piece in sorted(pieces) if piece >= 0]
    start = end - sum(changes)
    return start - min(0, *accumulate(changes, initial=start))


def _queue(row: Row) -> str | None:
    return row.queue if "queue" in row else None


def _of(row: Row | None, name: str) -> int:
    return 0 if row is None else int(row[name] or 0)
