"""Damage in a snapshot: raised with its queue and place, or told and set aside, and never passed over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import Entry, NewMessage, Penstock, StorageCorrupt
from penstock.backends.bulk import Damage, SeqRange, Snapshot
from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Meta, StateCode
from penstock.codec.frame import encode_frame, encode_run
from penstock.event import Kind
from penstock.kv.base import Store
from penstock.message import parse_id
from tests.bulk.reading import opened, raw_store, read

GARBAGE = b"\x01garbage"
MESSAGES = 40


@pytest.fixture
def ps(tmp_path: Path) -> Any:
    """A queue with numbered payloads, in frames of ten, some of them leased or dead; and a world."""
    with opened(tmp_path / "s") as ps:
        q = ps.create_queue("q", compress_over_bytes=100)
        for start in range(0, MESSAGES, 10):
            q.enqueue_many(
                [NewMessage(b"%d" % n * 100, headers={"n": "x"}) for n in range(start, start + 10)]
            )
        q.lease(4, consumer="w")
        q.reject([delivery.receipt for delivery in q.lease(2)], reason="bad")
        for _ in range(3):
            ps.journal("w").append([Entry("k")] * 5)
        yield ps


def ids(ps: Penstock) -> list[str]:
    """Of all messages, in order."""
    return sorted(message.id for message in ps.queue("q").iter())


def tampered(ps: Penstock, change: Callable[[Store], tuple[str, bytes, bytes | None]]) -> Snapshot:
    """A snapshot in which one row is another, or gone."""
    snapshot = ps.take_snapshot()
    with raw_store(snapshot.place) as store:
        space, key, value = change(store)
        batch = store.batch()
        if value is None:
            batch.delete(key, store.space(space))
        else:
            batch.put(key, value, store.space(space))
        store.write(batch)
    return snapshot


#: Numbers are given as queues and worlds come; the system's own world is one.
QUEUE, WORLD = 1, 3


def frame_keys(store: Store, number: int) -> list[bytes]:
    rows = store.scan(store.space("journal"), keys.u32(number), keys.u32(number + 1))
    return [key for key, _ in rows]


def told_of(snapshot: Snapshot, table: str, **request: Any) -> tuple[list[Any], list[Damage]]:
    found: list[Damage] = []
    rows = read(snapshot, table, on_damage="skip", told=found.append, **request)
    return rows, found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (GARBAGE, "does not decode"),
        (b"", "does not decode"),
        (b"\x63" + bytes(60), "version 99"),
        (b"\xe1\x04main" + bytes(60), "sealed with key 'main', does not open"),
    ],
)
def test_a_body_that_does_not_decode_costs_its_own_row(ps: Penstock, value: bytes, text: str) -> None:
    victim = ids(ps)[7]
    snapshot = tampered(ps, lambda store: ("messages", keys.message(QUEUE, parse_id(victim)), value))
    for table in ("messages", "bodies"):
        with pytest.raises(StorageCorrupt) as caught:
            read(snapshot, table)
        assert f"queue 'q', message {victim}: " in str(caught.value)
        assert text in str(caught.value)
        rows, damage = told_of(snapshot, table)
        assert sorted(row["id"] for row in rows) == [one for one in ids(ps) if one != victim]
        assert [(one.name, one.where, one.rows) for one in damage] == [("q", f"message {victim}", 1)]


def test_a_payload_that_does_not_decompress_is_only_missed_where_it_is_asked_for(ps: Penstock) -> None:
    victim = ids(ps)[20]
    key = keys.message(QUEUE, parse_id(victim))

    def cut(store: Store) -> tuple[str, bytes, bytes]:
        raw = store.get(key, store.space("messages"))
        assert raw is not None
        assert raw[0] == 2
        return "messages", key, raw[:-3]

    snapshot = tampered(ps, cut)
    with pytest.raises(StorageCorrupt, match=f"{victim}.*decompress"):
        read(snapshot, "messages", columns=("payload",))
    assert len(read(snapshot, "messages", columns=("id", "size_bytes"))) == MESSAGES
    rows, damage = told_of(snapshot, "messages")
    assert (len(rows), len(damage)) == (MESSAGES - 1, 1)


def test_headers_that_do_not_decode_are_told(ps: Penstock) -> None:
    victim = ids(ps)[20]
    key = keys.message(QUEUE, parse_id(victim))

    def bend(store: Store) -> tuple[str, bytes, bytes]:
        raw = store.get(key, store.space("messages"))
        assert raw is not None
        return "messages", key, raw[:33] + b"\xc1" + raw[34:]

    snapshot = tampered(ps, bend)
    with pytest.raises(StorageCorrupt, match=victim):
        read(snapshot, "messages", columns=("headers",))
    rows, damage = told_of(snapshot, "messages", columns=("headers", "id"))
    assert (len(rows), [one.where for one in damage]) == (MESSAGES - 1, [f"message {victim}"])


@pytest.mark.parametrize("states", [None, ("dead",)])
def test_a_state_that_does_not_decode_is_never_taken_for_another(ps: Penstock, states: Any) -> None:
    """Without its row, a message would seem to be ready."""
    victim = next(iter(ps.queue("q").iter(state="dead"))).id
    snapshot = tampered(
        ps, lambda store: ("state", keys.state(QUEUE, StateCode.DEAD, parse_id(victim)), GARBAGE)
    )
    with pytest.raises(StorageCorrupt, match=f"queue 'q', the state of message {victim}"):
        read(snapshot, "messages", states=states)
    rows, damage = told_of(snapshot, "messages", states=states)
    assert len(rows) == (MESSAGES - 1 if states is None else 1)
    assert victim not in {row["id"] for row in rows}
    assert [one.where for one in damage] == [f"the state of message {victim}"]


def test_a_reason_that_is_not_utf8_is_told_of_its_message(ps: Penstock) -> None:
    victim = next(iter(ps.queue("q").iter(state="dead"))).id
    key = keys.state(QUEUE, StateCode.DEAD, parse_id(victim))

    def bend(store: Store) -> tuple[str, bytes, bytes]:
        raw = store.get(key, store.space("state"))
        assert raw is not None
        return "state", key, raw[:-1] + b"\xff"

    snapshot = tampered(ps, bend)
    with pytest.raises(StorageCorrupt, match=victim):
        read(snapshot, "dead")
    rows, damage = told_of(snapshot, "messages")
    assert (len(rows), [one.where for one in damage]) == (MESSAGES - 1, [f"message {victim}"])


@pytest.mark.parametrize("states", [None, ("dead",)])
def test_a_state_without_a_body_is_told(ps: Penstock, states: Any) -> None:
    victim = next(iter(ps.queue("q").iter(state="dead"))).id
    snapshot = tampered(ps, lambda store: ("messages", keys.message(QUEUE, parse_id(victim)), None))
    with pytest.raises(StorageCorrupt, match=f"message {victim}: it is dead by its state row"):
        read(snapshot, "messages", states=states)
    _, damage = told_of(snapshot, "messages", states=states)
    assert [(one.where, one.rows) for one in damage] == [(f"message {victim}", 0)]


def test_a_message_in_two_states_is_told(ps: Penstock) -> None:
    victim = next(iter(ps.queue("q").iter(state="dead"))).id

    def double(store: Store) -> tuple[str, bytes, bytes]:
        raw = store.get(keys.state(QUEUE, StateCode.DEAD, parse_id(victim)), store.space("state"))
        assert raw is not None
        return "state", keys.state(QUEUE, StateCode.LEASED, parse_id(victim)), raw

    snapshot = tampered(ps, double)
    with pytest.raises(StorageCorrupt, match=f"message {victim}: it is both leased and dead"):
        read(snapshot, "messages")


def test_a_frame_that_does_not_decode_is_told_with_the_events_that_are_missing(ps: Penstock) -> None:
    snapshot = tampered(ps, lambda store: ("journal", frame_keys(store, QUEUE)[1], GARBAGE))
    for table in ("events", "bodies"):
        request: dict[str, Any] = {"seqs": {"q": SeqRange()}} if table == "bodies" else {}
        with pytest.raises(StorageCorrupt, match="queue 'q', the frame that ends with seq 20: "):
            read(snapshot, table, **request)
        rows, damage = told_of(snapshot, table, **request)
        assert not {row["seq"] for row in rows} & set(range(11, 21))
        assert [(one.where, one.rows) for one in damage] == [
            ("the frame that ends with seq 20", 0),
            ("seq 11", 10),
        ]
    assert len(read(snapshot, "events", seqs={"q": SeqRange(21)})) == len(ps.queue("q").events()) - 20


@pytest.mark.parametrize(("place", "first", "count"), [(0, 1, 10), (2, 21, 10), (-1, 47, 2)])
def test_a_gap_in_a_journal_is_told_wherever_it_is(ps: Penstock, place: int, first: int, count: int) -> None:
    """Forty enqueued, four leased, then two leased, then two dead."""
    assert ps.queue("q").stats().last_seq == 48
    snapshot = tampered(ps, lambda store: ("journal", frame_keys(store, QUEUE)[place], None))
    with pytest.raises(StorageCorrupt, match=f"events {first} to {first + count - 1} are not there"):
        read(snapshot, "events")
    rows, damage = told_of(snapshot, "events", partitions=3)
    assert [row["seq"] for row in rows] == [s for s in range(1, 49) if not first <= s < first + count]
    assert sum(one.rows for one in damage) == count


def test_a_kind_that_is_not_known_is_refused_though_its_checksum_is_right(ps: Penstock) -> None:
    run = bytearray(encode_run(Kind.LEASED, 7, [bytes(16)] * 10))
    run[0] = 99
    frame = encode_frame(11, 10, 7, [0] * 5, [bytes(run)])
    snapshot = tampered(ps, lambda store: ("journal", frame_keys(store, QUEUE)[1], frame))
    with pytest.raises(StorageCorrupt, match=r"the frame that ends with seq 20: .* does not decode: 99"):
        read(snapshot, "events")


@pytest.mark.parametrize("reason", ["XX", ["good", "XX", "good", "good"]])
def test_texts_of_events_that_are_not_utf8_are_told_and_all_others_are_read(
    ps: Penstock, reason: str | list[str]
) -> None:
    sound = encode_run(Kind.NACKED, 7, [bytes(16)] * 3, reason="good")
    broken = encode_run(Kind.NACKED, 7, [bytes(16)] * 4, reason=reason).replace(b"XX", b"\xff\xfe")
    frame = encode_frame(11, 10, 7, [0] * 5, [sound, broken, sound])
    snapshot = tampered(ps, lambda store: ("journal", frame_keys(store, QUEUE)[1], frame))
    with pytest.raises(StorageCorrupt, match="queue 'q', seq 14 to 17: texts of events do not decode"):
        read(snapshot, "events")
    rows, damage = told_of(snapshot, "events")
    assert [row["seq"] for row in rows] == [*range(1, 14), *range(18, 49)]
    assert [(one.where, one.rows) for one in damage] == [("seq 14 to 17", 4)]
    assert len(read(snapshot, "events", columns=("seq",))) == 48


def test_a_frame_of_a_world_that_does_not_decode_is_told(ps: Penstock) -> None:
    snapshot = tampered(ps, lambda store: ("journal", frame_keys(store, WORLD)[1], GARBAGE))
    with pytest.raises(StorageCorrupt, match="world 'w', the frame that ends with seq 10: "):
        read(snapshot, "entries", names=("w",))
    rows, damage = told_of(snapshot, "entries", names=("w",))
    assert [row["seq"] for row in rows] == [*range(1, 6), *range(11, 16)]
    assert sum(one.rows for one in damage) == 5


def test_a_queue_whose_own_row_is_damaged_is_named_or_set_aside(ps: Penstock) -> None:
    ps.create_queue("sound").enqueue(b"x")
    snapshot = tampered(ps, lambda store: ("meta", keys.meta(Meta.QUEUE, b"q"), GARBAGE))
    for table in ("messages", "queues", "events"):
        with pytest.raises(StorageCorrupt, match="queue 'q' is damaged"):
            read(snapshot, table)
        rows, damage = told_of(snapshot, table)
        assert len(rows) == 1
        assert [one.name for one in damage] == ["q"]
        assert len(read(snapshot, table, names=("sound",))) == 1


def test_damage_that_nobody_listens_for_is_set_aside_all_the_same(ps: Penstock) -> None:
    victim = ids(ps)[7]
    snapshot = tampered(ps, lambda store: ("messages", keys.message(QUEUE, parse_id(victim)), GARBAGE))
    assert len(read(snapshot, "messages", on_damage="skip")) == MESSAGES - 1


# Blocks of the files themselves


def broken_table(snapshot: Snapshot, space: str) -> None:
    """A bit of one of the space's tables is another; the store, which may share the file, keeps its own."""
    with raw_store(snapshot.place) as store:
        store.compact()
        names = store._tables(space)
    path = Path(snapshot.place, "store", max(names))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0x10
    path.unlink()
    path.write_bytes(raw)


@pytest.mark.parametrize("space", ["messages", "journal", "state"])
def test_a_damaged_block_is_told_and_what_is_behind_it_is_read(tmp_path: Path, space: str) -> None:
    with opened(tmp_path / "s") as ps:
        q = ps.create_queue("q")
        for _ in range(60):
            q.enqueue_many([NewMessage(bytes(100))] * 100)
        for _ in range(20):
            q.nack([delivery.receipt for delivery in q.lease(100)], delay_s=0, reason="x" * 50)
        snapshot = ps.take_snapshot()
        events = q.stats().last_seq
    broken_table(snapshot, space)
    table = "events" if space == "journal" else "messages"
    with pytest.raises(StorageCorrupt, match=f"queue 'q', in {space}: "):
        read(snapshot, table)
    rows, damage = told_of(snapshot, table)
    assert any(one.where == f"in {space}" for one in damage)
    whole = events if table == "events" else 6000
    assert whole * 0.3 < len(rows) < whole
    if table == "events":
        assert len(rows) + sum(one.rows for one in damage) == events
    if space == "state":
        retried = [row for row in rows if row["attempts"]]
        assert all(row["reason"] == "x" * 50 for row in retried)
