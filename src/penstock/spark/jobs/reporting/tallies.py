"""The sections of a report that are tables."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.spark.jobs.reporting.axes import amount, duration, moment
from penstock.spark.jobs.reporting.facts import AttemptRow, Facts, KeyRow, QueueRow, ReasonRow, ShareRow
from penstock.spark.jobs.reporting.markup import Column, bar, named, nothing, table

COMMON_KEY = "(the common key)"
NO_REASON = "(no reason given)"
#: Sums of shares are not exact to the last digit.
_ROUNDING = 1e-6
_NO_BODIES = (
    "Fairness keys are not known: they are part of a message's body, and the bodies of messages that are "
    "done are gone. Report from an archive (penstock pipeline archive), or keep messages with retention_s."
)


def queues(facts: Facts) -> str:
    columns: list[Column[QueueRow]] = [
        Column("queue", lambda row: named(row.queue) + _note(facts, row), is_number=False),
        *(_count(name) for name in ("enqueued", "delivered", "acked", "failed", "dead")),
        Column("wait, half", lambda row: span(row.wait_s.p50)),
        Column("wait, 95 %", lambda row: span(row.wait_s.p95)),
        Column("work, half", lambda row: span(row.work_s.p50)),
        Column("work, 95 %", lambda row: span(row.work_s.p95)),
        Column("waiting", lambda row: amount(row.waiting)),
        Column("oldest", lambda row: span(row.oldest_s or None)),
    ]
    left = facts.queue_count - len(facts.queues)
    return table(facts.queues, columns) + (f"<p>{left:,} more queues are not listed.</p>" if left > 0 else "")


def _note(facts: Facts, row: QueueRow) -> str:
    return ' <span class="faint">dead letters</span>' if row.queue in facts.dead_letter_queues else ""


def _count(name: str) -> Column[QueueRow]:
    return Column(name, lambda row: amount(getattr(row, name)))


def span(seconds: float | None) -> str:
    return '<span class="faint">–</span>' if seconds is None else duration(seconds)


def fairness(facts: Facts) -> str:
    if not facts.deliveries_with_key:
        return nothing(_NO_BODIES)
    if not facts.shares:
        return _coverage(facts) + nothing(
            "No key had to share: none had a message that waited through a whole point of time while other "
            "keys of its queue and priority were delivered."
        )
    # One scale for all bars, so that they can be compared.
    most = max(max(row.share, row.due_share) for row in facts.shares)
    columns: list[Column[ShareRow]] = [
        Column("queue", lambda row: named(row.queue), is_number=False),
        Column("key", lambda row: named(row.key, COMMON_KEY), is_number=False),
        Column("priority", lambda row: str(row.priority)),
        Column(
            "weight",
            lambda row: f"{row.weight:g}" if row.weight == round(row.weight) else f"{row.weight:.1f}",
        ),
        Column("short for", lambda row: span(row.short_s or None)),
        Column("delivered", lambda row: amount(row.delivered)),
        Column("due", lambda row: amount(row.due)),
        Column("share", lambda row: f"{100 * row.share:.1f} %"),
        Column("due share", lambda row: f"{100 * row.due_share:.1f} %"),
        Column("", lambda row: bar(row.share / most, row.due_share / most) + _content(row), is_number=False),
    ]
    return _coverage(facts) + table(facts.shares, columns)


def _content(row: ShareRow) -> str:
    """Said of a key that asked for no more. One that got more than was due has its numbers to say so."""
    satisfied = not row.short_s and row.delivered <= row.due * (1 + _ROUNDING)
    return ' <span class="faint">all it asked for</span>' if satisfied else ""


def _coverage(facts: Facts) -> str:
    if facts.deliveries_with_key >= facts.deliveries:
        return ""
    part = 100 * facts.deliveries_with_key / facts.deliveries
    return (
        f'<p class="warning">The keys of {part:.0f} % of the deliveries are known; the bodies of the others '
        "are gone, and what follows leaves them out.</p>"
    )


def retries(facts: Facts) -> str:
    if not facts.attempts:
        return nothing("No delivery was made.")
    most = max(row.delivered for row in facts.attempts) or 1
    columns: list[Column[AttemptRow]] = [
        Column("attempt", lambda row: str(row.attempt)),
        Column("delivered", lambda row: amount(row.delivered)),
        Column("acked", lambda row: amount(row.acked)),
        Column("failed", lambda row: amount(row.failed)),
        Column("", lambda row: bar(row.delivered / most), is_number=False),
    ]
    failures = _reasons(facts.failures) if facts.failures else nothing("No delivery failed.")
    return table(facts.attempts, columns) + f"<h3>Failed deliveries by reason</h3>{failures}"


def dead(facts: Facts) -> str:
    return _reasons(facts.deaths) if facts.deaths else nothing("No message died.")


def _reasons(rows: Sequence[ReasonRow]) -> str:
    most = max(row.count for row in rows)
    kinds = len({row.kind for row in rows}) > 1
    columns: list[Column[ReasonRow]] = [
        Column("reason", lambda row: named(row.reason, _unsaid(row.kind)), is_number=False),
        *([Column("what", lambda row: row.kind, is_number=False)] if kinds else []),  # type: ignore[list-item]
        Column("queue", lambda row: named(row.queue), is_number=False),
        Column("times", lambda row: amount(row.count)),
        Column("", lambda row: bar(row.count / most), is_number=False),
        Column("last", lambda row: moment(row.last_at_ns)),
    ]
    return table(rows, columns)


def _unsaid(kind: str) -> str:
    return "(its lease ran out)" if kind == "released" else NO_REASON


def slowest(facts: Facts) -> str:
    if not facts.slowest:
        return nothing(_NO_BODIES if not facts.deliveries_with_key else "No delivery has ended.")
    most = max(row.work_s.p95 or 0 for row in facts.slowest) or 1
    columns: list[Column[KeyRow]] = [
        Column("key", lambda row: named(row.key, COMMON_KEY), is_number=False),
        Column("queue", lambda row: named(row.queue), is_number=False),
        Column("deliveries", lambda row: amount(row.finished)),
        Column("work, half", lambda row: span(row.work_s.p50)),
        Column("work, 95 %", lambda row: span(row.work_s.p95)),
        Column("", lambda row: bar((row.work_s.p95 or 0) / most), is_number=False),
        Column("wait, 95 %", lambda row: span(row.wait_s.p95)),
    ]
    left = facts.key_count - len(facts.slowest)
    more = f"<p>About {left:,} more keys were faster.</p>" if left > 0 else ""
    return _coverage(facts) + table(facts.slowest, columns) + more
