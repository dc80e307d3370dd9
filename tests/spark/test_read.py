"""spark.read.format("penstock"): what is read is what the store holds."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import penstock.spark
from penstock import Message, NewMessage, Penstock
from penstock.clock import ManualClock, SystemClock
from tests.spark.stores import QUEUES, load, place, rows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(ns: int | None) -> datetime | None:
    """As PySpark gives a time back: naive, in this process's own time zone."""
    if ns is None:
        return None
    return (EPOCH + timedelta(microseconds=ns // 1000)).astimezone().replace(tzinfo=None)


def expected(message: Message) -> dict[str, Any]:
    times = ("enqueued_at", "visible_at", "expires_at", "leased_at", "lease_expires_at")
    return {
        "queue": message.queue,
        "id": message.id,
        "state": str(message.state),
        "payload": message.payload,
        "size_bytes": len(message.payload),
        "headers": message.headers,
        "fairness_key": message.fairness_key,
        "weight": message.weight,
        "throttle_keys": list(message.throttle_keys),
        "priority": message.priority,
        "dedup_id": message.dedup_id,
        "attempts": message.attempts,
        "consumer": message.consumer,
        "reason": message.reason,
        **{f"{name}_ns": getattr(message, f"{name}_ns") for name in times},
        **{name: at(getattr(message, f"{name}_ns")) for name in times},
    }


def messages_of(store: Penstock, *states: str) -> list[dict[str, Any]]:
    found = [expected(one) for name in QUEUES for state in states for one in store.queue(name).iter(state)]
    return sorted(found, key=lambda row: (row["queue"], row["id"]))


def by_id(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: (row["queue"], row["id"]))


def test_messages_are_those_of_the_store_in_every_state(spark: SparkSession, store: Penstock) -> None:
    wanted = messages_of(store, "delayed", "ready", "leased", "done", "dead")
    columns = ",".join(wanted[0])

    found = rows(load(spark, place(store), "messages", columns=columns))

    assert {row["state"] for row in wanted} == {"delayed", "ready", "leased", "done", "dead"}
    assert by_id(found) == wanted


def test_dead_messages_are_a_table_of_their_own(spark: SparkSession, store: Penstock) -> None:
    wanted = messages_of(store, "dead")

    assert by_id(rows(load(spark, place(store), "dead", columns=",".join(wanted[0])))) == wanted


def test_events_are_those_of_the_journals(spark: SparkSession, store: Penstock) -> None:
    wanted = [
        {
            "queue": name,
            "seq": event.seq,
            "at": at(event.at_ns),
            "at_ns": event.at_ns,
            "kind": str(event.kind),
            "message_id": event.message_id,
            "attempt": event.attempt,
            "due_at": at(event.due_ns or None),
            "due_ns": event.due_ns,
            "consumer": event.consumer,
            "reason": event.reason,
            "extra": event.extra,
        }
        for name in sorted(QUEUES)
        for event in store.queue(name).events(limit=10_000)
    ]

    found = rows(load(spark, place(store), "events").orderBy("queue", "seq"))

    assert found == wanted


def test_entries_are_those_of_the_worlds(spark: SparkSession, store: Penstock) -> None:
    def told(world: str) -> list[tuple[Any, ...]]:
        found = store.journal(world).scan()
        return [(e.world, e.id, e.seq, e.at_ns, e.kind, e.body, e.labels, e.flags, e.vector) for e in found]

    columns = "world,id,seq,at_ns,kind,body,labels,flags,vector"
    everything = load(spark, place(store), "entries", columns=columns).orderBy("world", "seq")
    one = load(spark, place(store), "entries", columns=columns, world="world").orderBy("seq")

    assert [tuple(row) for row in everything.collect()] == told("_penstock") + told("other") + told("world")
    assert [tuple(row) for row in one.collect()] == told("world")


def test_queues_are_their_numbers_and_settings(spark: SparkSession, store: Penstock) -> None:
    found = {row["name"]: row for row in rows(load(spark, place(store), "queues"))}

    assert sorted(found) == sorted(QUEUES)
    for settings in store.queues():
        row, stats = found[settings.name], store.queue(settings.name).stats()
        assert msgspec.json.decode(row["settings"]) == msgspec.json.decode(msgspec.json.encode(settings))
        for name in ("delayed", "ready", "leased", "done", "dead", "first_seq", "last_seq", "enqueued_total"):
            assert row[name] == getattr(stats, name), name


def test_a_store_that_nobody_has_open_is_read_like_any_other(spark: SparkSession, store: Penstock) -> None:
    path, wanted = place(store), store.queue("orders").stats().last_seq
    store.close()

    assert load(spark, path, "events", queue="orders").count() == wanted


def test_a_store_is_named_by_its_url_and_by_load(spark: SparkSession, store: Penstock) -> None:
    by_url = load(spark, f"rocksdb:{place(store)}", "queues")
    by_load = spark.read.format("penstock").load(place(store), table="queues")

    assert by_url.count() == by_load.count() == len(QUEUES)


def test_a_store_is_named_by_its_configuration(spark: SparkSession, store: Penstock, tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(f"storage: {{path: {place(store)}}}\nqueues: {{more: {{}}}}")

    assert load(spark, str(tmp_path / "penstock.yaml"), "queues").count() == len(QUEUES)
    assert "more" not in {settings.name for settings in store.queues()}


def test_what_is_loaded_stays_as_it_was_whatever_the_owner_writes(
    spark: SparkSession, store: Penstock
) -> None:
    events = load(spark, place(store), "events", queue="orders")
    before = events.count()

    store.queue("orders").enqueue_many([NewMessage(b"later")] * 50)
    store.delete_queue("mails")

    assert events.count() == events.select("seq").distinct().count() == before
    assert events.filter("seq > 0").count() == events.filter("kind IS NOT NULL").count() == before
    assert events.count() == before
    assert len(os.listdir(Path(place(store), "snapshots"))) == 1
    assert load(spark, place(store), "events", queue="orders").count() == before + 50


def test_one_moment_serves_several_reads_and_is_gone_in_the_end(spark: SparkSession, store: Penstock) -> None:
    def read(table: str, moment: str) -> int:
        return spark.read.format("penstock").options(snapshot=moment, table=table).load().count()

    with penstock.spark.snapshot(place(store)) as moment:
        messages = read("messages", moment)
        store.queue("orders").enqueue(b"later")
        store.delete_queue("mails")
        assert (read("messages", moment), read("queues", moment)) == (messages, len(QUEUES))

    assert os.listdir(Path(place(store), "snapshots")) == []
    with pytest.raises(PySparkException, match=r"SnapshotNotFound: snapshot \S+ is not in"):
        read("messages", moment)


def test_a_read_that_cannot_be_planned_leaves_no_snapshot(spark: SparkSession, store: Penstock) -> None:
    with pytest.raises(AnalysisException, match="QueueNotFound"):
        load(spark, place(store), "events", queue="nope").count()

    assert os.listdir(Path(place(store), "snapshots")) == []


def test_where_there_was_nothing_there_is_nothing_later(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(f"rocksdb:{tmp_path / 's'}?durability=os") as ps:
        queues = load(spark, place(ps), "queues")
        assert queues.count() == 0
        ps.create_queue("later")
        assert queues.filter("last_seq >= 0").count() == queues.count() == 0


def test_several_tasks_read_at_the_same_time(spark: SparkSession, tmp_path: Path) -> None:
    # Messages are cut by their ids, in which their time is: the pace of this machine is not to count.
    clock = ManualClock(SystemClock().now_ns() - 40_000_000_000)
    with penstock.open(f"rocksdb:{tmp_path / 'large'}?durability=os", clock=clock) as ps:
        queue = ps.create_queue("large")
        for _ in range(40):
            queue.enqueue_many([NewMessage(bytes(200))] * 1_000)
            clock.advance(1)
        for table in ("events", "messages"):
            parts = load(spark, place(ps), table, minPartitions=4).selectExpr("spark_partition_id() AS part")
            counts = sorted(row["count"] for row in parts.groupBy("part").count().collect())

            assert sum(counts) == 40_000
            assert 4 <= len(counts) <= 6
            assert counts[0] > 40_000 / 8


def test_queues_are_chosen_by_name_list_and_pattern(spark: SparkSession, store: Penstock) -> None:
    def chosen(**options: str) -> set[str]:
        found = load(spark, place(store), "events", columns="queue", **options).distinct().collect()
        return {row["queue"] for row in found}

    assert chosen(queue="mails, orders") == {"mails", "orders"}
    assert chosen(queue='["ünïcode, with a comma"]') == {"ünïcode, with a comma"}
    assert chosen(queuePattern="o.*|m.*") == {"mails", "orders"}
    assert chosen(queuePattern="order") == set()


def test_states_kinds_and_times_are_chosen_by_options(spark: SparkSession, store: Penstock) -> None:
    states = load(spark, place(store), "messages", state="dead,leased").select("state").distinct()
    kinds = load(spark, place(store), "events", kind="acked,dead").select("kind").distinct()
    events = store.queue("orders").events(limit=10_000)
    middle_ns = events[len(events) // 2].at_ns
    late = load(spark, place(store), "events", queue="orders", startingTimestamp=middle_ns)
    early = load(spark, place(store), "events", queue="orders", endingTimestamp=middle_ns)

    assert {row["state"] for row in states.collect()} == {"dead", "leased"}
    assert {row["kind"] for row in kinds.collect()} == {"acked", "dead"}
    assert late.count() == sum(event.at_ns >= middle_ns for event in events)
    assert early.count() == sum(event.at_ns < middle_ns for event in events)


def test_events_are_chosen_by_offsets(spark: SparkSession, store: Penstock) -> None:
    some = load(
        spark,
        place(store),
        "events",
        startingOffsets='{"orders": 10}',
        endingOffsets='{"orders": 15, "mails": 2}',
    )
    seqs = {(row["queue"], row["seq"]) for row in some.collect()}

    assert {seq for queue, seq in seqs if queue == "orders"} == {11, 12, 13, 14, 15}
    assert {seq for queue, seq in seqs if queue == "mails"} == {1, 2}
    assert len({queue for queue, _ in seqs}) == 3


def test_only_wanted_columns_are_read_in_the_wanted_order(spark: SparkSession, store: Penstock) -> None:
    by_option = load(spark, place(store), "messages", columns="state,id")
    own = (
        spark.read.format("penstock")
        .options(url=place(store), table="messages")
        .schema("state string, id string")
    )

    assert by_option.columns == ["state", "id"]
    assert sorted(map(tuple, by_option.collect())) == sorted(map(tuple, own.load().collect()))


def test_a_schema_of_the_users_own_may_have_every_type(spark: SparkSession, store: Penstock) -> None:
    ddl = (
        "payload binary, headers map<string,string>, throttle_keys array<string>, weight int, seq bigint, "
        "expires_at timestamp, id string"
    )
    own = spark.read.format("penstock").options(url=place(store), table="messages").schema(ddl).load()
    plain = load(spark, place(store), "messages", columns=",".join(own.columns))

    def ordered(found: list[Any]) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in found), key=lambda row: str(row[-1]))

    assert ordered(own.collect()) == ordered(plain.collect())
