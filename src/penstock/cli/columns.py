"""What people see of each thing: the columns of its tables and the lines of its record."""

from __future__ import annotations

import codecs
import textwrap
from collections.abc import Callable
from typing import Any

from penstock.cli.rows import Row, bytes_of
from penstock.cli.tables import Column
from penstock.cli.text import count, iso, rate, shown_bytes, size, span
from penstock.cli.values import duration
from penstock.clock import NS_PER_S

PREVIEW_CHARS = 60
LINE_CHARS = 90

_STATES = {"ready": "green", "delayed": "cyan", "leased": "yellow", "dead": "red", "done": "dim"}
_KINDS = {
    "enqueued": "cyan",
    "leased": "yellow",
    "acked": "green",
    "nacked": "magenta",
    "released": "magenta",
    "dead": "red",
    "expired": "red",
    "purged": "red",
    "repaired": "red",
}


def field(name: str) -> Callable[[Row], str]:
    """The field itself, nothing for None."""
    return lambda row: "" if row.get(name) is None else str(row[name])


def number(name: str) -> Callable[[Row], str]:
    return lambda row: count(row[name])


def when(name: str) -> Callable[[Row], str]:
    """A time, by the name of its `_ns` field."""
    return lambda row: iso(row.get(name)) or ""


def listed(name: str) -> Callable[[Row], str]:
    """Items with commas between them, in lines that fit."""
    return lambda row: textwrap.fill(", ".join(str(item) for item in row.get(name) or ()), LINE_CHARS)


def pairs(name: str) -> Callable[[Row], str]:
    return lambda row: "\n".join(f"{key}: {value}" for key, value in (row.get(name) or {}).items())


def content(name: str) -> Callable[[Row], str]:
    """Bytes, all of them."""
    return lambda row: shown_bytes(bytes_of(row, name))


def preview(name: str) -> Callable[[Row], str]:
    """The beginning of the bytes, on one line."""

    def show(row: Row) -> str:
        raw = bytes_of(row, name)
        text = shown_bytes(raw if len(raw) <= PREVIEW_CHARS * 4 else _cut(raw))
        return text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 1] + "…"

    return show


def _cut(raw: bytes) -> bytes:
    """A beginning that ends with a whole character, if it is made of characters."""
    start = raw[: PREVIEW_CHARS * 4]
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(start).encode()
    except UnicodeDecodeError:
        return start


def _state_style(row: Row) -> str:
    return _STATES.get(row.get("state", ""), "")


def _lit(name: str, style: str) -> Callable[[Row], str]:
    """The style, unless the number is nothing: what is there stands out."""
    return lambda row: style if row[name] else "dim"


def event_detail(row: Row) -> str:
    """Who, why and where to, as far as the event says."""
    parts = (
        f"by {row['consumer']}" if row["consumer"] else "",
        row["reason"],
        f"→ {row['extra']}" if row["extra"] else "",
        f"for {span((row['due_ns'] - row['at_ns']) / NS_PER_S)}" if row["due_ns"] > row["at_ns"] else "",
    )
    return "  ".join(filter(None, parts))


_ID = Column("id", field("id"))
_KEY = Column("key", field("fairness_key"), flexible=True, drop=4)
_PRIORITY = Column("pri", field("priority"), right=True, drop=8)
_ATTEMPTS = Column("att", field("attempts"), right=True, drop=6)
_BYTES = Column("bytes", lambda row: count(len(bytes_of(row, "payload"))), right=True, drop=7)
_PAYLOAD = Column("payload", preview("payload"), flexible=True, drop=1)

#: state -> the columns that matter there.
MESSAGES: dict[str, tuple[Column, ...]] = {
    "ready": (
        _ID,
        Column("ready since", when("visible_at_ns"), drop=3),
        _PRIORITY,
        _KEY,
        _ATTEMPTS,
        _BYTES,
        _PAYLOAD,
    ),
    "delayed": (
        _ID,
        Column("ready at", when("visible_at_ns"), drop=3),
        _PRIORITY,
        _KEY,
        _ATTEMPTS,
        _BYTES,
        _PAYLOAD,
    ),
    "leased": (
        _ID,
        Column("lease ends", when("lease_expires_at_ns"), drop=3),
        Column("consumer", field("consumer"), flexible=True, drop=5),
        _KEY,
        _ATTEMPTS,
        _BYTES,
        _PAYLOAD,
    ),
    "done": (_ID, Column("enqueued", when("enqueued_at_ns"), drop=3), _KEY, _ATTEMPTS, _BYTES, _PAYLOAD),
    "dead": (
        _ID,
        _ATTEMPTS,
        _KEY,
        Column("reason", field("reason"), fold_chars=160, style="red"),
        _BYTES,
        _PAYLOAD,
    ),
}

