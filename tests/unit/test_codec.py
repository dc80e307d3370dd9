"""Stored bytes: what is written is read back, what is damaged is refused, and version 1 stays version 1."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.backends.embedded import rows
from penstock.backends.embedded.rows import Counters, CursorRow, Job, StateRow
from penstock.codec import frame
from penstock.codec.body import Body, after_order, before_order, decode_body, encode_body, encode_variable
from penstock.codec.entry import decode_entries, decode_entry_head, encode_entries
from penstock.codec.frame import Counted, decode_events, decode_head, encode_frame, encode_run
from penstock.errors import StorageCorrupt
from penstock.event import KIND_CODES, Entry, Event, Kind

U16, U32, U64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
WORLD = "world é"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
u16s, u32s, u64s = st.integers(0, U16), st.integers(0, U32), st.integers(0, U64)
ids = st.binary(min_size=16, max_size=16)

bodies = st.builds(
    Body,
    priority=st.integers(0, 9),
    weight=st.integers(1, 1000),
    enqueued_at_ns=u64s,
    order_ns=u64s,
    expires_at_ns=u64s,
    fairness_key=texts,
    headers=st.dictionaries(texts, texts, max_size=3),
    throttle_keys=st.lists(texts, max_size=3).map(tuple),
    dedup_id=st.none() | texts,
    payload=st.binary(max_size=64),
    placed=st.booleans(),
)


# Bodies


@given(body=bodies)
def test_a_body_is_read_back_as_it_was_written(body: Body) -> None:
    assert decode_body(encode_body(body)) == body


@given(body=bodies)
def test_a_body_that_is_packed_in_parts_is_the_same_bytes(body: Body) -> None:
    variable = encode_variable((body.fairness_key, body.headers, (), None))
    parts = (
        before_order(body.priority, body.weight, body.enqueued_at_ns)
        + body.order_ns.to_bytes(8, "big")
        + after_order(variable)
        + body.payload
    )
    assert decode_body(parts) == Body(
        body.priority,
        body.weight,
        body.enqueued_at_ns,
        body.order_ns,
        0,
        body.fairness_key,
        body.headers,
        (),
        None,
        body.payload,
    )


@given(body=bodies, data=st.data())
def test_a_body_that_ends_before_its_payload_is_corrupt(body: Body, data: st.DataObject) -> None:
    raw = encode_body(body)
    with pytest.raises(StorageCorrupt):
        decode_body(raw[: data.draw(st.integers(0, len(raw) - len(body.payload) - 1))])


@given(raw=st.binary(max_size=80))
def test_any_bytes_are_a_body_or_corrupt(raw: bytes) -> None:
    body_or_corrupt(raw)


@settings(max_examples=300)
@given(body=bodies, flips=st.lists(st.tuples(st.integers(0), st.integers(0, 7)), min_size=1, max_size=3))
def test_a_damaged_body_is_another_body_or_corrupt(body: Body, flips: list[tuple[int, int]]) -> None:
    """A body has no checksum of its own: the store's blocks have one."""
    body_or_corrupt(flipped(encode_body(body), flips))


def test_text_that_is_not_utf_8_makes_a_body_corrupt() -> None:
    raw = encode_body(Body(4, 1, 1, 2, 3, "key", {"name": "value"}, ("throttle",), "dedup", b"payload"))
    for text in (b"key", b"name", b"value", b"throttle", b"dedup"):
        with pytest.raises(StorageCorrupt):
            decode_body(raw.replace(text, b"\xff" * len(text)))


def body_or_corrupt(raw: bytes) -> None:
    with contextlib.suppress(StorageCorrupt):
        assert isinstance(decode_body(raw), Body)


def flipped(raw: bytes, flips: list[tuple[int, int]]) -> bytes:
    damaged = bytearray(raw)
    for place, bit in flips:
        damaged[place % len(raw)] ^= 1 << bit
    return bytes(damaged)


# Frames of events


