"""The sections of a report: those that are plots over time, and all of them in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.clock import NS_PER_S
from penstock.spark.jobs.reporting import tallies
from penstock.spark.jobs.reporting.axes import amount, duration, durations, numbers
from penstock.spark.jobs.reporting.buckets import Buckets
from penstock.spark.jobs.reporting.facts import Facts, Moment
from penstock.spark.jobs.reporting.markup import legend, named, nothing, section
from penstock.spark.jobs.reporting.plots import Line, Scale, over_time
from penstock.spark.jobs.reporting.readings import READINGS

_RATES = Scale(numbers, lambda value: f"{amount(value)} a second")
_AMOUNTS = Scale(numbers, amount)
_SPANS = Scale(durations, duration)
_RATE_LINES = (("enqueued", 1), ("delivered", 5), ("acked", 2), ("failed", 4))
_PERCENTILES = (
    ("p50", "half of them within", 2),
    ("p95", "95 of 100 within", 3),
    ("p99", "99 of 100 within", 4),
)


class Section(NamedTuple):
    """One section, and its place in the list of them."""

    anchor: str
    title: str
    html: str


def all_of(facts: Facts) -> Iterator[Section]:
    """In order; those that a report of one queue has no use for are left out."""
    contents = {
        "queues": tallies.queues(facts),
        "throughput": _rates(facts, facts.timeline),
        "wait": _waits(facts, facts.timeline),
        "work": _works(facts, facts.timeline),
        "depth": _depth(facts),
        "lag": _lag(facts),
        "fairness": tallies.fairness(facts),
        "retries": tallies.retries(facts),
        "dead": tallies.dead(facts),
        "slowest": tallies.slowest(facts),
        "by-queue": _each_queue(facts),
    }
    for anchor, (title, how) in READINGS.items():
        if contents[anchor]:
            yield Section(anchor, title, section(anchor, title, how, contents[anchor]))


# -- over time ---------------------------------------------------------------------------------------


def _buckets(facts: Facts, moments: Sequence[Moment]) -> Buckets:
    return Buckets(facts.since_ns, round(facts.bucket_s * NS_PER_S), len(moments))


def _plot(title: str, facts: Facts, moments: Sequence[Moment], lines: Sequence[Line], scale: Scale) -> str:
    drawn = over_time(title, _buckets(facts, moments), lines, scale)
    return drawn + (legend((line.name, line.colour) for line in lines) if len(lines) > 1 else "")


def _rates(facts: Facts, moments: Sequence[Moment]) -> str:
    seconds = _covered_s(facts, moments)
    lines = [
        Line(name, [_rate(getattr(one, name), s) for one, s in zip(moments, seconds, strict=True)], colour)
        for name, colour in _RATE_LINES
    ]
    return _plot("messages a second", facts, moments, lines, _RATES)


def _covered_s(facts: Facts, moments: Sequence[Moment]) -> list[float | None]:
    """How much of each piece the report covers: it ends inside of one, and of too little says nothing."""
    covered: list[float | None] = [facts.bucket_s] * len(moments)
    last_s = (facts.until_ns - moments[-1].at_ns) / NS_PER_S
    if len(moments) > 1:
        covered[-1] = min(last_s, facts.bucket_s) if last_s > facts.bucket_s / 4 else None
    return covered


def _rate(count: int, seconds: float | None) -> float | None:
    return None if seconds is None else count / seconds


def _percentiles(facts: Facts, moments: Sequence[Moment], field: str, none: str) -> str:
    lines = [
        Line(name, [getattr(getattr(one, field), percentile) for one in moments], colour)
        for percentile, name, colour in _PERCENTILES
    ]
    if all(value is None for line in lines for value in line.values):
        return nothing(none)
    return _plot("durations", facts, moments, lines, _SPANS)


def _waits(facts: Facts, moments: Sequence[Moment]) -> str:
    return _percentiles(
        facts, moments, "wait_s", "No delivery was made, or nobody knows since when it waited."
    )


def _works(facts: Facts, moments: Sequence[Moment]) -> str:
    return _percentiles(facts, moments, "work_s", "No delivery has ended.")


def _depth(facts: Facts) -> str:
    moments = facts.timeline
    lines = [
        Line("waiting", [one.waiting for one in moments], 1, filled=True),
        Line("leased", [one.leased for one in moments], 3),
    ]
    return _plot("messages in the queues", facts, moments, lines, _AMOUNTS) + _by_queue(
        facts, "waiting", "Waiting, by queue", _AMOUNTS
    )


def _lag(facts: Facts) -> str:
    """By queue, if there are several: of all together only the worst would be seen."""
    moments = facts.timeline
    lines = [Line("oldest", [one.oldest_s for one in moments], 4, filled=True)]
    return _by_queue(facts, "oldest_s", "By queue", _SPANS) or _plot(
        "age of the oldest ready message", facts, moments, lines, _SPANS
    )


def _by_queue(facts: Facts, field: str, title: str, scale: Scale) -> str:
    by_queue = _lines_by_queue(facts)
    if len(by_queue) < 2:
        return ""
    lines = [
        Line(queue, [getattr(one, field) for one in moments], colour)
        for colour, (queue, moments) in enumerate(by_queue.items(), start=1)
    ]
    first = next(iter(by_queue.values()))
    left = facts.queue_count - len(facts.dead_letter_queues) - len(by_queue)
    more = f" (the {len(by_queue)} busiest; {left:,} others are not drawn)" if left > 0 else ""
    return f"<h3>{title}{more}</h3>" + _plot(title, facts, first, lines, scale)


def _lines_by_queue(facts: Facts) -> dict[str, list[Moment]]:
    """In the order of the table of queues."""
    found: dict[str, list[Moment]] = {row.queue: [] for row in facts.queues}
    for one in facts.timeline_by_queue:
        if one.queue is not None:
            found[one.queue].append(one)
    return {queue: moments for queue, moments in found.items() if moments}


def _each_queue(facts: Facts) -> str:
    return "".join(
        f"<details><summary>{named(queue)}</summary><h3>Throughput</h3>{_rates(facts, moments)}"
        f"<h3>Waiting time</h3>{_waits(facts, moments)}"
        f"<h3>Service time</h3>{_works(facts, moments)}</details>"
        for queue, moments in _lines_by_queue(facts).items()
    )
