"""Frames in columns are the events that each frame decodes to by itself, whatever their runs are like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.backends.embedded import keys
from penstock.backends.embedded.tables.frames import Events, runs_of
from penstock.backends.tables import columns
from penstock.backends.tables.damage import Unreadable
from penstock.codec.frame import MOST_COUNTED, Counted, decode_events, encode_frame, encode_run
from penstock.event import KIND_CODES, Kind
from penstock.message import format_id

texts = st.text(max_size=5)
small = st.integers(0, 2**32 - 1)
times = st.integers(0, 2**63 - 1)


@st.composite
def runs(draw: st.DrawFn) -> tuple[bytes, int]:
    count = draw(st.integers(1, 4))

    def column(values: Any) -> Any:
        return draw(values | st.lists(values, min_size=count, max_size=count))

    ids: Any = draw(st.lists(st.binary(min_size=16, max_size=16), min_size=count, max_size=count))
    if draw(st.booleans()):
        ids = Counted(ids[0][:8] + draw(st.integers(0, (1 << 64) - count)).to_bytes(8, "big"), count)
    raw = encode_run(
        draw(st.sampled_from(Kind)),
        draw(times),
        ids,
        column(small),
        column(times),
        column(texts),
        column(texts),
        column(texts),
    )
    return raw, count


@st.composite
def frames(draw: st.DrawFn) -> list[bytes]:
    """Frames that follow each other."""
    seq = draw(st.integers(1, 10**12))
    found = []
    for chosen in draw(st.lists(st.lists(runs(), min_size=1, max_size=3), min_size=1, max_size=4)):
        count = sum(rows for _, rows in chosen)
        found.append(encode_frame(seq, count, 7, [0] * 5, [raw for raw, _ in chosen]))
        seq += count
    return found


def last_seqs(values: list[bytes]) -> columns.Numbers:
    return np.array([list(decode_events(value))[-1].seq for value in values])


@given(frames(), st.integers(0, 3), st.integers(0, 3))
def test_events_in_columns_are_those_of_each_frame(values: list[bytes], skipped: int, left: int) -> None:
    expected = [event for value in values for event in decode_events(value)]
    low, high = expected[0].seq + skipped, expected[-1].seq + 1 - left
    expected = [event for event in expected if low <= event.seq < high]
    found = Events(runs_of(last_seqs(values), values), low, high)
    assert found.seqs.tolist() == [event.seq for event in expected]
    assert columns.id_texts(found.ids()).to_pylist() == [event.message_id for event in expected]
    assert found.attempts().tolist() == [event.attempt for event in expected]
    assert found.dues_ns().tolist() == [event.due_ns for event in expected]
    assert found.runs.at_ns[found.run].tolist() == [event.at_ns for event in expected]
    assert found.runs.kinds[found.run].tolist() == [KIND_CODES[event.kind] for event in expected]
    for which, name in enumerate(("consumer", "reason", "extra")):
        assert found.texts(which).to_pylist() == [getattr(event, name) for event in expected]


@given(frames(), st.data())
def test_a_frame_with_a_wrong_byte_is_found_among_sound_ones(
    values: list[bytes], data: st.DataObject
) -> None:
    seqs = last_seqs(values)
    damaged = data.draw(st.integers(0, len(values) - 1))
    at = data.draw(st.integers(0, len(values[damaged]) - 1))
    raw = bytearray(values[damaged])
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    values = [*values[:damaged], bytes(raw), *values[damaged + 1 :]]
    with pytest.raises(Unreadable) as caught:
        runs_of(seqs, values)
    assert list(caught.value.errors) == [damaged]


def test_a_frame_with_more_ids_than_can_be_counted_is_found() -> None:
    rows = MOST_COUNTED + 1
    raw = encode_frame(1, rows, 7, [0] * 5, [encode_run(Kind.ENQUEUED, 7, Counted(bytes(16), rows))])
    with pytest.raises(Unreadable):
        runs_of(np.array([rows]), [raw])


@pytest.mark.parametrize("raw", [b"", b"\x01", bytes(200), b"\xe1\x04main" + bytes(90)])
def test_what_was_never_a_frame_is_found_too(raw: bytes) -> None:
    with pytest.raises(Unreadable) as caught:
        runs_of(np.array([1]), [raw])
    assert list(caught.value.errors) == [0]


def test_a_frame_under_another_frames_key_is_refused() -> None:
    raw = encode_frame(5, 1, 7, [0] * 5, [encode_run(Kind.LEASED, 7, [bytes(16)])])
    with pytest.raises(Unreadable) as caught:
        runs_of(np.array([6]), [raw])
    assert "its key" in str(caught.value.errors[0])


@given(st.lists(st.binary(min_size=16, max_size=16)))
def test_ids_become_their_texts(ids: list[bytes]) -> None:
    raw = np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 16)
    assert columns.id_texts(raw).to_pylist() == [format_id(one) for one in ids]
    made = columns.ids_of_keys([keys.message(7, one) for one in ids]) if ids else raw
    assert made.tobytes() == raw.tobytes()