def column(values: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[Any]:
    """One value for all rows, or one a row."""
    return values | st.lists(values, min_size=count, max_size=count)


def counted_ids(count: int) -> st.SearchStrategy[Counted]:
    last = (1 << 64) - count
    numbers = st.integers(0, last) | st.just(last)
    return st.builds(
        lambda prefix, number: Counted(prefix + number.to_bytes(8, "big"), count),
        st.binary(min_size=8, max_size=8),
        numbers,
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[Any, ...]:
    count = draw(st.integers(1, 5))
    return (
        draw(st.sampled_from(Kind)),
        draw(u64s),
        draw(st.lists(ids, min_size=count, max_size=count) | counted_ids(count)),
        draw(column(u32s, count)),
        draw(column(u64s, count)),
        draw(column(texts, count)),
        draw(column(texts, count)),
        draw(column(texts, count)),
    )


def framed(first_seq: int, operations: Sequence[tuple[Any, ...]], counts: Sequence[int]) -> bytes:
    total = sum(len(one[2]) for one in operations)
    return encode_frame(first_seq, total, 7, counts, [encode_run(*one) for one in operations])


frames = st.builds(
    framed,
    st.integers(1, 1 << 62),
    st.lists(runs(), min_size=1, max_size=3),
    st.lists(u64s, min_size=5, max_size=5),
)


@given(
    first_seq=st.integers(1, 1 << 62),
    operations=st.lists(runs(), min_size=1, max_size=3),
    counts=st.lists(u64s, min_size=5, max_size=5),
)
def test_events_are_read_back_as_they_were_written(
    first_seq: int, operations: list[tuple[Any, ...]], counts: list[int]
) -> None:
    raw = framed(first_seq, operations, counts)
    expected, seq = [], first_seq
    for kind, at_ns, raw_ids, *columns in operations:
        listed = raw_ids.some(0, len(raw_ids)) if isinstance(raw_ids, Counted) else raw_ids
        for i, raw_id in enumerate(listed):
            values = [one[i] if isinstance(one, list) else one for one in columns]
            expected.append(Event(seq, at_ns, kind, raw_id, *values))
            seq += 1
    assert list(decode_events(raw)) == expected
    head = decode_head(raw)
    assert (head.first_seq, head.count, head.last_seq) == (first_seq, len(expected), seq - 1)
    assert (head.at_ns, head.counts) == (7, tuple(counts))


@given(raw=frames, flip=st.tuples(st.integers(0), st.integers(0, 7)))
def test_a_frame_with_a_flipped_bit_is_corrupt(raw: bytes, flip: tuple[int, int]) -> None:
    with pytest.raises(StorageCorrupt):
        list(decode_events(flipped(raw, [flip])))


@given(raw=frames, data=st.data())
def test_a_frame_that_was_cut_is_corrupt(raw: bytes, data: st.DataObject) -> None:
    with pytest.raises(StorageCorrupt):
        list(decode_events(raw[: data.draw(st.integers(0, len(raw) - 1))]))


@given(raw=st.binary(max_size=120))
def test_any_bytes_are_no_frame(raw: bytes) -> None:
    with pytest.raises(StorageCorrupt):
        list(decode_events(raw))


@settings(max_examples=300)
@given(raw=frames, flips=st.lists(st.tuples(st.integers(0), st.integers(0, 7)), min_size=1, max_size=3))
def test_a_wrong_frame_whose_checksum_fits_is_events_or_corrupt(
    raw: bytes, flips: list[tuple[int, int]]
) -> None:
    events_or_corrupt(decode_events, with_checksum(flipped(raw[:-4], flips)))


@pytest.mark.parametrize("rows_written", [2, 1000, U32])
def test_a_frame_that_claims_more_rows_than_it_has_is_corrupt(rows_written: int) -> None:
    raw = bytearray(framed(1, [(Kind.LEASED, 1, [bytes(16)])], [0] * 5)[:-4])
    struct.pack_into("<I", raw, frame.HEAD.size + 2, rows_written)
    with pytest.raises(StorageCorrupt):
        list(decode_events(with_checksum(bytes(raw))))


def test_ids_that_count_cost_the_first_of_them_and_other_frames_stay_as_they_were() -> None:
    first = bytes(8) + (255).to_bytes(8, "big")
    raw = framed(1, [(Kind.ENQUEUED, 1, Counted(first, 1000))], [0] * 5)
    assert (raw[0], len(raw)) == (2, frame.HEAD.size + frame.RUN.size + 16 + 4)
    assert [event.raw_id for event in decode_events(raw, after=998)] == [
        bytes(8) + n.to_bytes(8, "big") for n in (255 + 998, 255 + 999)
    ]
    assert framed(1, [(Kind.ENQUEUED, 1, [first])], [0] * 5)[0] == 1


@pytest.mark.parametrize(
    ("first", "rows"), [(bytes(16), frame.MOST_COUNTED + 1), (bytes(16), U32), (b"\xff" * 16, 2)]
)
def test_more_ids_than_can_be_counted_are_corrupt(first: bytes, rows: int) -> None:
    with pytest.raises(StorageCorrupt):
        list(decode_events(framed(1, [(Kind.ENQUEUED, 1, Counted(first, rows))], [0] * 5)))


def with_checksum(raw: bytes) -> bytes:
    return raw + struct.pack("<I", zlib.crc32(raw))


def events_or_corrupt(decode: Callable[..., Any], raw: bytes, *args: object) -> None:
    with contextlib.suppress(StorageCorrupt):
        list(decode(raw, *args))


# Frames of users' entries


entries = st.builds(
    Entry,
    kind=texts,
    body=st.binary(max_size=20),
    labels=st.lists(texts, max_size=3),
    flags=st.lists(texts, max_size=3),
    vector=st.none() | st.lists(st.floats(allow_nan=False), min_size=1, max_size=4),
)


def entry_frame(items: list[Entry], first_seq: int) -> bytes:
    raw_ids = [n.to_bytes(16, "big") for n in range(len(items))]
    return encode_entries(items, raw_ids, first_seq, at_ns=7, vectors=9)


entry_frames = st.builds(entry_frame, st.lists(entries, min_size=1, max_size=4), st.integers(1, 1 << 62))


@given(items=st.lists(entries, min_size=1, max_size=4), first_seq=st.integers(1, 1 << 62))
def test_entries_are_read_back_as_they_were_written(items: list[Entry], first_seq: int) -> None:
    raw = entry_frame(items, first_seq)
    found = list(decode_entries(raw, WORLD))
    assert [(e.kind, e.body, e.labels, e.flags, e.vector) for e in found] == [
        (e.kind, e.body, e.labels, e.flags, e.vector) for e in items
    ]
    assert [(e.seq, e.at_ns, e.world) for e in found] == [
        (first_seq + i, 7, WORLD) for i in range(len(items))
    ]
    assert [e.id for e in found] == [f"00000000-0000-0000-0000-{n:012x}" for n in range(len(items))]
    assert decode_entry_head(raw) == (len(items), first_seq, 7, 9)


@given(raw=entry_frames, flip=st.tuples(st.integers(0), st.integers(0, 7)))
def test_entries_with_a_flipped_bit_are_corrupt(raw: bytes, flip: tuple[int, int]) -> None:
    with pytest.raises(StorageCorrupt):
        list(decode_entries(flipped(raw, [flip]), WORLD))


@given(raw=entry_frames, data=st.data())
def test_entries_that_were_cut_are_corrupt(raw: bytes, data: st.DataObject) -> None:
    with pytest.raises(StorageCorrupt):
        list(decode_entries(raw[: data.draw(st.integers(0, len(raw) - 1))], WORLD))


@given(raw=st.binary(max_size=120))
def test_any_bytes_are_no_entries(raw: bytes) -> None:
    with pytest.raises(StorageCorrupt):
        list(decode_entries(raw, WORLD))


@settings(max_examples=300)
@given(raw=entry_frames, flips=st.lists(st.tuples(st.integers(0), st.integers(0, 7)), min_size=1, max_size=3))
def test_wrong_entries_whose_checksum_fits_are_entries_or_corrupt(
    raw: bytes, flips: list[tuple[int, int]]
) -> None:
    events_or_corrupt(decode_entries, with_checksum(flipped(raw[:-4], flips)), WORLD)


@pytest.mark.parametrize("count", [0, 2, U32])
def test_entries_that_claim_another_count_than_they_have_are_corrupt(count: int) -> None:
    raw = bytearray(entry_frame([Entry("k", b"body")], 1)[:-4])
    struct.pack_into("<I", raw, 1, count)
    with pytest.raises(StorageCorrupt):
        list(decode_entries(with_checksum(bytes(raw)), WORLD))


# Rows of the embedded backend


state_rows = st.builds(
    StateRow,
    attempts=u32s,
    seq=u64s,
    since_ns=u64s,
    until_ns=u64s,
    order_ns=u64s,
    expires_at_ns=u64s,
    weight=u16s,
    lane=st.binary(max_size=20),
    consumer=texts,
    reason=texts,
)


@given(row=state_rows)
def test_a_state_row_is_read_back_as_it_was_written(row: StateRow) -> None:
    assert rows.decode_state(rows.encode_state(row)) == row


@given(weight=u16s, attempts=u32s, expires_at_ns=u64s, has_row=st.booleans())
def test_a_ready_row_is_read_back_as_it_was_written(
    weight: int, attempts: int, expires_at_ns: int, has_row: bool
) -> None:
    raw = rows.encode_ready(weight, attempts, expires_at_ns, has_row=has_row)
    assert rows.decode_ready(raw) == (has_row, weight, attempts, expires_at_ns)


counts = st.lists(st.integers(0, U64 >> 1), min_size=5, max_size=5)
packed_rows: dict[str, tuple[st.SearchStrategy[Any], Callable[[bytes], Any]]] = {
    "counters": (
        st.builds(Counters, *[st.integers(0, U64 >> 1)] * 3, counts, counts, *[st.integers(0, U64 >> 1)] * 5),
        rows.decode_counters,
    ),
    "cursor": (st.builds(CursorRow, st.integers(0, U64 >> 1), st.booleans()), rows.decode_cursor),
    "job": (
        st.builds(
            Job,
            what=st.sampled_from(["purge", "drop", "redrive", "move"]),
            qid=u32s,
            states=st.lists(st.integers(0, 5)),
            seq=st.integers(0, U64 >> 1),
            target=texts,
            ids=st.lists(ids, max_size=3),
        ),
        rows.decode_job,
    ),
}


@pytest.mark.parametrize("name", packed_rows)
@given(data=st.data())
def test_a_packed_row_is_read_back_as_it_was_written(name: str, data: st.DataObject) -> None:
    strategy, decode = packed_rows[name]
    row = data.draw(strategy)
    assert decode(rows.packed(row)) == row


DECODERS = (
    rows.decode_state,
    rows.decode_ready,
    rows.decode_dedup,
    rows.decode_counters,
    rows.decode_cursor,
    rows.decode_job,
)


@pytest.mark.parametrize("decode", DECODERS)
@given(raw=st.binary(max_size=80))
def test_any_bytes_are_a_row_or_corrupt(decode: Callable[[bytes], object], raw: bytes) -> None:
    row_or_corrupt(decode, raw)
    row_or_corrupt(decode, rows.MARK + raw)


@given(row=state_rows, data=st.data())
def test_a_state_row_that_was_cut_or_grew_is_corrupt(row: StateRow, data: st.DataObject) -> None:
    raw = rows.encode_state(row)
    for wrong in (raw[: data.draw(st.integers(0, len(raw) - 1))], raw + b"\0"):
        with pytest.raises(StorageCorrupt):
            rows.decode_state(wrong)


@pytest.mark.parametrize("name", packed_rows)
@given(data=st.data(), flips=st.lists(st.tuples(st.integers(0), st.integers(0, 7)), min_size=1, max_size=3))
def test_a_damaged_packed_row_is_another_row_or_corrupt(
    name: str, data: st.DataObject, flips: list[tuple[int, int]]
) -> None:
    strategy, decode = packed_rows[name]
    row_or_corrupt(decode, flipped(rows.packed(data.draw(strategy)), flips))


def row_or_corrupt(decode: Callable[[bytes], object], raw: bytes) -> None:
    with contextlib.suppress(StorageCorrupt):
        assert decode(raw) is not None


@pytest.mark.parametrize("decode", [decode_body, *DECODERS])
def test_bytes_of_another_version_are_refused(decode: Callable[[bytes], object]) -> None:
    # Rows of a fixed size are refused by their size alone, unless it is right.
    sizes = (60, rows.READY_ROW.size - 1, rows.DEDUP_ROW.size - 1)
    for raw in (*(version + bytes(size) for version in (b"\x02", b"\x00") for size in sizes), b"", b"\x01"):
        with pytest.raises(StorageCorrupt):
            decode(raw)


# Version 1 as it was released: a change here is a change of format, which has a procedure (docs/formats.md)


ID = bytes(range(16))
GOLDEN_BODY = Body(9, 1000, 1, 2, 3, "ké", {"type": "t"}, ("a", "b"), "dedup", b"payload", placed=True)


def test_the_bytes_of_a_body_of_version_1() -> None:
    assert encode_body(GOLDEN_BODY).hex(" ", -4) == (
        "01010903 e8000000 00000000 01000000 00000000 02000000 00000000 03000000 1894a36b c3a981a4 "
        "74797065 a17492a1 61a162a5 64656475 70706179 6c6f6164"
    )
    plain = Body(4, 1, 1, 2, 0, "", {}, (), None, b"x")
    assert encode_body(plain).hex(" ", -4) == (
        "01000400 01000000 00000000 01000000 00000000 02000000 00000000 00000000 0594a080 90c078"
    )


def test_the_bytes_of_a_frame_of_version_1() -> None:
    one_value = (Kind.LEASED, 5, [ID, ID], 1, 6, "worker", "", "")
    one_a_row = (Kind.NACKED, 5, [ID, ID], [1, 2], [6, 7], ["a", "b"], "why", "")
    raw = framed(10, [one_value, one_a_row], (1, 2, 3, 4, 5))
    assert raw.hex(" ", -4) == (
        "01040000 000a0000 00000000 00070000 00000000 00010000 00000000 00020000 00000000 00030000 "
        "00000000 00040000 00000000 00050000 00000000 00030002 00000005 00000000 00000001 00000006 "
        "00000000 00000006 00000000 00000000 00000000 01020304 05060708 090a0b0c 0d0e0f00 01020304 "
        "05060708 090a0b0c 0d0e0f77 6f726b65 72060702 00000005 00000000 00000000 00000000 00000000 "
        "0000000a 00000003 00000000 00000000 01020304 05060708 090a0b0c 0d0e0f00 01020304 05060708 "
        "090a0b0c 0d0e0f01 00000002 00000006 00000000 00000007 00000000 00000001 00000001 00000061 "
        "62776879 02999776"
    )


def test_the_bytes_of_entries_of_version_1() -> None:
    items = [Entry("kind", b"body", ["l"], ["f"], [0.5]), Entry("é", b"", [], [], None)]
    assert encode_entries(items, [ID, ID], 10, 5, 1).hex(" ", -4) == (
        "01020000 000a0000 00000000 00050000 00000000 00010000 00000000 00130000 00000102 03040506 "
        "0708090a 0b0c0d0e 0f000102 03040506 0708090a 0b0c0d0e 0f040000 00000000 00010000 00000000 "
        "009293a4 6b696e64 91a16c91 a16693a2 c3a99090 00000000 0000e03f 626f6479 3eb95498"
    )


def test_the_bytes_of_rows_of_version_1() -> None:
    row = StateRow(1, 2, 3, 4, 5, 6, 7, b"lane", "worker", "why")
    assert rows.encode_state(row).hex(" ", -4) == (
        "01000000 01000000 00000000 02000000 00000000 03000000 00000000 04000000 00000000 05000000 "
        "00000000 06000700 04000600 0000036c 616e6577 6f726b65 72776879"
    )
    assert rows.encode_ready(7, 2, 3, has_row=True).hex() == "010100070000000200" + "00000000000003"
    counters = Counters(1, 2, 3, [4, 5, 6, 7, 8], [9, 10, 11, 12, 13], 14, 15, 16, 17, 18)
    assert rows.encode_counters(counters).hex() == "019a01020395040506070895090a0b0c0d0e0f101112"
    assert rows.packed(CursorRow(5, True)).hex() == "019205c3"


def test_the_stored_numbers_of_event_kinds_never_change() -> None:
    kinds = (
        "enqueued updated leased extended acked nacked released dead redriven moved expired purged removed"
    )
    stored = {**{name: n for n, name in enumerate(kinds.split(), start=1)}, "dropped": 14, "repaired": 15}
    assert {str(kind): code for kind, code in KIND_CODES.items()} == stored
