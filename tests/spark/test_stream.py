"""The stream of journals: every event once, from where it was asked to start, and no loss without a word."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import penstock
from penstock import NewMessage, Penstock, Queue
from penstock.errors import InvalidConfig, QueueNotFound, StorageCorrupt
from penstock.spark import queues, stream
from penstock.spark.offsets import DataLost
from tests.spark.micro import Query, read_up_to, seqs
from tests.spark.stores import broken, place


@pytest.fixture
def ps(tmp_path: Path) -> Any:
    with penstock.open(f"rocksdb:{tmp_path / 'store'}?durability=os") as ps:
        yield ps


@pytest.fixture
def query(ps: Penstock) -> Callable[..., Query]:
    return lambda **options: Query(ps, **options)


def fill(queue: Queue, events: int) -> None:
    queue.enqueue_many([NewMessage(b"x")] * events)


def snapshots(ps: Penstock) -> set[str]:
    return set(os.listdir(Path(place(ps), "snapshots")))


def test_everything_is_read_once_and_then_what_is_new(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("orders"), 30)
    fill(ps.create_queue("mails"), 20)
    reading = query()

    first = reading.run()
    fill(ps.queue("orders"), 5)
    second = reading.run()

    assert (seqs(first, "orders"), seqs(first, "mails")) == ([*range(1, 31)], [*range(1, 21)])
    assert (seqs(second, "orders"), seqs(second, "mails")) == ([*range(31, 36)], [])
    assert reading.run() == []
    assert list(read_up_to(reading.ends[-1]).items()) == [("mails", 20), ("orders", 35)]


@pytest.mark.parametrize(
    ("start", "first"),
    [("earliest", 1), ("latest", 31), ('{"orders": 12}', 13), ('{"orders": "latest"}', 31)],
)
def test_a_new_query_starts_where_it_is_told(
    ps: Penstock, query: Callable[..., Query], start: str, first: int
) -> None:
    fill(ps.create_queue("orders"), 30)
    reading = query(startingOffsets=start)

    at_first = reading.run()
    fill(ps.queue("orders"), 5)
    assert seqs(at_first + reading.run(), "orders") == [*range(first, 36)]


@pytest.mark.parametrize("nth", [0, 1, 7, 12, 19])
def test_a_new_query_starts_at_a_time(ps: Penstock, query: Callable[..., Query], nth: int) -> None:
    queue = ps.create_queue("orders")
    for _ in range(20):
        fill(queue, 1)
    events = queue.events(limit=100)
    at_ns = events[nth].at_ns
    wanted = [event.seq for event in events if event.at_ns >= at_ns]

    assert seqs(query(startingTimestamp=at_ns).run(), "orders") == wanted


def test_a_time_that_is_still_to_come_means_what_is_new(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("orders"), 5)
    reading = query(startingTimestamp="2200-01-01")

    assert reading.run() == []
    fill(ps.queue("orders"), 2)
    assert seqs(reading.run(), "orders") == [6, 7]


def test_a_batch_has_no_more_than_it_may_and_a_short_queue_does_not_wait_behind_a_long_one(
    ps: Penstock, query: Callable[..., Query]
) -> None:
    fill(ps.create_queue("long"), 100)
    fill(ps.create_queue("short"), 5)
    reading = query(maxOffsetsPerTrigger=20)

    seen = reading.run()

    assert (seqs(seen, "long"), seqs(seen, "short")) == ([*range(1, 101)], [1, 2, 3, 4, 5])
    assert [len(batch) for batch in reading.batches] == [20, 20, 20, 20, 20, 5]
    assert seqs(reading.batches[0], "short") == [1, 2, 3, 4, 5]


def test_the_limit_is_the_one_that_spark_asks_with(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("orders"), 10)
    reader = query(maxOffsetsPerTrigger=3).reader()
    start = reader.initialOffset()

    assert reader.getDefaultReadLimit() == ReadMaxRows(3)
    assert read_up_to(reader.latestOffset(start, ReadMaxRows(4))) == {"orders": 4}
    assert read_up_to(reader.latestOffset(start, ReadAllAvailable())) == {"orders": 10}
    assert read_up_to(reader.reportLatestOffset()) == {"orders": 10}
    assert query().reader().getDefaultReadLimit() == ReadAllAvailable()


def test_what_comes_in_later_is_left_to_the_next_run(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("orders"), 4)
    reading = query(maxOffsetsPerTrigger=2)
    reader = reading.reader()
    reader.prepareForTriggerAvailableNow()
    reading.replay(reader)
    assert reading.step(reader)
    fill(ps.queue("orders"), 4)
    fill(ps.create_queue("mails"), 4)

    assert reading.step(reader)
    assert not reading.step(reader)
    assert reading.batches == [[("orders", 1), ("orders", 2)], [("orders", 3), ("orders", 4)]]


def test_one_snapshot_serves_many_batches_and_none_is_left(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("orders"), 60)
    reading = query(maxOffsetsPerTrigger=20)
    reader = reading.reader()
    reading.replay(reader)
    taken = set()
    while reading.step(reader):
        assert len(snapshots(ps)) == 1
        taken |= snapshots(ps)

    assert len(reading.batches) == 3
    assert len(taken) == 1
    assert snapshots(ps) == set()


def test_a_snapshot_that_has_run_out_is_taken_anew(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("orders"), 4)
    reading = query(maxOffsetsPerTrigger=2)
    reader = reading.reader()
    reading.replay(reader)
    reading.step(reader)
    (one,) = snapshots(ps)
    Path(place(ps), "snapshots", one).rename(Path(place(ps), "snapshots", "elsewhere"))

    assert reading.step(reader)
    assert seqs(reading.batches[-1], "orders") == [3, 4]


def test_a_stream_that_is_asked_all_the_time_takes_a_snapshot_a_second_at_most(
    ps: Penstock, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("penstock.spark.stream.monotonic", lambda: now_s)
    fill(ps.create_queue("orders"), 1)
    reading = query()
    reader = reading.reader()
    reading.replay(reader)
    assert reading.step(reader)

    fill(ps.queue("orders"), 1)
    now_s += stream.SNAPSHOT_EVERY_S / 2
    assert not reading.step(reader)
    now_s += stream.SNAPSHOT_EVERY_S
    assert reading.step(reader)
    assert reading.batches == [[("orders", 1)], [("orders", 2)]]


def test_a_batch_that_was_not_finished_is_read_again_as_it_was(
    ps: Penstock, query: Callable[..., Query]
) -> None:
    fill(ps.create_queue("orders"), 10)
    reading = query(maxOffsetsPerTrigger=4)
    reader = reading.reader()
    reading.replay(reader)
    reading.step(reader)
    reading.ends.append({"orders": [8, 0]})  # Noted, and then the query was killed: its reader stops no more.
    fill(ps.queue("orders"), 5)

    seen = reading.run()

    assert reading.batches[1] == [("orders", seq) for seq in (5, 6, 7, 8)]
    assert seqs(seen, "orders") == [*range(5, 16)]


def test_queues_that_fit_the_pattern_join_while_it_runs(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("in-1"), 3)
    reading = query(queuePattern="in-.*")
    reading.run()
    fill(ps.create_queue("in-2"), 4)
    fill(ps.create_queue("out"), 5)
    seen = reading.run()

    assert (seqs(seen, "in-1"), seqs(seen, "in-2"), seqs(seen, "out")) == ([], [1, 2, 3, 4], [])


def trim(ps: Penstock, name: str) -> int:
    """Have retention remove what it may; the first seq that is left."""
    fill(ps.queue(name), 1)
    ps.update_queue(name, journal_max_bytes=1)
    for _ in range(20):
        ps.sweep()
    ps.update_queue(name, journal_max_bytes=None)
    return ps.queue(name).stats().first_seq


def test_what_retention_has_removed_before_it_was_read_is_an_error_that_says_so(
    ps: Penstock, query: Callable[..., Query]
) -> None:
    fill(ps.create_queue("orders"), 10)
    reading = query()
    reading.run()
    fill(ps.queue("orders"), 10)
    first = trim(ps, "orders")

    with pytest.raises(DataLost) as lost:
        reading.run()

    assert str(lost.value).startswith(
        f"queue 'orders': events 11 to {first - 1} were removed by retention before they were read; "
        "failOnDataLoss=false goes on with what there is"
    )


def test_also_if_they_go_while_a_batch_is_begun_again(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("orders"), 10)
    reading = query()
    reading.run()
    fill(ps.queue("orders"), 10)
    reading.ends.append({"orders": [20, 0]})
    trim(ps, "orders")

    with pytest.raises(DataLost, match="events 11 to 2"):
        reading.run()


def test_or_is_passed_over_and_logged_where_that_is_asked_for(
    ps: Penstock, query: Callable[..., Query], caplog: pytest.LogCaptureFixture
) -> None:
    fill(ps.create_queue("orders"), 10)
    reading = query(failOnDataLoss="false")
    reading.run()
    fill(ps.queue("orders"), 10)
    first = trim(ps, "orders")
    fill(ps.queue("orders"), 3)
    last = ps.queue("orders").stats().last_seq

    with caplog.at_level(logging.WARNING, "penstock"):
        seen = reading.run()

    assert first > 11
    assert seqs(seen, "orders") == [*range(first, last + 1)]
    (told,) = {record.message for record in caplog.records if "data loss" in record.message}
    assert f"data loss: queue 'orders': events 11 to {first - 1} were removed" in told


def test_a_queue_that_was_deleted_is_a_loss(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("gone"), 10)
    reading = query()
    reading.run()
    ps.delete_queue("gone")
    with pytest.raises(DataLost, match="queue 'gone', which was read up to 10, does not exist any more"):
        reading.run()


@pytest.mark.parametrize("events", [2, 10, 25])
def test_a_queue_that_was_made_anew_is_a_loss_however_far_it_has_come(
    ps: Penstock, query: Callable[..., Query], events: int
) -> None:
    fill(ps.create_queue("orders"), 10)
    reading = query(cursor="archive")
    reading.run()
    ps.delete_queue("orders")
    fill(ps.create_queue("orders"), events)
    with pytest.raises(DataLost, match="queue 'orders' was read up to 10, and then deleted and made anew"):
        reading.run()

    assert ps.queue("orders").cursor("archive").position == 0
    assert seqs(reading.run(failOnDataLoss="false"), "orders") == [*range(1, events + 1)]
    assert reading.run() == []


def test_so_is_one_that_was_made_anew_in_the_middle_of_a_batch(
    ps: Penstock, query: Callable[..., Query]
) -> None:
    fill(ps.create_queue("orders"), 3)
    reading = query(startingOffsets="latest")
    reading.run()
    ((_, made_ns),) = reading.ends[-1].values()
    reading.ends.append({"orders": [6, made_ns]})
    ps.delete_queue("orders")
    fill(ps.create_queue("orders"), 8)
    with pytest.raises(DataLost, match="queue 'orders' was read up to 3, and then deleted and made anew"):
        reading.run()

    assert seqs(reading.run(failOnDataLoss="false"), "orders") == [*range(1, 9)]


def test_a_queue_whose_settings_were_changed_is_the_same(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("orders"), 3)
    reading = query()
    reading.run()
    ps.update_queue("orders", lease_s=5)
    fill(ps.queue("orders"), 2)
    ps.close()

    assert seqs(reading.run(), "orders") == [4, 5]


def test_a_queue_that_goes_in_the_middle_of_a_batch_is_a_loss(
    ps: Penstock, query: Callable[..., Query]
) -> None:
    fill(ps.create_queue("stays"), 3)
    fill(ps.create_queue("goes"), 3)
    reading = query()
    reading.run(startingOffsets="latest")
    fill(ps.queue("stays"), 3)
    fill(ps.queue("goes"), 3)
    reading.ends.append({"goes": [6, 0], "stays": [6, 0]})
    ps.delete_queue("goes")

    with pytest.raises(DataLost, match="queue 'goes', which was read up to 3, does not exist any more"):
        reading.run()
    assert reading.run(failOnDataLoss="false") == [("stays", 4), ("stays", 5), ("stays", 6)]


def test_a_cursor_follows_the_stream_and_keeps_retention_behind_it(
    ps: Penstock, query: Callable[..., Query]
) -> None:
    fill(ps.create_queue("orders"), 10)
    reading = query(cursor="archive")
    reading.run()
    (cursor,) = ps.queue("orders").cursors()
    fill(ps.queue("orders"), 10)
    first = trim(ps, "orders")

    assert (cursor.name, cursor.position, cursor.required) == ("archive", 10, True)
    assert first <= 11
    assert seqs(reading.run(), "orders") == [*range(11, 22)]
    assert ps.queue("orders").cursor("archive").position == 21


def test_a_cursor_is_there_before_the_first_batch_and_in_queues_that_join(
    ps: Penstock, query: Callable[..., Query]
) -> None:
    fill(ps.create_queue("orders"), 10)
    reader = query(cursor="archive", startingOffsets='{"orders": 4}').reader()
    start = reader.initialOffset()
    fill(ps.create_queue("mails"), 10)
    reader.latestOffset(start, ReadAllAvailable())

    assert ps.queue("orders").cursor("archive").position == 4
    assert [cursor.required for cursor in ps.queue("mails").cursors()] == [True]
    assert trim(ps, "orders") <= 5


def test_a_cursor_is_not_set_back_by_a_batch_that_is_done_again(
    ps: Penstock, query: Callable[..., Query]
) -> None:
    fill(ps.create_queue("orders"), 10)
    reader = query(cursor="archive").reader()
    reader.initialOffset()
    reader.commit({"orders": [7, 0]})
    reader.commit({"orders": [5, 0]})

    assert ps.queue("orders").cursor("archive").position == 7


def test_a_new_query_starts_where_its_cursor_stands(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("orders"), 10)
    ps.queue("orders").cursor("archive", required=True).commit(6)

    assert seqs(query(cursor="archive").run(), "orders") == [7, 8, 9, 10]
    assert seqs(query(cursor="archive", startingOffsets='{"orders": 3}').run(), "orders") == [*range(4, 11)]


def test_only_some_kinds_and_columns_are_read(ps: Penstock, query: Callable[..., Query]) -> None:
    queue = ps.create_queue("orders")
    fill(queue, 5)
    queue.ack([one.receipt for one in queue.lease(max_messages=3)])

    assert seqs(query(kind="acked", columns="seq,queue").run(), "orders") == [9, 10, 11]


def test_a_store_that_nobody_has_open_is_looked_into_once_a_second_at_most(
    ps: Penstock, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("penstock.spark.queues.monotonic", lambda: now_s)
    fill(ps.create_queue("orders"), 5)
    reader = query().reader()
    ps.close()
    start = reader.initialOffset()
    with penstock.open(f"rocksdb:{place(ps)}?durability=os") as again:
        fill(again.queue("orders"), 1)

    assert read_up_to(reader.latestOffset(start, ReadAllAvailable())) == {"orders": 5}
    now_s += queues.LOOK_EVERY_S
    assert read_up_to(reader.latestOffset(start, ReadAllAvailable())) == {"orders": 6}


def test_a_queue_that_is_not_there_is_named(ps: Penstock, query: Callable[..., Query]) -> None:
    fill(ps.create_queue("orders"), 1)

    with pytest.raises(QueueNotFound, match="queue 'nope' does not exist"):
        query(queue="nope,orders").run()
    with pytest.raises(InvalidConfig, match="option startingOffsets has queue 'nope', which is not read"):
        query(startingOffsets='{"nope": 5}').run()


def test_what_is_damaged_is_set_aside_batch_by_batch(tmp_path: Path) -> None:
    folder = broken(tmp_path / "store", "journal")
    with penstock.open(f"rocksdb:{folder}?durability=os") as ps:
        reading = Query(ps, queue="broken", maxOffsetsPerTrigger=1)
        with pytest.raises(StorageCorrupt, match="queue 'broken', the frame that ends with seq 2"):
            reading.run()
        reading = Query(ps, rejectsPath=tmp_path / "rejects", maxOffsetsPerTrigger=2)

        assert reading.run() == [("broken", 1), ("sound", 1), ("sound", 2), ("broken", 3), ("sound", 3)]
    told = [
        json.loads(line)
        for file in (tmp_path / "rejects").iterdir()
        for line in file.read_text().splitlines()
    ]
    assert {one["name"] for one in told} == {"broken"}
    assert sum(one["rows"] for one in told) == 1
