"""Each fault that is planted in the tables of a sound store is found, and its message is named.

All of them are looked at by one audit: each is planted in a copy of the store whose queues have other names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import pytest
from pyspark.sql import SparkSession

from penstock import ManualClock
from penstock.event import HOLE
from penstock.spark.jobs.audit import EVENT_COLUMNS, audit, summary
from penstock.spark.jobs.auditing.findings import KINDS
from penstock.spark.jobs.lives import extents
from penstock.spark.jobs.states import NOBODY_ID
from tests.spark.jobs.histories import Told, opened
from tests.spark.jobs.stored import Row, Tables, changed, frames, renamed, tables_of, together

Rows = list[Row]
Found = tuple[str, str | None, int | None]


class Store:
    """The tables of a store, the ids of its messages by their names, and its events by message and kind."""

    def __init__(self, tables: Tables, ids: dict[str, str]) -> None:
        self.tables = tables
        self.ids = ids

    def seqs(self, name: str, kind: str, queue: str = "q") -> list[int]:
        return [
            row["seq"]
            for row in self.tables["events"].to_pylist()
            if (row["message_id"], row["kind"], row["queue"]) == (self.ids[name], kind, queue)
        ]


class Fault(NamedTuple):
    """Something that happens to the rows of a table, and what must be found: kind, name of a message, seq."""

    table: str
    plant: Callable[[Store, Rows], Sequence[Row]]
    found: Callable[[Store], list[tuple[str, str | None, int | None]]]


def _event(name: str, kind: str, at: int = -1, queue: str = "q") -> Callable[[Store, Row], bool]:
    return lambda store, row: row["queue"] == queue and row["seq"] == store.seqs(name, kind, queue)[at]


def _message(name: str, queue: str = "q") -> Callable[[Store, Row], bool]:
    return lambda store, row: (row["queue"], row["id"]) == (queue, store.ids[name])


def _queue(store: Store, row: Row) -> bool:
    return bool(row["name"] == "q")


def _without(which: Callable[[Store, Row], bool]) -> Callable[[Store, Rows], Rows]:
    return lambda store, rows: [row for row in rows if not which(store, row)]


def _twice(which: Callable[[Store, Row], bool]) -> Callable[[Store, Rows], Rows]:
    return lambda store, rows: [*rows, *(row for row in rows if which(store, row))]


def _with(which: Callable[[Store, Row], bool], **values: object) -> Callable[[Store, Rows], Rows]:
    """Values that are functions are given the old value."""

    def plant(store: Store, rows: Rows) -> Rows:
        return [_changed(row, values) if which(store, row) else row for row in rows]

    return plant


def _changed(row: Row, values: dict[str, object]) -> Row:
    return {**row, **{name: new(row[name]) if callable(new) else new for name, new in values.items()}}


def _back(store: Store, rows: Rows) -> Rows:
    """A message that is done is stored again."""
    (like,) = (row for row in rows if _message("waits")(store, row))
    return [*rows, {**like, "id": store.ids["done"], "state": "ready"}]


def _stray(store: Store, rows: Rows) -> Rows:
    """A message that no event knows."""
    (like,) = (row for row in rows if _message("waits")(store, row))
    return [*rows, {**like, "id": STRAY}]


STRAY = "018bcfe5-6800-7000-8000-00000000000f"


def _fewer_attempts(settings: str) -> str:
    return msgspec.json.encode({**msgspec.json.decode(settings), "max_attempts": 1}).decode()


#: What is planted -> the table, how, and the findings that must be among those of the store.
FAULTS: dict[str, Fault] = {
    "lost": Fault(
        "messages",
        _without(_message("waits")),
        lambda s: [("lost", "waits", s.seqs("waits", "updated")[0])],
    ),
    "left behind": Fault("messages", _back, lambda s: [("left", "done", s.seqs("done", "acked")[0])]),
    "out of nowhere": Fault("messages", _stray, lambda s: [("left", STRAY, None)]),
    "listed twice": Fault(
        "messages",
        _twice(_message("waits")),
        lambda s: [("duplicate", "waits", s.seqs("waits", "updated")[0])],
    ),
    "state differs": Fault(
        "messages",
        _with(_message("held"), state="ready"),
        lambda s: [("differs", "held", s.seqs("held", "leased")[0])],
    ),
    "attempts differ": Fault(
        "messages",
        _with(_message("held"), attempts=2),
        lambda s: [("differs", "held", s.seqs("held", "leased")[0])],
    ),
    "attempts of one that was never leased": Fault(
        "messages",
        _with(_message("delayed"), attempts=1 << 24),
        lambda s: [("differs", "delayed", s.seqs("delayed", "enqueued")[0])],
    ),
    "another lease is stored": Fault(
        "messages",
        _with(_message("held"), lease_expires_at_ns=lambda at_ns: at_ns + 1),
        lambda s: [("differs", "held", s.seqs("held", "leased")[0])],
    ),
    "wrong payload": Fault(
        "messages",
        _with(_message("waits"), payload=b"waits st1ll"),
        lambda s: [("payload", "waits", s.seqs("waits", "updated")[0])],
    ),
    "wrong headers": Fault(
        "messages",
        _with(_message("delayed"), headers=[("type", "mail")]),
        lambda s: [("payload", "delayed", s.seqs("delayed", "enqueued")[0])],
    ),
    "double lease": Fault(
        "events",
        _with(_event("retried", "released"), kind="extended"),
        lambda s: [("double_lease", "retried", s.seqs("retried", "leased")[1])],
    ),
    "released early": Fault(
        "events",
        _with(_event("retried", "released"), at_ns=lambda at_ns: at_ns - 20 * 10**9),
        lambda s: [("early_release", "retried", s.seqs("retried", "released")[0])],
    ),
    "illegal transition": Fault(
        "events",
        _with(_event("done", "leased"), kind="purged"),
        lambda s: [("illegal", "done", s.seqs("done", "acked")[0])],
    ),
    "enqueued twice": Fault(
        "events",
        _with(_event("waits", "updated"), kind="enqueued"),
        lambda s: [("duplicate", "waits", s.seqs("waits", "updated")[0])],
    ),
    "over-delivered": Fault(
        "events",
        _with(_event("retried", "leased"), attempt=4),
        lambda s: [("over_delivered", "retried", s.seqs("retried", "leased")[-1])],
    ),
    "a delivery that is not counted": Fault(
        "events",
        _with(_event("retried", "leased"), attempt=2),
        lambda s: [("attempts", "retried", s.seqs("retried", "leased")[-1])],
    ),
    "a gap": Fault(
        "events",
        _without(_event("extended", "extended")),
        lambda s: [("gap", None, s.seqs("extended", "extended")[0])],
    ),
    "a gap at the end": Fault(
        "events", _without(_event("held", "leased")), lambda s: [("gap", None, s.seqs("held", "leased")[0])]
    ),
    "a gap at the beginning": Fault(
        "events",
        lambda store, rows: [row for row in rows if (row["queue"], row["seq"]) != ("q", 1)],
        lambda s: [("gap", None, 1)],
    ),
    "a repetition": Fault(
        "events",
        _twice(_event("extended", "extended")),
        lambda s: [("repeated", "extended", s.seqs("extended", "extended")[0])],
    ),
    "beyond the last": Fault(
        "queues",
        _with(_queue, last_seq=lambda seq: seq - 1),
        lambda s: [("beyond", None, s.seqs("held", "leased")[0])],
    ),
    "lost on the way": Fault(
        "events",
        _with(_event("died", "enqueued", queue="dead"), extra=""),
        lambda s: [("lost", "died", s.seqs("died", "dead")[0])],
    ),
    "never left": Fault(
        "events",
        _with(_event("moved", "moved"), kind="purged", extra=""),
        lambda s: [("duplicate", "moved", s.seqs("moved", "enqueued", "other")[0])],
    ),
    "counter drift": Fault(
        "queues", _with(_queue, ready=lambda count: count + 1), lambda s: [("counter", None, None)]
    ),
    "total drift": Fault(
        "queues", _with(_queue, acked_total=lambda count: count - 1), lambda s: [("counter", None, None)]
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Store:
    clock = ManualClock()
    with opened(tmp_path_factory.mktemp("sound") / "store", clock) as ps:
        told = Told(ps, clock)
        told.tell()
        return Store(_as_archived(tables_of(ps)), told.ids)


def _as_archived(tables: Tables) -> Tables:
    """Bodies as an archive has them: each by the event that brought it."""
    brought: dict[tuple[str, str], int] = {}
    for row in tables["events"].to_pylist():
        if row["kind"] in ("enqueued", "updated"):
            brought[row["queue"], row["message_id"]] = row["seq"]
    bodies = changed(
        tables["bodies"], lambda rows: [{**row, "seq": brought[row["queue"], row["id"]]} for row in rows]
    )
    return {**tables, "bodies": bodies}


@pytest.fixture(scope="module")
def findings(spark: SparkSession, sound: Store) -> dict[str, set[Found]]:
    """What an audit of all faults at once finds, by fault; queues are named after them."""
    copies = [sound.tables]
    for name, fault in FAULTS.items():
        tables = dict(sound.tables)
        tables[fault.table] = changed(tables[fault.table], lambda rows, f=fault: f.plant(sound, rows))  # type: ignore[misc]
        copies.append(renamed(tables, lambda queue, n=name: f"{n}:{queue}"))  # type: ignore[misc]
    read = frames(spark, together(copies))
    rows = audit(*(read[table] for table in ("events", "queues", "messages", "bodies", "entries"))).collect()
    found: dict[str, set[Found]] = {}
    for row in rows:
        assert row.kind in KINDS
        assert row.what
        found.setdefault(row.queue.rpartition(":")[0], set()).add((row.kind, row.message_id, row.seq))
    return found


def test_a_sound_store_has_no_findings(findings: dict[str, set[Found]]) -> None:
    assert findings.get("", set()) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_named(name: str, findings: dict[str, set[Found]], sound: Store) -> None:
    for kind, message, seq in FAULTS[name].found(sound):
        assert (kind, sound.ids.get(message or "", message), seq) in findings[name]


def test_every_kind_of_finding_is_planted(sound: Store) -> None:
    planted = {kind for fault in FAULTS.values() for kind, _, _ in fault.found(sound)}
    assert planted | {"damaged"} == set(KINDS)


@pytest.mark.parametrize(
    "name", ["lost", "wrong payload", "double lease", "a gap", "a repetition", "lost on the way"]
)
def test_a_fault_is_told_once(name: str, findings: dict[str, set[Found]], sound: Store) -> None:
    """But for the counters, which count what is there."""
    told = {one for one in findings[name] if one[0] != "counter"}
    assert len(told) == 1, told


def test_what_the_settings_were_counts_as_long_as_it_did(spark: SparkSession, sound: Store) -> None:
    """`max_attempts` was lowered since: nobody was delivered too often."""
    lowered = changed(
        sound.tables["queues"], lambda rows: [_changed(r, {"settings": _fewer_attempts}) for r in rows]
    )
    read = frames(spark, {**sound.tables, "queues": lowered})
    events, queues, entries = read["events"], read["queues"], read["entries"]
    assert audit(events, queues, administration=entries).collect() == []
    found = audit(events, queues).collect()
    assert {(one.kind, one.message_id) for one in found} == {("over_delivered", sound.ids["retried"])}


@pytest.mark.parametrize(
    ("read_later_s", "lost"), [(None, False), (-1, False), (1, True)], ids=["not told", "before", "after"]
)
def test_what_an_archive_has_not_come_to_yet_is_not_missed(
    spark: SparkSession, sound: Store, read_later_s: int | None, lost: bool
) -> None:
    """The queue that a dead letter went to is archived up to before it came, as a killed run leaves it."""
    (came,) = sound.seqs("died", "enqueued", "dead")
    events = sound.tables["events"].to_pylist()
    (at_ns,) = (row["at_ns"] for row in events if (row["queue"], row["seq"]) == ("dead", came))
    rows = [row for row in events if row["queue"] != "dead" or row["seq"] < came]
    read = spark.createDataFrame(
        [tuple(row[name] for name in EVENT_COLUMNS) for row in rows],
        "queue string, seq bigint, at_ns bigint, kind string, message_id string, attempt int, due_ns bigint, "
        "consumer string, reason string, extra string",
    )
    if read_later_s is not None:
        last = f"CASE queue WHEN 'dead' THEN {came - 1} ELSE bigint(1e9) END AS read_seq"
        read = read.selectExpr("*", last, f"{at_ns + read_later_s * 10**9} AS read_at_ns")
    found = {(one.kind, one.message_id) for one in audit(read).collect()}
    assert found == ({("lost", sound.ids["died"])} if lost else set())


def test_what_is_in_a_hole_is_not_missed(spark: SparkSession, sound: Store) -> None:
    """A repair has put it where the frame was that had a dead letter come; it has the time of the repair."""
    came = _event("died", "enqueued", queue="dead")
    hole = _with(came, message_id=NOBODY_ID, kind="repaired", extra=HOLE, at_ns=lambda at_ns: at_ns + 10**9)
    events = changed(sound.tables["events"], lambda rows: hole(sound, rows))
    assert audit(frames(spark, {"events": events})["events"]).collect() == []


def test_a_summary_counts_and_lists(spark: SparkSession, sound: Store) -> None:
    broken = changed(sound.tables["messages"], lambda rows: rows[:1])
    read = frames(spark, {**sound.tables, "messages": broken})
    events, queues, messages = read["events"], read["queues"], read["messages"]
    extent = extents(events, queues)
    found = summary(audit(events, queues, messages, extent=extent), extent, messages, limit=2)
    assert (found.ok, found.queues, found.partly, found.messages) == (False, 3, 0, 1)
    assert found.events == sound.tables["events"].num_rows
    assert found.counts["lost"] == sound.tables["messages"].num_rows - 1
    assert len(found.findings) == 2