MESSAGE = (
    Column("id", field("id"), style="bold"),
    Column("queue", field("queue")),
    Column("state", field("state"), style=_state_style),
    Column("attempts", field("attempts")),
    Column("receipt", field("receipt"), style="yellow"),
    Column("priority", field("priority")),
    Column("fairness key", field("fairness_key")),
    Column("weight", lambda row: "" if row["weight"] == 1 else str(row["weight"])),
    Column("throttle keys", listed("throttle_keys")),
    Column("dedup id", field("dedup_id")),
    Column("enqueued", when("enqueued_at_ns")),
    Column("visible", when("visible_at_ns")),
    Column("expires", when("expires_at_ns")),
    Column("consumer", field("consumer")),
    Column("leased", when("leased_at_ns")),
    Column("lease ends", when("lease_expires_at_ns")),
    Column("reason", field("reason"), style="red"),
    Column("headers", pairs("headers")),
    Column("bytes", lambda row: count(len(bytes_of(row, "payload")))),
    Column("payload", content("payload"), style="cyan"),
)

EVENTS = (
    Column("seq", field("seq"), right=True),
    Column("at", when("at_ns"), style="dim", drop=1),
    Column("kind", field("kind"), style=lambda row: _KINDS.get(row["kind"], "")),
    Column("message", field("message_id")),
    Column("att", field("attempt"), right=True, drop=2),
    Column("detail", event_detail, fold_chars=160),
)

ENTRIES = (
    Column("seq", field("seq"), right=True),
    Column("at", when("at_ns"), style="dim", drop=2),
    Column("id", field("id")),
    Column("kind", field("kind"), style="cyan"),
    Column("labels", listed("labels"), flexible=True, drop=1),
    Column("flags", listed("flags"), flexible=True, drop=1),
    Column("vector", lambda row: f"{len(row['vector'])} numbers" if row.get("vector") else "", drop=3),
    Column("body", preview("body"), flexible=True),
)

DUE = (
    Column("at", when("at_ns"), drop=1),
    Column("in", lambda row: span(row["in_s"]), right=True),
    Column("what", field("what"), style="cyan"),
    Column("queue", field("queue"), flexible=True),
    Column("message", field("message_id")),
)


def _order(row: Row) -> str:
    if not row["fifo"]:
        return "fair"
    return f"fifo after {span(row['delay_s'])}" if row["delay_s"] else "fifo"


QUEUES = (
    Column("queue", field("name"), style="bold", flexible=True),
    Column("lease", lambda row: span(row["lease_s"]), right=True),
    Column("attempts", field("max_attempts"), right=True, drop=1),
    Column("retry", lambda row: retry_text(row["retry"]), fold_chars=400),
    Column("dead letters", field("dead_letter"), flexible=True),
    Column("order", _order, drop=2),
    Column(
        "keep done", lambda row: span(row["retention_s"]) if row["retention_s"] else "", right=True, drop=5
    ),
    Column("dedup", lambda row: span(row["dedup_window_s"]), right=True, drop=4),
    Column("journal", lambda row: span(row["journal_retention_s"]) or "for ever", right=True, drop=3),
)


def _waits_for(row: Row) -> str:
    """The throttles that hold a key up, and when the first of them has a token."""
    keys = ", ".join(row["throttled_by"])
    return f"{keys} (in {span(row['token_in_s'])})" if row["token_in_s"] else keys


