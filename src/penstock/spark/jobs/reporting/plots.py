"""Lines over time as SVG: small, in the colours of the page, each moment explained where the pointer is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from penstock.spark.jobs.reporting.axes import Mark, highest, moment, times
from penstock.spark.jobs.reporting.buckets import Buckets
from penstock.spark.jobs.reporting.markup import text

WIDTH, HEIGHT = 960.0, 230.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 14.0, 10.0, 26.0


class Line(NamedTuple):
    """One line; None where there is nothing to show. `colour` is one of the page's, from 1."""

    name: str
    values: Sequence[float | None]
    colour: int
    filled: bool = False


class Scale(NamedTuple):
    """How values are marked along the axis, and written where one is looked at."""

    marks: Callable[[float], list[Mark]]
    shown: Callable[[float], str]


def over_time(title: str, buckets: Buckets, lines: Sequence[Line], scale: Scale) -> str:
    """A picture of what happened in each piece of time."""
    rows = scale.marks(highest([line.values for line in lines]))
    frame = _Frame(buckets, rows[-1].at)
    return "".join(
        (
            f'<svg class="plot" role="img" aria-label="{text(title)}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}">',
            *(frame.row(mark) for mark in rows),
            *(frame.column(mark) for mark in times(buckets.start_ns, buckets.end_ns)),
            *(frame.area(line) for line in lines if line.filled),
            *(frame.line(line) for line in lines),
            *(frame.piece(piece, lines, scale.shown) for piece in range(buckets.count)),
            "</svg>",
        )
    )


class _Frame:
    """Where things are in the picture."""

    def __init__(self, buckets: Buckets, top: float) -> None:
        self._buckets = buckets
        self._top = top or 1.0
        self._span_ns = buckets.end_ns - buckets.start_ns

    def _x(self, at_ns: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (at_ns - self._buckets.start_ns) / self._span_ns

    def _y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / self._top

    def row(self, mark: Mark) -> str:
        y = self._y(mark.at)
        return (
            f'<path class="grid" d="M{_LEFT:g} {y:.1f}H{WIDTH - _RIGHT:g}"/>'
            f'<text x="{_LEFT - 8:g}" y="{y + 4:.1f}" class="end">{escape(mark.label)}</text>'
        )

    def column(self, mark: Mark) -> str:
        x = self._x(mark.at)
        # A label that would hang over the edge is not worth its first letters.
        if not _LEFT <= x <= WIDTH - _RIGHT - 20:
            return ""
        return f'<text x="{x:.1f}" y="{HEIGHT - 8:g}" class="middle">{escape(mark.label)}</text>'

    def line(self, line: Line) -> str:
        path = "".join(
            "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in run) for run in self._runs(line) if len(run) > 1
        )
        # A moment between two without any is no line.
        dots = "".join(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
            for run in self._runs(line)
            if len(run) == 1
            for x, y in run
        )
        return f'<g class="s{line.colour}"><path class="line" d="{path}"/>{dots}</g>'

    def area(self, line: Line) -> str:
        floor = self._y(0)
        shapes = "".join(
            f"M{run[0][0]:.1f} {floor:.1f}L"
            + "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
            + f"L{run[-1][0]:.1f} {floor:.1f}Z"
            for run in self._runs(line)
        )
        return f'<g class="s{line.colour}"><path class="area" d="{shapes}"/></g>'

    def _runs(self, line: Line) -> list[list[tuple[float, float]]]:
        """Points that follow each other without a gap."""
        runs: list[list[tuple[float, float]]] = [[]]
        for piece, value in enumerate(line.values):
            if value is None:
                runs.append([])
            else:
                runs[-1].append((self._x(self._middle_ns(piece)), self._y(value)))
        return [run for run in runs if run]

    def _middle_ns(self, piece: int) -> float:
        return self._buckets.edge_ns(piece) + self._buckets.width_ns / 2

    def piece(self, piece: int, lines: Sequence[Line], shown: Callable[[float], str]) -> str:
        """What the pointer finds there."""
        values = [(line.name, line.values[piece]) for line in lines]
        told = "\n".join(f"{text(name)}: {shown(value)}" for name, value in values if value is not None)
        if not told:
            return ""
        x, end = self._x(self._buckets.edge_ns(piece)), self._x(self._buckets.edge_ns(piece + 1))
        title = f"{moment(self._buckets.edge_ns(piece), self._buckets.width_ns)}\n{told}"
        return (
            f'<rect class="piece" x="{x:.1f}" y="{_TOP:g}" width="{end - x:.1f}" '
            f'height="{HEIGHT - _TOP - _BOTTOM:g}"><title>{title}</title></rect>'
        )
