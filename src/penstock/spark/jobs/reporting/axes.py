"""Where the marks of an axis stand, and what is written at them: numbers, durations and times of day."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.clock import NS_PER_S
from penstock.spark.jobs.reporting.buckets import WIDTHS_NS

_DAY_NS = 86_400 * NS_PER_S
_SHORTER = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class Mark(NamedTuple):
    """A place on an axis and its label."""

    at: float
    label: str


def amount(value: float) -> str:
    """A number in four places or so: 0.25, 12, 3.4k, 1.2M."""
    for size, letter in _SHORTER:
        if abs(value) >= size:
            return f"{_plain(value / size)}{letter}"
    return _plain(value)


def _plain(value: float) -> str:
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """In one unit, or two where one would not do: 40 µs, 850 ms, 12.5 s, 3 m 20 s, 4 h, 2 d 3 h."""
    if seconds < 60:
        for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if seconds >= size:
                return f"{_plain(float(f'{seconds / size:.3g}'))} {unit}"
        return "0 s" if seconds == 0 else f"{seconds * 1e9:.0f} ns"
    whole = round(seconds)
    for size_s, unit, below_s, below in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size_s:
            rest = whole % size_s // below_s
            return f"{whole // size_s} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def numbers(highest: float, most: int = 6) -> list[Mark]:
    """From 0 to the first round number that is not below the highest."""
    return [Mark(value, amount(value)) for value in _steps(highest, _round_step(highest / most))]


def durations(highest_s: float, most: int = 6) -> list[Mark]:
    """The same in seconds; above a second, in steps that clocks have."""
    step_s = _round_step(highest_s / most)
    if highest_s / most > 1:
        step_s = next((w / NS_PER_S for w in WIDTHS_NS if w / NS_PER_S >= highest_s / most), step_s)
    return [Mark(value, duration(value)) for value in _steps(highest_s, step_s)]


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10 and so on."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))


def _steps(highest: float, step: float) -> list[float]:
    return [at * step for at in range(max(1, math.ceil(highest / step - 1e-9)) + 1)]


def times(first_ns: int, last_ns: int, most: int = 10) -> list[Mark]:
    """Round times of day, in UTC, inside the span; the first of a day has its date too."""
    wanted_ns = max(1, last_ns - first_ns) / most
    step_ns = next((width for width in WIDTHS_NS if width >= wanted_ns), WIDTHS_NS[-1])
    marks, day = [], ""
    for at_ns in range(-(-first_ns // step_ns) * step_ns, last_ns + 1, step_ns):
        moment = datetime.fromtimestamp(at_ns // NS_PER_S, UTC)
        date = f"{moment.day} {moment:%b}"
        label = date if step_ns >= _DAY_NS else _clock(moment, at_ns, step_ns)
        marks.append(Mark(at_ns, label if date == day or label == date else f"{date}, {label}"))
        day = date
    return marks


def _clock(moment: datetime, at_ns: int, step_ns: int) -> str:
    if step_ns < NS_PER_S:
        return f"{moment:%H:%M:%S}.{at_ns % NS_PER_S // 1_000_000:03d}"
    return f"{moment:%H:%M:%S}" if step_ns < 60 * NS_PER_S else f"{moment:%H:%M}"


def moment(at_ns: int, width_ns: int = NS_PER_S) -> str:
    """A time with its date, as exact as the pieces that it is one of."""
    at = datetime.fromtimestamp(at_ns // NS_PER_S, UTC)
    return f"{at:%Y-%m-%d} {_clock(at, at_ns, width_ns)}"


def highest(values: Sequence[Sequence[float | None]]) -> float:
    return max((value for one in values for value in one if value is not None), default=0.0)
