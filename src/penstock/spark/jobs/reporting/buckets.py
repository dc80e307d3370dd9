"""Time cut into equal pieces, of a width that people count in, and the edges between them."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as fn

from penstock.clock import NS_PER_S
from penstock.message import MAX_COUNT

#: About so many fit side by side on a page.
MOST = 120

_MS = NS_PER_S // 1000
_MINUTE, _HOUR, _DAY = 60 * NS_PER_S, 3600 * NS_PER_S, 86_400 * NS_PER_S
WIDTHS_NS = (
    *(n * _MS for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(n * NS_PER_S for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14, 28, 91, 182, 364, 3640, 36_400)),
)


@dataclass(frozen=True)
class Buckets:
    """`count` pieces of `width_ns` from `start_ns` on. Piece i lies between the edges i and i + 1.

    The last may reach further than the report does: what happened at `until_ns` or later is in none of them.
    """

    start_ns: int
    width_ns: int
    count: int
    until_ns: int = MAX_COUNT

    @property
    def end_ns(self) -> int:
        return self.edge_ns(self.count)

    @property
    def width_s(self) -> float:
        return self.width_ns / NS_PER_S

    def edge_ns(self, edge: int) -> int:
        return self.start_ns + edge * self.width_ns

    def covers(self, at_ns: Column) -> Column:
        return at_ns.between(self.start_ns, min(self.end_ns, self.until_ns) - 1)

    def piece_of(self, at_ns: Column) -> Column:
        """The piece that a time is in: -1 for all that was before, `count` for all that came after."""
        piece = fn.floor((at_ns - self.start_ns) / self.width_ns).cast("int")
        inside = fn.greatest(fn.lit(-1), fn.least(fn.lit(self.count), piece))
        return fn.when(at_ns >= self.until_ns, self.count).otherwise(inside)

    def edges_in(self, from_ns: Column, until_ns: Column) -> Column:
        """The `first` and `last` edge in a span of time; null for none, as in most: they are short.

        The first moment of a span counts, its last does not. A span that has not ended has a null for it.
        The last edge is where the report ends, be it inside of a piece.
        """
        end_ns = min(self.end_ns, self.until_ns)
        first = fn.greatest(fn.lit(0), _ceiling(from_ns - self.start_ns, self.width_ns))
        last = fn.least(fn.lit(self.count), _ceiling(until_ns - self.start_ns, self.width_ns) - 1)
        last = fn.when(until_ns.isNull() | (until_ns > end_ns), fn.lit(self.count)).otherwise(last)
        some = (from_ns <= end_ns) & (first <= last)
        return fn.when(some, fn.struct(first.alias("first"), last.alias("last")))


def _ceiling(span_ns: Column, width_ns: int) -> Column:
    return fn.ceil(span_ns / width_ns).cast("int")


def buckets(first_ns: int, last_ns: int, since_ns: int | None = None, most: int = MOST) -> Buckets:
    """The narrowest that cover both moments with at most so many, and nothing that came after the last.

    They start at `since_ns`, which is then the first moment, or else at a round time.
    """
    start_ns = first_ns if since_ns is None else since_ns
    at = bisect.bisect_left(WIDTHS_NS, -(-(last_ns + 1 - start_ns) // max(1, most - 1)))
    width_ns = WIDTHS_NS[min(at, len(WIDTHS_NS) - 1)]
    if since_ns is None:
        start_ns -= start_ns % width_ns
    return Buckets(start_ns, width_ns, (last_ns - start_ns) // width_ns + 1, last_ns + 1)
