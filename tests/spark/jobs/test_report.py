"""What a report measures is what a plain walk through the same history finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock import ManualClock
from penstock.clock import NS_PER_S
from penstock.spark.jobs.report import Asked, Tables, report
from penstock.spark.jobs.reporting.buckets import Buckets
from penstock.spark.jobs.reporting.facts import Facts, Moment
from penstock.spark.jobs.reporting.measures import spans
from tests.spark.jobs.histories import opened
from tests.spark.jobs.replay import FAILED, Replay, percentile
from tests.spark.jobs.stored import Row, changed, frames, tables_of
from tests.spark.jobs.stored import Tables as Stored
from tests.spark.jobs.workload import Day

_KINDS = {
    "enqueued": ("enqueued",),
    "delivered": ("leased",),
    "acked": ("acked",),
    "failed": FAILED,
    "dead": ("dead",),
}


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Stored, int]:
    """Half an hour of it, with all bodies kept for an archive; and the time at its end."""
    clock = ManualClock()
    with opened(tmp_path_factory.mktemp("day") / "store", clock) as ps:
        company = Day(ps, clock, seed=5)
        for queue in ps.queues():
            ps.queue(queue.name).cursor("archive", required=True)
        company.play(0.5)
        return tables_of(ps), clock.now_ns()


@pytest.fixture(scope="module")
def tables(spark: SparkSession, day: tuple[Stored, int]) -> Iterator[dict[str, DataFrame]]:
    read = frames(spark, day[0])
    events = read["events"].persist()
    yield {**read, "events": events}
    events.unpersist()


@pytest.fixture(scope="module")
def facts(tables: dict[str, DataFrame], day: tuple[Stored, int]) -> Facts:
    given = Tables(tables["events"], tables["queues"], tables["messages"], tables["bodies"])
    return report(given, Asked("a day", now_ns=day[1], seen_at_ns=day[1]))


@pytest.fixture(scope="module")
def replay(day: tuple[Stored, int]) -> Replay:
    return Replay(day[0]["events"].to_pylist(), without=("emails-dead",))


def _buckets(facts: Facts) -> Buckets:
    return Buckets(facts.since_ns, round(facts.bucket_s * NS_PER_S), len(facts.timeline))


def _ends(facts: Facts) -> Iterator[tuple[Moment, int, int]]:
    """Each moment with its first and its last nanosecond."""
    buckets = _buckets(facts)
    for piece, moment in enumerate(facts.timeline):
        yield moment, buckets.edge_ns(piece), buckets.edge_ns(piece + 1)


def test_each_moment_has_its_events(facts: Facts, replay: Replay) -> None:
    assert len(facts.timeline) > 50
    for moment, first_ns, end_ns in _ends(facts):
        assert moment.at_ns == first_ns
        for name, kinds in _KINDS.items():
            assert getattr(moment, name) == replay.count(kinds, first_ns, end_ns), name


def test_each_moment_has_what_was_there_at_its_end(facts: Facts, replay: Replay) -> None:
    for moment, _, end_ns in _ends(facts):
        assert (moment.waiting, moment.leased) == (replay.waiting(end_ns), replay.leased(end_ns))


def test_each_moment_has_the_age_of_the_oldest(facts: Facts, replay: Replay, day: tuple[Stored, int]) -> None:
    ages = []
    for moment, _, end_ns in _ends(facts):
        if end_ns <= day[1]:  # The last one ends in the future.
            ages.append(moment.oldest_s)
            assert moment.oldest_s == replay.oldest_ns(end_ns) / NS_PER_S
    assert max(ages) > 0


def test_each_moment_has_its_percentiles(facts: Facts, replay: Replay) -> None:
    for moment, first_ns, end_ns in _ends(facts):
        for found, measured in ((moment.wait_s, replay.waited), (moment.work_s, replay.worked)):
            values = [span_ns for _, _, at_ns, span_ns in measured if first_ns <= at_ns < end_ns]
            expected = [percentile(values, part) for part in (0.5, 0.95, 0.99)]
            assert found == spans(None if expected[0] is None else [one or 0 for one in expected])


def test_queues_have_lines_of_their_own(facts: Facts, replay: Replay) -> None:
    by_queue = Counter(one.queue for one in facts.timeline_by_queue)
    assert by_queue == dict.fromkeys(("emails", "thumbnails", "invoices"), len(facts.timeline))
    buckets = _buckets(facts)
    thumbnails = [one for one in facts.timeline_by_queue if one.queue == "thumbnails"]
    for piece, moment in enumerate(thumbnails[:-1]):
        end_ns = buckets.edge_ns(piece + 1)
        assert moment.waiting == replay.waiting(end_ns, "thumbnails")
        assert moment.oldest_s == replay.oldest_ns(end_ns, "thumbnails") / NS_PER_S


def test_the_table_of_queues(facts: Facts, replay: Replay, day: tuple[Stored, int]) -> None:
    stored = {row["name"]: row for row in day[0]["queues"].to_pylist()}
    assert [row.queue for row in facts.queues] == ["emails", "thumbnails", "invoices", "emails-dead"]
    assert facts.dead_letter_queues == ("emails-dead",)
    for row in facts.queues[:3]:
        counters = stored[row.queue]
        assert (row.enqueued, row.acked) == (counters["enqueued_total"], counters["acked_total"])
        assert row.failed == counters["failed_total"]
        assert (row.waiting, row.leased) == (counters["delayed"] + counters["ready"], counters["leased"])
        assert row.oldest_s == replay.oldest_ns(day[1], row.queue) / NS_PER_S


def test_attempts_and_reasons(facts: Facts, day: tuple[Stored, int]) -> None:
    events = day[0]["events"].to_pylist()
    delivered = Counter(row["attempt"] for row in events if row["kind"] == "leased")
    assert {row.attempt: row.delivered for row in facts.attempts} == delivered
    reasons = Counter((row["queue"], row["reason"]) for row in events if row["kind"] == "dead")
    assert {(row.queue, row.reason): row.count for row in facts.deaths} == {
        (queue, reason.split("\n")[-1]): count for (queue, reason), count in reasons.items()
    }
    told = {row.reason for row in facts.failures}
    assert "TimeoutError: smtp.example did not answer" in told, "of a traceback, its last line"


def test_shares_are_those_of_pieces_in_which_a_key_went_short(
    facts: Facts, replay: Replay, day: tuple[Stored, int]
) -> None:
    bodies = day[0]["bodies"].to_pylist()
    keys = {row["id"]: (row["fairness_key"], row["weight"], row["priority"]) for row in bodies}
    expected = replay.shares(_buckets(facts), keys)
    assert expected, "nobody had to share: the test shows nothing"
    assert {row.key: row.delivered for row in facts.shares} == {
        key: got for key, (got, _) in expected.items()
    }
    for row in facts.shares:
        assert row.due == pytest.approx(expected[row.key][1])
    assert sum(row.share for row in facts.shares) == pytest.approx(1)
    assert sum(row.due_share for row in facts.shares) == pytest.approx(1)


def test_the_slowest_keys_come_first(facts: Facts, replay: Replay) -> None:
    assert facts.deliveries == facts.deliveries_with_key == len(replay.leases)
    slowest = [row.work_s.p95 or 0 for row in facts.slowest]
    assert slowest == sorted(slowest, reverse=True)
    assert sum(row.finished for row in facts.slowest) == len(replay.worked)


def test_without_the_store_the_events_alone_tell_the_same(
    tables: dict[str, DataFrame], facts: Facts, day: tuple[Stored, int]
) -> None:
    """As an archive of a whole history has them."""
    alone = report(Tables(tables["events"], bodies=tables["bodies"]), Asked("events", now_ns=day[1]))
    common = min(len(alone.timeline), len(facts.timeline)) - 1
    assert alone.timeline[:common] == facts.timeline[:common]
    assert alone.shares == facts.shares


def test_a_part_of_the_time(
    tables: dict[str, DataFrame], facts: Facts, replay: Replay, day: tuple[Stored, int]
) -> None:
    """What was there before counts; what happened before, and after, does not. Neither time is round."""
    since_ns, until_ns = day[1] - 1203 * NS_PER_S, day[1] - 598 * NS_PER_S
    part = report(
        Tables(tables["events"], tables["queues"], tables["messages"]),
        Asked("part", day[1], day[1], since_ns, until_ns),
    )
    assert (part.since_ns, part.until_ns) == (since_ns, until_ns)
    for moment, first_ns, edge_ns in _ends(part):
        end_ns = min(edge_ns, until_ns)
        assert moment.enqueued == replay.count(("enqueued",), first_ns, end_ns)
        assert (moment.waiting, moment.leased) == (replay.waiting(end_ns), replay.leased(end_ns))
        assert moment.oldest_s == pytest.approx(replay.oldest_ns(end_ns) / NS_PER_S, abs=1e-8)
    for row in part.queues:
        if row.queue not in part.dead_letter_queues:
            for name, kinds in _KINDS.items():
                assert getattr(row, name) == replay.count(kinds, since_ns, until_ns, row.queue), name
    assert part.deliveries == replay.count(("leased",), since_ns, until_ns)
    assert part.events < facts.events / 2
    assert part.deliveries_with_key == 0
    assert (part.shares, part.slowest) == ((), ())


def test_a_time_in_which_nothing_happened(tables: dict[str, DataFrame], day: tuple[Stored, int]) -> None:
    for since_ns, until_ns in ((day[1] + NS_PER_S, None), (None, NS_PER_S), (day[1] + 1, day[1] + 2)):
        asked = Asked("idle", day[1], day[1], since_ns, until_ns)
        given = Tables(tables["events"], tables["queues"], tables["messages"])
        assert report(given, asked) == Facts(source="idle", made_at_ns=day[1])


def test_a_history_that_starts_in_the_middle(
    spark: SparkSession, day: tuple[Stored, int], facts: Facts
) -> None:
    """As retention leaves it: depth is counted back from what is there now, so it is right all the same."""
    stored = day[0]
    first = {row["name"]: row["last_seq"] // 2 for row in stored["queues"].to_pylist()}

    def cut(rows: list[Row]) -> list[Row]:
        return [row for row in rows if row["seq"] >= first[row["queue"]]]

    def shifted(rows: list[Row]) -> list[Row]:
        return [{**row, "first_seq": max(1, first[row["name"]])} for row in rows]

    read = frames(
        spark,
        {
            "events": changed(stored["events"], cut),
            "queues": changed(stored["queues"], shifted),
            "messages": stored["messages"],
        },
    )
    late = report(Tables(**read), Asked("late", day[1], day[1], facts.since_ns))
    assert facts.whole
    assert not late.whole
    firsts = [row["at_ns"] for row in stored["events"].to_pylist() if row["seq"] == first[row["queue"]]]
    compared = [(one, all_) for one, all_ in zip(late.timeline, facts.timeline, strict=True)]
    compared = [(one, all_) for one, all_ in compared if one.at_ns > max(firsts)]
    assert len(compared) > 10
    for one, all_ in compared:
        assert (one.at_ns, one.waiting, one.leased) == (all_.at_ns, all_.waiting, all_.leased)


def test_nothing_and_next_to_nothing(spark: SparkSession, day: tuple[Stored, int]) -> None:
    none = frames(spark, {"events": changed(day[0]["events"], lambda rows: [])})
    assert report(Tables(none["events"]), Asked("none", 7)) == Facts(source="none", made_at_ns=7)
    one = frames(
        spark, {"events": changed(day[0]["events"], lambda rows: [r for r in rows if r["seq"] == 1][:1])}
    )
    found = report(Tables(one["events"]), Asked("one", 7))
    assert (found.events, found.queue_count, len(found.timeline)) == (1, 1, 1)
    assert found.timeline[0].waiting == 1
