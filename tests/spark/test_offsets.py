"""Where a stream stands and goes next: arithmetic of offsets, without Spark or a store."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.backends.bulk import Extent
from penstock.spark.offsets import Noted, advanced, initial, losses, noted, spans, unchanged


def extent(first: int, last: int) -> Extent:
    return Extent(first, last, last - first + 1)


EXTENTS = {"b": extent(1, 10), "a": extent(6, 20)}


def test_a_new_stream_starts_before_the_first_event_that_is_left_or_after_the_last() -> None:
    assert initial("earliest", EXTENTS) == {"a": 5, "b": 0}
    assert initial("latest", EXTENTS) == {"a": 20, "b": 10}
    assert initial({"a": 7}, EXTENTS) == {"a": 7, "b": 0}


def test_offsets_are_in_the_order_of_names_for_spark_compares_their_texts() -> None:
    assert json.dumps(initial("earliest", EXTENTS)) == '{"a": 5, "b": 0}'
    assert json.dumps(advanced({"b": 3, "a": 7}, EXTENTS, None)) == '{"a": 20, "b": 10}'


def test_without_a_limit_everything_is_next() -> None:
    assert advanced({"a": 7, "b": 10}, EXTENTS, None) == {"a": 20, "b": 10}


def test_a_queue_that_is_new_is_put_down_first_and_read_by_the_batch_after() -> None:
    joined = advanced({"b": 10}, EXTENTS, None)

    assert joined == {"a": 5, "b": 10}
    assert advanced(joined, EXTENTS, None) == {"a": 20, "b": 10}


def test_a_queue_that_was_made_anew_starts_again() -> None:
    anew = advanced({"a": 7, "b": 300}, EXTENTS, None)

    assert anew == {"a": 20, "b": 0}
    assert advanced(anew, EXTENTS, None) == {"a": 20, "b": 10}


def test_a_queue_that_is_gone_is_left_out() -> None:
    assert advanced({"a": 7, "gone": 5}, EXTENTS, None) == {"a": 20, "b": 0}


def test_what_retention_has_removed_is_passed_over_also_where_nothing_is_left() -> None:
    assert advanced({"a": 2}, {"a": extent(6, 20)}, 3) == {"a": 8}
    assert advanced({"a": 2}, {"a": extent(21, 20)}, None) == {"a": 20}


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ({"a": [4, 0]}, "queue 'a': events 5 to 5 were removed by retention before they were read"),
        ({"gone": [7, 0]}, "queue 'gone', which was read up to 7, does not exist any more"),
        ({"b": [11, 0]}, "queue 'b' was read up to 11, but its journal ends at 10"),
        ({"old": [5, 1]}, "queue 'old' was read up to 5, and then deleted and made anew"),
    ],
)
def test_what_can_never_be_read_is_told(start: Noted, says: str) -> None:
    (loss,) = losses(start, {**EXTENTS, "old": Extent(1, 10, 10, created_at_ns=2)})
    assert says in loss


def test_a_queue_is_told_from_another_that_had_its_name_where_that_is_known() -> None:
    extents = {"a": Extent(1, 10, 10, created_at_ns=2), "b": Extent(1, 10, 10)}
    start = {"a": [4, 1], "b": [5, 1]}

    assert unchanged(start, extents) == {"b": 5}
    put_down = noted(advanced(unchanged(start, extents), extents, None), extents)
    assert put_down == {"a": [0, 2], "b": [10, 0]}
    assert spans(start, put_down) == {"b": [10, 0]}
    read = noted(advanced(unchanged(put_down, extents), extents, None), extents)
    assert spans(put_down, read) == {"a": [10, 2]}


def test_a_stream_that_is_behind_but_not_too_far_has_lost_nothing() -> None:
    assert losses({"a": [5, 0], "b": [10, 7]}, EXTENTS) == []


QUEUES = st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 50), min_size=1)


@given(QUEUES, st.integers(1, 60))
def test_a_limit_is_used_up_and_never_exceeded(waiting: dict[str, int], limit: int) -> None:
    start = dict.fromkeys(waiting, 0)
    extents = {name: extent(1, last) for name, last in waiting.items()}
    end = advanced(start, extents, limit)

    assert sum(end.values()) == min(limit, sum(waiting.values()))
    assert all(end[name] <= waiting[name] for name in waiting)


@given(QUEUES, st.integers(1, 60))
def test_nobody_with_events_left_gets_less_than_another_by_more_than_one(
    waiting: dict[str, int], limit: int
) -> None:
    end = advanced(dict.fromkeys(waiting, 0), {n: extent(1, last) for n, last in waiting.items()}, limit)
    unfinished = [end[name] for name in waiting if end[name] < waiting[name]]

    assert max(end.values()) - min(unfinished, default=max(end.values())) <= 1


def test_under_a_limit_of_one_every_queue_has_its_turn_though_one_never_ends() -> None:
    offset = {"a": 0, "b": 0, "c": 0}
    for batch in range(12):
        endless = {"a": extent(1, 1000 + batch), "b": extent(1, 2), "c": extent(1, 2)}
        offset = advanced(offset, endless, 1)

    assert offset == {"a": 8, "b": 2, "c": 2}
