"""Options of format("penstock"): what is accepted, and what a refusal says."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from penstock.backends.bulk import Snapshot
from penstock.errors import PenstockError
from penstock.spark.options import OPTIONS, parsed

URL = {"url": "./data"}


def test_without_more_than_a_store_all_events_are_read() -> None:
    options = parsed(URL)

    assert (options.table, options.names, options.pattern, options.columns) == ("events", None, None, None)
    assert (options.starting, options.ending, options.fail_on_data_loss) == (None, "latest", True)


def test_spark_hands_names_over_in_lower_case() -> None:
    given = {"url": "x", "maxoffsetspertrigger": "10", "failondataloss": "FALSE", "minpartitions": "3"}
    options = parsed(given, "stream")

    assert (options.max_offsets, options.fail_on_data_loss, options.partitions) == (10, False, 3)


def test_what_load_is_given_is_the_store() -> None:
    assert parsed({"path": "./data"}).url == "./data"


@pytest.mark.parametrize(
    ("text", "names"),
    [("orders", ("orders",)), ("a, b,a", ("a", "b")), ('["a,b", "c"]', ("a,b", "c")), ("für", ("für",))],
)
def test_queues_are_a_list_with_commas_or_in_json(text: str, names: tuple[str, ...]) -> None:
    assert parsed(URL | {"queue": text}).names == names


def test_worlds_are_named_like_queues() -> None:
    assert parsed(URL | {"table": "entries", "world": "a,b"}).names == ("a", "b")


def test_offsets_are_words_or_json() -> None:
    given = URL | {"startingoffsets": '{"a": 5, "b": "latest"}'}

    assert parsed(given, "stream").starting == {"a": 5, "b": "latest"}
    assert parsed(URL | {"startingoffsets": "Latest"}, "stream").starting == "latest"
    assert parsed(URL | {"endingoffsets": '{"a": 5}'}, "batch").ending == {"a": 5}


@pytest.mark.parametrize(
    ("text", "at_ns"),
    [
        ("2026-11-16T08:30:00Z", 1_794_817_800 * 10**9),
        ("2026-11-16T08:30:00", 1_794_817_800 * 10**9),
        ("2026-11-16T09:30:00.000001+01:00", 1_794_817_800 * 10**9 + 1000),
        ("1794817800000000007", 1_794_817_800 * 10**9 + 7),
        ("1969-01-01", 0),
    ],
)
def test_a_moment_is_iso_8601_or_nanoseconds(text: str, at_ns: int) -> None:
    assert parsed(URL | {"startingtimestamp": text}).starting_ns == at_ns


def test_a_snapshot_is_what_its_taker_was_given() -> None:
    snapshot = Snapshot(reader="rocksdb", id="1", place="/somewhere", at_ns=5)
    options = parsed({"snapshot": msgspec.json.encode(snapshot).decode()})

    assert options.snapshot == snapshot


Use = Literal["batch", "stream"]


@pytest.mark.parametrize(
    ("use", "given", "says"),
    [
        ("batch", {}, "option url is missing"),
        ("batch", URL | {"quue": "a"}, "option 'quue' is not known; known: url, table, queue, "),
        ("batch", URL | {"cursor": "a"}, "option cursor goes with a stream only; a batch takes: url"),
        ("stream", URL | {"snapshot": "{}"}, "option snapshot goes with a batch only"),
        ("batch", URL | {"path": "x"}, "name it once"),
        (
            "batch",
            URL | {"table": "jobs"},
            "option table is 'jobs'; accepted: messages, events, queues, dead",
        ),
        ("stream", URL | {"table": "messages"}, "option table is 'messages'; a stream reads events"),
        ("batch", URL | {"queue": "a", "queuepattern": "b"}, "queue and queuePattern exclude each other"),
        ("batch", URL | {"world": "a"}, "option world does not go with table events; use queue"),
        ("batch", URL | {"table": "entries", "queue": "a"}, "option queue does not go with table entries"),
        ("batch", URL | {"queue": " , "}, "option queue names nothing; leave it out for all"),
        ("batch", URL | {"queue": "[1]"}, "option queue is not a JSON list of names"),
        ("batch", URL | {"queue": "a\0"}, "option queue: a name 'a\\x00' has a NUL"),
        ("batch", URL | {"queuepattern": "("}, "option queuePattern is not a regular expression"),
        ("batch", URL | {"columns": "seq,sqe"}, "table events has no column 'sqe'; it has: queue, seq"),
        ("batch", URL | {"minpartitions": "0"}, "option minPartitions is '0'; accepted: 1 to 10000"),
        ("batch", URL | {"minpartitions": "many"}, "option minPartitions is 'many'"),
        ("stream", URL | {"maxoffsetspertrigger": "-1"}, "option maxOffsetsPerTrigger is '-1'"),
        ("batch", URL | {"failondataloss": "no"}, "option failOnDataLoss is 'no'; accepted: true, false"),
        (
            "batch",
            URL | {"startingoffsets": "latest"},
            "option startingOffsets is 'latest'; accepted: earliest,",
        ),
        ("stream", URL | {"startingoffsets": "late"}, "accepted: earliest, latest, or JSON such as"),
        (
            "batch",
            URL | {"endingoffsets": "earliest"},
            "option endingOffsets is 'earliest'; accepted: latest,",
        ),
        ("batch", URL | {"endingoffsets": '{"a": -1}'}, "option endingOffsets is '{\"a\": -1}'"),
        ("batch", URL | {"endingoffsets": '{"a": true}'}, "option endingOffsets is"),
        ("batch", URL | {"endingoffsets": "5"}, "option endingOffsets is '5'"),
        ("batch", URL | {"startingtimestamp": "yesterday"}, "option startingTimestamp is 'yesterday'"),
        ("batch", URL | {"startingtimestamp": "1794817800"}, "accepted: such as 2026-11-16T08:30:00Z"),
        (
            "stream",
            URL | {"startingtimestamp": "2026-11-16", "startingoffsets": "latest"},
            "startingOffsets and startingTimestamp exclude each other",
        ),
        (
            "batch",
            URL | {"table": "dead", "endingoffsets": "latest"},
            "endingOffsets does not go with table dead",
        ),
        (
            "batch",
            URL | {"state": "ready"},
            "option state does not go with table events; it goes with messages",
        ),
        (
            "batch",
            URL | {"table": "messages", "state": "lost"},
            "option state has 'lost'; accepted: delayed, re",
        ),
        ("batch", URL | {"kind": "acked,akced"}, "option kind has 'akced'; accepted: enqueued, updated"),
        (
            "batch",
            URL | {"table": "queues", "endingtimestamp": "2026-11-16"},
            "endingTimestamp does not go with",
        ),
        ("batch", URL | {"pushfilters": "1"}, "option pushFilters is '1'; accepted: true, false"),
        ("batch", {"snapshot": "7"}, "option snapshot is none; accepted: what penstock.spark.snapshot(url)"),
        ("stream", URL | {"cursor": ""}, "option cursor: a name has 0 bytes"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(use: Use, given: dict[str, str], says: str) -> None:
    with pytest.raises(PenstockError) as refused:
        parsed(given, use)

    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_source_that_may_be_either_takes_the_options_of_both() -> None:
    parsed(URL | {"cursor": "a"})
    parsed(URL | {"endingoffsets": "latest"})


def test_keys_are_named_by_where_they_are_alone() -> None:
    assert {option.name for option in OPTIONS if "key" in option.name.lower()} == {"keyFile", "keyCommand"}
