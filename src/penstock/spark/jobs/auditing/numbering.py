"""The numbers of events: from the first that should be there to the last, each once."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from penstock.spark.jobs.auditing.findings import cases, finding, found, what
from penstock.spark.jobs.states import NOBODY_ID


def _gap(first: str, last: str) -> str:
    one, several = what("event %s is missing", first), what("events %s to %s are missing", first, last)
    return finding("gap", f"if({first} = {last}, {one}, {several})", first)


_TWICE = what("event %s is there twice", "seq")
_TWICE_OF_TWO = what("event %s is there twice: of this message and of %s", "seq", "before.message_id")
_WITHIN = cases(
    (
        "seq = before.seq",
        finding("repeated", f"if(message_id = before.message_id, {_TWICE}, {_TWICE_OF_TWO})"),
    ),
    ("seq > before.seq + 1", _gap("before.seq + 1", "seq - 1")),
)
_AT_THE_ENDS = (
    cases(("min_seq IS NULL AND first_seq <= last_seq", _gap("first_seq", "last_seq"))),
    cases(("min_seq > first_seq", _gap("first_seq", "min_seq - 1"))),
    cases(("max_seq < last_seq", _gap("max_seq + 1", "last_seq"))),
    cases(
        (
            "max_seq > last_seq",
            finding(
                "beyond",
                what("event %s is there; the queue has given %s numbers", "max_seq", "last_seq"),
                "max_seq",
            ),
        )
    ),
)


def numbering(events: DataFrame, extent: DataFrame) -> DataFrame:
    """Findings: gaps, numbers that two events have, and events beyond the last.

    A bitmap for each 32,768 numbers is all that travels between machines. Only the stretches that something
    is wrong with are then looked at event by event.
    """
    numbered = events.selectExpr("queue", "seq", "message_id", "bitmap_bucket_number(seq) AS stretch")
    stretches = numbered.groupBy("queue", "stretch").agg(
        fn.expr("min(seq) AS low"),
        fn.expr("max(seq) AS high"),
        fn.expr("count(*) AS events"),
        fn.expr("bitmap_count(bitmap_construct_agg(bitmap_bit_position(seq))) AS numbers"),
    )
    suspects = stretches.where("events <> numbers OR high - low >= numbers").select("queue", "stretch")
    return (
        _within(numbered.join(fn.broadcast(suspects), ["queue", "stretch"]))
        .union(_between(stretches))
        .union(found(extent.selectExpr("queue", f"explode(array({', '.join(_AT_THE_ENDS)})) AS finding")))
    )


def _within(suspects: DataFrame) -> DataFrame:
    """In stretches of which it is known that something is wrong."""
    window = "OVER (PARTITION BY queue, stretch ORDER BY seq, message_id)"
    rows = suspects.selectExpr("*", f"lag(struct(seq, message_id)) {window} AS before").selectExpr(
        "queue", "message_id", f"{_WITHIN} AS finding"
    )
    return found(rows, f"if(finding.kind = 'repeated', nullif(message_id, '{NOBODY_ID}'), null)")


def _between(stretches: DataFrame) -> DataFrame:
    """Where one stretch should go on from another. They are few: one for each 32,768 events."""
    before = "lag(high) OVER (PARTITION BY queue ORDER BY stretch) AS before"
    gap = cases(("low > before + 1", _gap("before + 1", "low - 1")))
    return found(stretches.selectExpr("*", before).selectExpr("queue", f"{gap} AS finding"))
