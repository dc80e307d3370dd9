"""Keys sort as their parts do, and nothing that a name can contain leads out of its own range."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Due, Meta, StateCode
from penstock.backends.embedded.lookup import ready_parts
from penstock.message import MAX_NAME_BYTES, MAX_THROTTLE_KEYS

U16, U32, U64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1

Parts = tuple[Any, ...]


def numbers(highest: int) -> SearchStrategy[int]:
    """Few, so that random keys share parts; the ends, and numbers whose bytes would sort wrongly as text."""
    return st.sampled_from([0, 1, 2, 9, 10, 255, 256, 257, highest - 1, highest]) | st.integers(0, highest)


#: Bytes that separators, terminators and escapes are made of, and that end the byte order.
hostile = st.lists(st.sampled_from([b"\0", b"/", b":", b"\xff", b"\xfe", b"\x01", b"a", "é".encode()])).map(
    b"".join
)
names = hostile | st.binary(max_size=6) | st.sampled_from([b"", b"a", b"a/b", b"a:b", b"a\0b", b"\xff" * 3])
ids = st.sampled_from([bytes(16), b"\xff" * 16, bytes(range(16))]) | st.binary(min_size=16, max_size=16)
priorities = st.integers(0, 9)
#: The others go by queue and place.
BY_TIME = [kind for kind in Due if kind != Due.LINE]
throttles = st.lists(names, max_size=3).map(tuple)


def lane_order(priority: int, key: bytes, throttle: tuple[bytes, ...]) -> Parts:
    """Priority first, then key by key, then by what throttles them: shorter names before longer ones."""
    parts = [(len(one), one) for one in sorted(set(throttle))]
    return (9 - priority, len(key), key, sum(2 + len(one) for _, one in parts), parts)


class Builder(NamedTuple):
    """A key builder: what it is built from, how its keys must sort, and whose range each key lies in."""

    parts: SearchStrategy[Parts]
    key: Callable[..., bytes]
    order: Callable[..., Parts]
    range: Callable[..., bytes]
    """The prefix of the range that a reader scans to find this key and its siblings."""


def same(*parts: Any) -> Parts:
    return parts


lanes = st.builds(keys.lane, priorities, names, throttles)

BUILDERS: dict[str, Builder] = {
    "lane": Builder(st.tuples(priorities, names, throttles), keys.lane, lane_order, keys.lane),
    "lanes_of_key": Builder(
        st.tuples(priorities, names),
        keys.lanes_of_key,
        lambda priority, key: (9 - priority, len(key), key),
        keys.lanes_of_key,
    ),
    "message": Builder(st.tuples(numbers(U32), ids), keys.message, same, lambda qid, raw_id: keys.u32(qid)),
    "ready": Builder(
        st.tuples(numbers(U32), st.tuples(priorities, names, throttles), numbers(U64), ids),
        lambda qid, lane, order_ns, raw_id: keys.ready(qid, keys.lane(*lane), order_ns, raw_id),
        lambda qid, lane, order_ns, raw_id: (qid, lane_order(*lane), order_ns, raw_id),
        lambda qid, lane, order_ns, raw_id: keys.u32(qid) + keys.lane(*lane),
    ),
    "state": Builder(
        st.tuples(numbers(U32), st.sampled_from(StateCode), ids),
        keys.state,
        same,
        lambda qid, code, raw_id: keys.state_prefix(qid, code),
    ),
    "state_prefix": Builder(
        st.tuples(numbers(U32), st.sampled_from(StateCode)),
        keys.state_prefix,
        same,
        lambda qid, code: keys.u32(qid),
    ),
    "due": Builder(
        st.tuples(st.sampled_from(BY_TIME), numbers(U64), numbers(U32), ids),
        keys.due,
        same,
        lambda what, at_ns, qid, raw_id: bytes((what,)),
    ),
    "due_prefix": Builder(
        st.tuples(st.sampled_from(BY_TIME), numbers(U64), numbers(U32)),
        keys.due_prefix,
        same,
        lambda what, at_ns, qid: bytes((what,)),
    ),
    "line": Builder(
        st.tuples(numbers(U32), numbers(U64), ids),
        keys.line,
        same,
        lambda qid, order_ns, raw_id: keys.line_prefix(qid),
    ),
    "line_prefix": Builder(st.tuples(numbers(U32)), keys.line_prefix, same, lambda qid: bytes((Due.LINE,))),
    "journal": Builder(
        st.tuples(numbers(U32), numbers(U64)), keys.journal, same, lambda number, seq: keys.u32(number)
    ),
    "held": Builder(
        st.tuples(numbers(U32), numbers(U64), ids),
        keys.held,
        same,
        lambda number, seq, raw_id: keys.u32(number),
    ),
    "meta": Builder(
        st.tuples(st.sampled_from(Meta), names), keys.meta, same, lambda kind, rest: keys.meta(kind)
    ),
    "cursor": Builder(
        st.tuples(numbers(U32), names), keys.cursor, same, lambda number, name: keys.cursor(number, b"")
    ),
    "lane_hint": Builder(
        st.tuples(numbers(U32), lanes), keys.lane_hint, same, lambda qid, lane: keys.lane_hint(qid, b"")
    ),
}

#: Tested below, each by itself.
OTHERS = {
    "u16",
    "u32",
    "u64",
    "after_prefix",
    "dedup",
    "parse_due",
    "due_number",
    "lane_priority",
    "lane_fairness_key",
    "lane_fairness_bytes",
    "lane_throttle_keys",
}


def two(builder: Builder) -> SearchStrategy[tuple[Parts, Parts]]:
    """Two tuples of parts that share some of them."""

    def mixed(drawn: tuple[Parts, Parts, list[bool]]) -> tuple[Parts, Parts]:
        one, other, shared = drawn
        return one, tuple(a if take else b for a, b, take in zip(one, other, shared, strict=False))

    shares = st.lists(st.booleans(), min_size=5, max_size=5)
    return st.tuples(builder.parts, builder.parts, shares).map(mixed)


def test_every_function_that_builds_or_takes_apart_keys_is_tested_here() -> None:
    functions = {name for name, one in vars(keys).items() if inspect.isfunction(inspect.unwrap(one))}
    assert functions == {*BUILDERS, *OTHERS}


@pytest.mark.parametrize("name", BUILDERS)
@given(data=st.data())
def test_keys_sort_as_their_parts_do_and_differ_where_they_differ(name: str, data: st.DataObject) -> None:
    builder = BUILDERS[name]
    one, other = data.draw(two(builder))
    first, second = builder.key(*one), builder.key(*other)
    assert (first < second) == (builder.order(*one) < builder.order(*other))
    assert (first == second) == (builder.order(*one) == builder.order(*other))


@pytest.mark.parametrize("name", BUILDERS)
@given(data=st.data())
def test_a_key_is_in_the_range_of_its_owner_and_of_no_other(name: str, data: st.DataObject) -> None:
    builder = BUILDERS[name]
    one, other = data.draw(two(builder))
    lower = builder.range(*one)
    upper = keys.after_prefix(lower)
    key = builder.key(*other)
    inside = lower <= key and (upper is None or key < upper)
    assert inside == (builder.range(*other) == lower)


@given(prefix=st.binary(max_size=4) | hostile, key=st.binary(max_size=6) | hostile, extend=st.booleans())
@example(prefix=b"", key=b"", extend=False)
@example(prefix=b"\xff", key=b"\xff\xff", extend=False)
@example(prefix=b"a\xff", key=b"b", extend=False)
def test_after_prefix_is_the_first_key_that_does_not_start_with_it(
    prefix: bytes, key: bytes, extend: bool
) -> None:
    key = prefix + key if extend else key
    upper = keys.after_prefix(prefix)
    assert (prefix <= key and (upper is None or key < upper)) == key.startswith(prefix)


@pytest.mark.parametrize(
    ("prefix", "upper"), [(b"", None), (b"\xff\xff", None), (b"a", b"b"), (b"a\xff", b"b")]
)
def test_after_prefix_of_the_last_bytes_has_no_end(prefix: bytes, upper: bytes | None) -> None:
    assert keys.after_prefix(prefix) == upper


@given(one=lanes, other=lanes)
def test_no_lane_starts_with_another(one: bytes, other: bytes) -> None:
    assert one == other or not one.startswith(other)


@given(priority=priorities, key=names, throttle=throttles, other_priority=priorities, other=names)
def test_the_lanes_of_a_key_start_with_it_and_no_other_lane_does(
    priority: int, key: bytes, throttle: tuple[bytes, ...], other_priority: int, other: bytes
) -> None:
    own = (other_priority, other) == (priority, key)
    lane = keys.lane(priority, key, throttle)
    assert lane.startswith(keys.lanes_of_key(other_priority, other)) == own


@given(priority=priorities, key=names, throttle=throttles)
def test_throttle_keys_are_a_set(priority: int, key: bytes, throttle: tuple[bytes, ...]) -> None:
    shuffled = (*reversed(throttle), *throttle)
    assert keys.lane(priority, key, shuffled) == keys.lane(priority, key, throttle)


@given(priority=priorities, key=st.text(max_size=8), throttle=throttles)
def test_a_lane_tells_its_fairness_key(priority: int, key: str, throttle: tuple[bytes, ...]) -> None:
    lane = keys.lane(priority, key.encode(), throttle)
    assert (keys.lane_fairness_key(lane), keys.lane_fairness_bytes(lane)) == (key, key.encode())
    assert keys.lane_priority(lane) == priority


@given(priority=priorities, key=names, throttle=st.lists(st.text(max_size=8), max_size=4))
def test_a_lane_tells_its_throttle_keys(priority: int, key: bytes, throttle: list[str]) -> None:
    lane = keys.lane(priority, key, tuple(one.encode() for one in throttle))
    assert set(keys.lane_throttle_keys(lane)) == set(throttle)


@given(qid=numbers(U32), lane=lanes, order_ns=numbers(U64), raw_id=ids)
def test_a_ready_key_is_taken_apart_into_what_it_was_built_from(
    qid: int, lane: bytes, order_ns: int, raw_id: bytes
) -> None:
    key = keys.ready(qid, lane, order_ns, raw_id)
    assert ready_parts((key, b"")) == (lane, order_ns, raw_id)
    assert key[: -keys.ORDER_AND_ID_BYTES] == keys.u32(qid) + lane


@given(what=st.sampled_from(Due), at_ns=numbers(U64), qid=numbers(U32), raw_id=ids)
def test_a_due_key_is_taken_apart_into_what_it_was_built_from(
    what: Due, at_ns: int, qid: int, raw_id: bytes
) -> None:
    key = keys.due(what, at_ns, qid, raw_id)
    assert keys.parse_due(key) == (what, at_ns, qid, raw_id)
    assert keys.due_number(key) == qid
    assert key.startswith(keys.line_prefix(qid) if what == Due.LINE else keys.due_prefix(what, at_ns, qid))


@given(qid=numbers(U32), other_qid=numbers(U32), one=st.text(max_size=3), other=st.text(max_size=3))
def test_a_dedup_key_belongs_to_its_queue_and_differs_with_the_id(
    qid: int, other_qid: int, one: str, other: str
) -> None:
    first, second = keys.dedup(qid, one, b"s"), keys.dedup(other_qid, other, b"s")
    assert (first == second) == ((qid, one) == (other_qid, other))
    assert first.startswith(keys.u32(qid))


@given(dedup_id=st.text(max_size=MAX_NAME_BYTES // 4))
def test_a_dedup_key_has_one_length_and_does_not_show_the_id(dedup_id: str) -> None:
    key = keys.dedup(1, dedup_id, b"")
    assert len(key) == 4 + 16
    assert len(dedup_id) < 3 or dedup_id.encode() not in key


@pytest.mark.parametrize(("build", "size"), [(keys.u16, 2), (keys.u32, 4), (keys.u64, 8)])
def test_numbers_have_a_fixed_width_and_refuse_what_does_not_fit(
    build: Callable[[int], bytes], size: int
) -> None:
    highest = (1 << 8 * size) - 1
    assert [len(build(n)) for n in (0, 1, highest)] == [size] * 3
    for n in (-1, highest + 1):
        with pytest.raises(OverflowError):
            build(n)


def test_the_longest_names_that_are_accepted_fit_into_a_lane() -> None:
    longest = b"\xff" * MAX_NAME_BYTES
    throttle = tuple(n.to_bytes(2, "big") + longest[2:] for n in range(MAX_THROTTLE_KEYS))
    lane = keys.lane(0, longest, throttle)
    assert len(lane) == 1 + 2 + MAX_NAME_BYTES + 2 + MAX_THROTTLE_KEYS * (2 + MAX_NAME_BYTES)
    # A state row writes the lane's length in two bytes as well.
    assert len(lane) <= U16


def test_a_name_too_long_for_its_length_is_refused_and_never_cut() -> None:
    assert keys.lane(0, b"k" * U16, ())[3:-2] == b"k" * U16
    for key, throttle in ((b"k" * (U16 + 1), ()), (b"", (b"t" * U16,)), (b"", (b"t" * (U16 + 1),))):
        with pytest.raises(OverflowError):
            keys.lane(0, key, throttle)


def test_stored_numbers_of_states_and_kinds_never_change() -> None:
    assert [(one.name, int(one)) for one in StateCode] == [
        ("DELAYED", 0),
        ("READY", 1),
        ("LEASED", 2),
        ("DONE", 3),
        ("DEAD", 4),
        ("GONE", 5),
    ]
    assert [(one.name, int(one)) for one in Due] == [
        ("LEASE", 1),
        ("DELAY", 2),
        ("TTL", 3),
        ("RETENTION", 4),
        ("DEDUP", 5),
        ("LINE", 6),
    ]
    stored = "FORMAT QUEUE COUNTERS WORLD CURSOR USER_STATE JOB LANE_HINT DUE_HINT NEXT_NUMBER OPENINGS"
    assert [(one.name, int(one)) for one in Meta][: len(stored.split())] == [
        (name, number) for number, name in enumerate(stored.split(), start=1)
    ]
