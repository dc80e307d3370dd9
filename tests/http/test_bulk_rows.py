"""Bulk over HTTP: parts, Arrow that is not whole, killed servers: nothing is lost, nothing comes twice."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.ipc
import pytest

import penstock
from penstock import InvalidMessage, NewMessage, Penstock, SnapshotNotFound
from penstock.backends.bulk import BulkRequest, Txn, Written
from penstock.backends.http import reader as http_reader
from penstock.backends.http import writer as http_writer
from penstock.backends.registry import open_reader, open_writer, release_snapshot
from penstock.backends.tables.jobs import joined
from penstock.errors import BackendNotInstalled, BackendUnavailable
from penstock.server_config import Limits
from tests.http.bulk import TXN, arrow, post, rows_of, staged
from tests.http.running import Running
from tests.server.processes import serving

# -- parts


def test_a_part_that_comes_again_counts_once(store: Penstock, ps: Penstock) -> None:
    q = store.create_queue("q")
    ticket = ps.begin_write("q")
    first, again = (staged(ticket, rows_of(b"a", b"b")) for _ in range(2))
    second = staged(ticket, rows_of(b"c"), first_row=2)
    for wrong in ([first, again], [first, again, second], [second], [first, second, second]):
        with pytest.raises(InvalidMessage, match="commit each part once"):
            ps.commit_write(ticket, TXN, [joined(wrong)])
    assert q.length() == 0
    assert ps.commit_write(ticket, TXN, [joined([second, again])]) == Written(enqueued=3)
    assert [one.payload for one in q.lease(10)] == [b"a", b"b", b"c"]


def test_a_part_of_another_job_is_refused(store: Penstock, ps: Penstock) -> None:
    store.create_queue("q")
    part = staged(ps.begin_write("q"), rows_of(b"a"))
    with pytest.raises(InvalidMessage, match="another job"):
        ps.commit_write(ps.begin_write("q"), TXN, [part])
    ticket = ps.begin_write("q")
    part = staged(ticket, rows_of(b"a"))
    for txn, moved in ((Txn("job", 2), part), (TXN, msgspec.structs.replace(part, partition=3))):
        with pytest.raises(InvalidMessage, match="another job"):
            ps.commit_write(ticket, txn, [moved])


def test_many_small_parts_are_the_rows_of_their_partition(
    store: Penstock, ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_writer, "PART_ROWS", 7)
    q = store.create_queue("q")
    payloads = [None if n % 10 == 3 else b"%d" % n for n in range(40)]
    rejected: list[tuple[Any, Any]] = []
    ticket = ps.begin_write("q")
    with open_writer(ticket) as writer:
        found = writer.stage(
            TXN,
            0,
            [rows_of(*payloads[low : low + 5]) for low in range(0, 40, 5)],
            lambda batch: rejected.extend(
                zip(batch["row"].to_pylist(), batch["reason"].to_pylist(), strict=True)
            ),
        )
    assert len(found.chunks) >= 6
    assert rejected == [(row, "payload is null") for row in (3, 13, 23, 33)]
    assert ps.commit_write(ticket, TXN, [found]) == Written(enqueued=36, rejected=4)
    assert [one.payload for one in q.lease(100)] == [one for one in payloads if one is not None]


def test_what_is_too_large_for_the_server_goes_in_halves_or_is_set_aside(store: Penstock) -> None:
    q = store.create_queue("q")
    running = Running(store, limits=Limits(max_body_bytes=20_000))
    rejected: list[tuple[Any, Any]] = []
    try:
        with penstock.open(running.url) as ps:
            ticket = ps.begin_write("q")
            payloads = [b"%03d" % n + bytes(4000 if n != 5 else 30_000) for n in range(20)]
            with open_writer(ticket) as writer:
                found = writer.stage(
                    TXN,
                    0,
                    [rows_of(*payloads[:9]), rows_of(*payloads[9:])],
                    lambda batch: rejected.extend(
                        zip(batch["row"].to_pylist(), batch["payload"].to_pylist(), strict=True)
                    ),
                )
            assert ps.commit_write(ticket, TXN, [found]) == Written(enqueued=19, rejected=1)
    finally:
        running.stop()
    assert rejected == [(5, payloads[5])]
    assert "20000 bytes" in found.reasons[0]
    assert [one.payload for one in q.lease(100)] == payloads[:5] + payloads[6:]


def test_staging_without_the_package_says_what_to_install(
    store: Penstock, ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_queue("q")
    ticket = ps.begin_write("q")
    monkeypatch.delitem(sys.modules, http_writer.__name__)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BackendNotInstalled, match=r"penstock\[spark\]"):
        open_writer(ticket)


# -- Arrow that is not whole


def test_rows_that_were_cut_short_are_refused(store: Penstock, server: Running, ps: Penstock) -> None:
    store.create_queue("q")
    ticket = ps.begin_write("q")
    body = arrow(ticket, rows_of(*(b"%d" % n for n in range(100))))
    assert post(server, "stage", body)[0] == 200
    for length in range(0, len(body) - 8, 41):
        status, says = post(server, "stage", body[:length])
        assert status == 400, length
        assert "Arrow" in says or "cut short" in says
    for rows in (99, 101, 0):
        status, says = post(server, "stage", arrow(ticket, rows_of(*[b"x"] * 100), rows=rows))
        assert (status, "cut short" in says) == (400, True)


def test_rows_that_are_larger_than_they_look_are_refused(
    store: Penstock, server: Running, ps: Penstock
) -> None:
    store.create_queue("q")
    ticket = ps.begin_write("q")
    for codec in ("zstd", "lz4"):
        body = arrow(ticket, rows_of(*[bytes(2000)] * 100), options=pa.ipc.IpcWriteOptions(compression=codec))
        status, says = post(server, "stage", body)
        assert (status, "compressed" in says) == (400, True)
    nothing = pa.record_batch({"payload": pa.nulls(2_000_000)})
    assert post(server, "stage", arrow(ticket, nothing))[0] == 400
    dictionary = pa.record_batch({"payload": pa.array([b"x"] * 9).dictionary_encode()})
    assert post(server, "stage", arrow(ticket, dictionary))[0] == 400


def test_no_bytes_that_claim_to_be_arrow_bring_the_server_down(
    store: Penstock, server: Running, ps: Penstock
) -> None:
    q, rng = store.create_queue("q"), random.Random(11)
    columns = {
        "payload": pa.array([b"abc"] * 50),
        "headers": pa.array([[("a", "b")]] * 50, pa.map_(pa.string(), pa.string())),
        "throttle_keys": pa.array([["x", "y"]] * 50),
        "fairness_key": pa.array(["k"] * 50),
    }
    body = arrow(ps.begin_write("q"), pa.record_batch(columns))
    for _ in range(150):
        wrong = bytearray(body)
        for _ in range(rng.randint(1, 4)):
            wrong[rng.randrange(len(wrong))] = rng.choice([0, 1, 128, 255, rng.randrange(256)])
        assert post(server, "stage", bytes(wrong))[0] in (200, 400)
    assert q.length() == 0


# -- streams


def test_a_read_that_nobody_hears_to_its_end_makes_room(
    store: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create_queue("q").enqueue_many([NewMessage(bytes(2**20)) for _ in range(24)])
    running = Running(store, limits=Limits(max_streams=1))
    try:
        with penstock.open(running.url) as ps:
            snapshot = ps.take_snapshot()
            with open_reader(snapshot) as reader, open_reader(snapshot) as second:
                (part,) = reader.plan(BulkRequest(table="messages")).partitions
                batches = reader.read(part)
                assert next(batches).num_rows < 24
                monkeypatch.setattr(http_reader, "ROOM_S", 0.0)
                with pytest.raises(BackendUnavailable, match="1 bulk reads and writes are under way"):
                    next(second.read(part))
                monkeypatch.setattr(http_reader, "ROOM_S", 5.0)
                reader.close()
                assert sum(batch.num_rows for batch in second.read(part)) == 24
    finally:
        running.stop()


def test_an_error_in_the_middle_of_a_read_is_raised_as_what_it_is(
    store: Penstock, ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.server.native import arrow as served

    store.create_queue("q").enqueue_many([NewMessage(bytes(2**20)) for _ in range(24)])
    whole = served.Reading._next
    calls = []

    def breaking(self: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise SnapshotNotFound("it went away in the middle")
        return whole(self)

    monkeypatch.setattr(served.Reading, "_next", breaking)
    snapshot = ps.take_snapshot()
    with open_reader(snapshot) as reader:
        (part,) = reader.plan(BulkRequest(table="messages")).partitions
        batches = reader.read(part)
        assert next(batches).num_rows
        with pytest.raises(SnapshotNotFound, match="in the middle"):
            next(batches)
    release_snapshot(snapshot)


# -- a server that is killed


def test_a_killed_server_loses_and_doubles_nothing_that_was_staged_or_is_read(
    tmp_path: Path,
) -> None:
    where = f"rocksdb:{tmp_path / 'data'}"
    with penstock.open(where) as ps:
        ps.create_queue("q")
        ps.create_queue("large").enqueue_many([NewMessage(b"%02d" % n + bytes(2**20)) for n in range(40)])
    with serving(tmp_path, "--store", where) as server:
        with penstock.open(server.url) as ps:
            ticket, snapshot = ps.begin_write("q"), ps.take_snapshot()
        parts = [staged(ticket, rows_of(*(b"%d" % n for n in range(500))))]
        lost = staged(ticket, rows_of(b"500", b"501"), first_row=500)
        reader = open_reader(snapshot)
        (part,) = reader.plan(BulkRequest(table="messages", columns=("payload",))).partitions
        batches = reader.read(part)
        found: list[Any] = next(batches)["payload"].to_pylist()
        assert (len(found) < 20, lost.rows) == (True, 2)
        server.process.kill()
        server.process.wait()
    with serving(tmp_path, "--store", where, "--port", str(server.port)):
        found += [payload for batch in batches for payload in batch["payload"].to_pylist()]
        reader.release()
        # The task whose answer was lost is tried again; so is the commit.
        parts.append(staged(ticket, rows_of(b"500", b"501"), first_row=500))
        with penstock.open(server.url) as ps:
            assert ps.queue("q").length() == 0
            assert ps.commit_write(ticket, TXN, [joined(parts)]) == Written(enqueued=502)
            assert ps.commit_write(ticket, TXN, [joined(parts)]) == Written(enqueued=502, again=True)
    assert [payload[:2] for payload in found] == [b"%02d" % n for n in range(40)]
    with penstock.open(where) as ps:
        written = [message.payload for message in ps.queue("q").iter()]
        assert sorted(written, key=int) == [b"%d" % n for n in range(502)]
        assert ps.check().ok