STATS = (
    Column("queue", field("queue"), style="bold", flexible=True),
    Column("ready", number("ready"), right=True, style=_lit("ready", "green")),
    Column("delayed", number("delayed"), right=True, style=_lit("delayed", "cyan")),
    Column("leased", number("leased"), right=True, style=_lit("leased", "yellow")),
    Column("dead", number("dead"), right=True, style=_lit("dead", "bold red")),
    Column("done", number("done"), right=True, style="dim", drop=3),
    Column("oldest", lambda row: span(row["oldest_ready_age_s"]), right=True, drop=1),
    Column("in/s", lambda row: rate(row["enqueue_rate_per_s"]), right=True, drop=2),
    Column("out/s", lambda row: rate(row["ack_rate_per_s"]), right=True, drop=2),
    Column("fail/s", lambda row: rate(row["fail_rate_per_s"]), right=True, style="red", drop=2),
    Column("total in", number("enqueued_total"), right=True, style="dim", drop=4),
    Column("journal", lambda row: size(row["journal_bytes"]), right=True, style="dim", drop=5),
)

STATS_OF_ONE = (
    Column("queue", field("queue"), style="bold"),
    Column("ready", number("ready"), style=_lit("ready", "green")),
    Column("delayed", number("delayed"), style=_lit("delayed", "cyan")),
    Column("leased", number("leased"), style=_lit("leased", "yellow")),
    Column("dead", number("dead"), style=_lit("dead", "bold red")),
    Column("done", number("done")),
    Column("oldest ready", lambda row: span(row["oldest_ready_age_s"])),
    Column("enqueued", lambda row: f"{row['enqueued_total']:,}  ({row['enqueue_rate_per_s']:,.1f}/s)"),
    Column("acked", lambda row: f"{row['acked_total']:,}  ({row['ack_rate_per_s']:,.1f}/s)"),
    Column("failed", lambda row: f"{row['failed_total']:,}  ({row['fail_rate_per_s']:,.1f}/s)"),
    Column(
        "journal",
        lambda row: (
            f"events {row['first_seq']:,} to {row['last_seq']:,}, {size(row['journal_bytes'])}"
            if row["last_seq"] >= row["first_seq"]
            else "empty"
        ),
    ),
    Column(
        "held back",
        lambda row: (
            f"{row['held_bodies']:,} bodies, {row['unread_by_required']:,} events unread by required cursors"
            if row["held_bodies"] or row["unread_by_required"]
            else ""
        ),
        style="bold red",
    ),
    Column("durability", field("durability")),
)

KEYS = (
    Column("key", lambda row: row["key"] or "(common)", style="bold", flexible=True),
    Column("weight", field("weight"), right=True),
    Column("ready", number("ready"), right=True, style=_lit("ready", "green")),
    Column("leased", field("leased"), right=True, style="yellow"),
    Column("oldest", lambda row: span(row["oldest_ready_age_s"]), right=True),
    Column("served", number("served"), right=True),
    Column("share", lambda row: f"{row['share']:.1%}" if row["served"] else "", right=True),
    Column("throttled", lambda row: count(row["throttled"]) if row["throttled"] else "", right=True),
    Column("waits for", _waits_for, flexible=True, style="magenta"),
)

THROTTLES = (
    Column("throttle", field("key"), style="bold", flexible=True),
    Column("rate/s", lambda row: f"{row['rate_per_s']:,.6g}", right=True),
    Column("burst", number("burst"), right=True),
    Column("left", lambda row: f"{row['tokens']:,.1f}".removesuffix(".0"), right=True),
)

CURSORS = (
    Column("cursor", field("name"), style="bold", flexible=True),
    Column("position", number("position"), right=True),
    Column("unread", number("unread"), right=True),
    Column("required", lambda row: "yes" if row["required"] else "no"),
)


GROUPS = (
    Column("group", field("name"), style="bold", flexible=True),
    Column("waiting", number("lag"), right=True),
    Column("leased", number("pending"), right=True),
    Column("dead", number("dead"), right=True),
    Column("consumers", number("consumers"), right=True),
)


def retry_text(retry: dict[str, Any]) -> str:
    """A retry policy as `--retry` takes it."""
    if retry["policy"] == "list":
        return "list:" + ",".join(_exact(delay) for delay in retry["delays_s"])
    if retry["policy"] == "fixed":
        return f"fixed:{_exact(retry['delay_s'])}"
    text = f"exponential:{_exact(retry['delay_s'])}:{_exact(retry['max_delay_s'])}"
    return text if retry["jitter"] else f"{text}:exact"


def _exact(seconds: float) -> str:
    """Nothing rounded: what is shown can be typed again."""
    text = span(seconds).replace(" ", "")
    return text if duration(text) == seconds else f"{seconds!r}s"
