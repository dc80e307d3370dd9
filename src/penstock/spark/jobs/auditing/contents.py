"""Payloads and headers of stored messages against those that were archived."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from penstock.spark.jobs.auditing.findings import cases, finding, found, what
from penstock.spark.jobs.lives import known_events
from penstock.spark.jobs.states import BRINGING, listed

_KEY = ["queue", "message_id"]
#: Headers have no order of their own.
_CHECKSUMS = (
    "struct(xxhash64(payload) AS payload, xxhash64(array_sort(map_entries(headers))) AS headers, "
    "octet_length(payload) AS size_bytes)"
)
#: What `checked` has in place of them.
CHECKED = "checksums"
_DIFFERENCE = cases(
    (
        "stored.payload <> archived.payload",
        finding(
            "payload",
            what(
                "its payload of %s bytes is not the one of %s bytes that event %s brought",
                "stored.size_bytes",
                "archived.size_bytes",
                "seq",
            ),
        ),
    ),
    (
        "stored.headers <> archived.headers",
        finding("payload", what("its headers are not those that event %s brought", "seq")),
    ),
)


def checked(rows: DataFrame) -> DataFrame:
    """Messages or bodies with checksums of their payloads and headers instead of those."""
    return rows.selectExpr("*", f"{_CHECKSUMS} AS {CHECKED}").drop("payload", "headers")


def contents(events: DataFrame, extent: DataFrame, messages: DataFrame, bodies: DataFrame) -> DataFrame:
    """Findings. Nothing of the contents is shown, or leaves the worker that reads it: only checksums do.

    Both are as `checked` makes them.

    The body that counts is the one that the last event brought that brought one. A body that was not archived
    yet is not compared.
    """
    bringing = known_events(events.where(f"kind IN {listed(map(str, BRINGING))}"), extent)
    brought = bringing.groupBy(*_KEY).agg(fn.expr("max(seq) AS body_seq"))
    stored = messages.selectExpr("queue", "id AS message_id", f"{CHECKED} AS stored")
    archived = bodies.where("seq IS NOT NULL").selectExpr(
        "queue", "id AS message_id", "seq", f"{CHECKED} AS archived"
    )
    newest = archived.groupBy(*_KEY).agg(
        fn.expr("max_by(archived, seq) AS archived"), fn.expr("max(seq) AS seq")
    )
    joined = (
        stored.join(newest, _KEY)
        .join(brought, _KEY, "left")
        # Without such an event in what is known of history, nothing has replaced the body since.
        .where("body_seq IS NULL OR body_seq <= seq")
    )
    return found(joined.selectExpr(*_KEY, f"{_DIFFERENCE} AS finding"), "message_id")
