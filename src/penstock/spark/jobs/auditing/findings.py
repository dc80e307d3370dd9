"""What an audit finds: the kinds of faults, and the form of a finding, as expressions of Spark's SQL."""

from __future__ import annotations

from pyspark.sql import DataFrame

#: kind -> what it means. The table in the documentation is this one.
KINDS = {
    "illegal": "an event that the state before it does not allow",
    "double_lease": "leased, though another lease of it had not ended",
    "early_release": "released before its lease had run out",
    "duplicate": "there twice: enqueued while it was there, listed twice, or from a queue that it never left",
    "lost": "not stored, though no event says that it left",
    "left": "stored, though the journal does not have it, or not any more",
    "differs": "stored otherwise than the journal says: state, attempts or lease",
    "attempts": "a delivery that was counted twice, or not at all",
    "over_delivered": "delivered more often than max_attempts allows",
    "payload": "its payload or its headers are not those that were archived",
    "gap": "events are missing",
    "repeated": "two events have one number",
    "beyond": "events with numbers that the queue has not given yet",
    "counter": "a counter of the queue differs from what there is",
    "damaged": "something stored that cannot be read",
}

SCHEMA = "kind string, queue string, message_id string, seq bigint, what string"


def what(text: str, *values: str) -> str:
    """A sentence; each %s in it is the value of an expression, whatever its type."""
    if "'" in text:
        raise ValueError(f"a quotation mark in {text!r} would end it")
    shown = "".join(
        f", coalesce(if(string({value}) = '', 'unnamed', string({value})), 'unknown')" for value in values
    )
    return f"format_string('{text}'{shown})"


def finding(kind: str, text: str, seq: str = "seq") -> str:
    """A struct, to be put beside what it was found in; `text` and `seq` are expressions."""
    if kind not in KINDS:
        raise KeyError(kind)
    return f"named_struct('kind', '{kind}', 'seq', bigint({seq}), 'what', {text})"


def cases(*cases: tuple[str, str]) -> str:
    """The first finding whose test is true, or null."""
    return "CASE " + " ".join(f"WHEN {test} THEN {one}" for test, one in cases) + " END"


def found(rows: DataFrame, message_id: str = "string(null)") -> DataFrame:
    """Rows with `queue` and a `finding`, as findings; those without one are left out."""
    return rows.where("finding IS NOT NULL").selectExpr(
        "finding.kind", "queue", f"{message_id} AS message_id", "finding.seq", "finding.what"
    )
