"""Files and memory of bulk writes: as many as the data needs, however many jobs, partitions and queues."""

from __future__ import annotations

import os
import resource
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import ManualClock, Penstock, Txn, Written
from penstock.backends.embedded import chunks, stager
from penstock.testing.harness import drain

TXN = Txn("app", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def ps(folder: Path) -> Iterator[Penstock]:
    with penstock.open(folder, clock=ManualClock()) as ps:
        ps.create_queue("q")
        yield ps


def batch(payloads: list[bytes], **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"payload": pa.array(payloads, pa.binary()), **columns})


def write(ps: Penstock, txn: Txn, parts: list[list[bytes]]) -> Written:
    ticket = ps.begin_write("q")
    with penstock.open_writer(ticket) as writer:
        staged = [writer.stage(txn, n, [batch(rows)]) for n, rows in enumerate(parts)]
    return ps.commit_write(ticket, txn, staged)


def tables(folder: Path) -> int:
    return len(list(folder.glob("*.sst")))


def test_many_small_jobs_leave_no_tables_of_their_own(ps: Penstock, folder: Path) -> None:
    expected = []
    for version in range(30):
        parts = [[b"%d %d %d" % (version, part, row) for row in range(4)] for part in range(5)]
        assert write(ps, Txn("query", version), parts).enqueued == 20
        expected += [payload for rows in parts for payload in rows]
    assert tables(folder) == 0
    assert drain(ps.queue("q")) == expected
    assert ps.check().ok


def test_a_job_with_large_partitions_and_small_ones_is_there_as_a_whole(
    ps: Penstock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "TABLE_ROWS", 50)
    parts = [[b"%d %d" % (n, row) for row in range(rows)] for n, rows in enumerate((3, 60, 0, 49, 50))]
    assert write(ps, TXN, parts).enqueued == 162
    assert tables(folder) == 4
    assert drain(ps.queue("q")) == [payload for rows in parts for payload in rows]
    assert ps.check().ok


@pytest.mark.parametrize("own", [False, True], ids=["the job's ids", "ids of their own"])
def test_only_tables_in_which_single_ids_are_looked_up_have_a_filter(
    ps: Penstock, folder: Path, own: bool
) -> None:
    payloads = [b"%d" % n for n in range(chunks.TABLE_ROWS)]
    columns = {"id": pa.array([str(uuid.uuid4()) for _ in payloads])} if own else {}
    ticket = ps.begin_write("q")
    with penstock.open_writer(ticket) as writer:
        staged = writer.stage(TXN, 0, [batch(payloads, **columns)])
    (table,) = folder.glob("staging/*/*.messages")
    assert (b"fullfilter." in table.read_bytes()) == own
    assert ps.commit_write(ticket, TXN, [staged]).enqueued == len(payloads)
    assert ps.check().ok


def test_rows_with_headers_and_without_keep_the_order_of_their_keys(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are taken by columns, and others one by one; keys have more rows than are put at a time."""
    monkeypatch.setattr(stager, "SLICE_ROWS", 50)
    monkeypatch.setattr(chunks, "READY_AT_ONCE", 64)
    q = ps.create_queue("keys")
    rows = range(2 * chunks.TABLE_ROWS)
    columns: dict[str, Any] = {
        "payload": pa.array([b"%d" % n for n in rows], pa.binary()),
        "fairness_key": pa.array(["large" if n % 3 else f"small {n % 40}" for n in rows]),
        "weight": pa.array([1 + n // 500 % 2 for n in rows]),
        "headers": pa.array(
            [[("n", str(n))] if n // 100 % 3 == 0 else None for n in rows], pa.map_(pa.string(), pa.string())
        ),
    }
    ticket, txn = ps.begin_write("keys"), Txn("app", 1)
    with penstock.open_writer(ticket) as writer:
        staged = writer.stage(txn, 0, [pa.record_batch(columns)])
    ps.commit_write(ticket, txn, [staged])
    assert ps.check().ok
    found: dict[str, list[int]] = {}
    while deliveries := q.lease(1000):
        for delivery in deliveries:
            n = int(delivery.payload)
            found.setdefault(delivery.fairness_key, []).append(n)
            assert delivery.weight == 1 + n // 500 % 2
        q.ack([delivery.receipt for delivery in deliveries])
    assert sorted(n for some in found.values() for n in some) == list(rows)
    assert all(some == sorted(some) for some in found.values())


def test_rows_that_are_few_and_large_become_tables(ps: Penstock, folder: Path) -> None:
    payloads = [bytes([n]) * (chunks.TABLE_BYTES // 2) for n in range(3)]
    write(ps, TXN, [payloads])
    assert tables(folder) == 2
    assert drain(ps.queue("q")) == payloads


@pytest.mark.parametrize("given_ids", [False, True])
def test_rows_for_many_queues_in_turn_are_a_chunk_for_each(
    ps: Penstock, folder: Path, monkeypatch: pytest.MonkeyPatch, given_ids: bool
) -> None:
    monkeypatch.setattr(stager, "SLICE_ROWS", 100)
    names = [f"queue {n}" for n in range(150)]
    for name in names:
        ps.create_queue(name)
    rows = [n % len(names) for n in range(600)]
    columns: dict[str, Any] = {"queue": pa.array([names[n] for n in rows])}
    if given_ids:
        columns["id"] = pa.array([str(uuid.uuid5(uuid.NAMESPACE_URL, str(n))) for n in range(len(rows))])
    ticket = ps.begin_write()
    with penstock.open_writer(ticket) as writer:
        part = writer.stage(TXN, 0, [batch([b"%03d" % n for n in range(len(rows))], **columns)])
    assert len(part.chunks) == len(names)
    assert len(list((folder / "staging").glob("*/*"))) == len(names)
    assert ps.commit_write(ticket, TXN, [part]) == Written(enqueued=600)
    assert tables(folder) == 0
    assert drain(ps.queue("queue 7")) == [b"%03d" % n for n in range(7, 600, 150)]
    assert ps.check().ok


def test_what_staging_keeps_in_memory_and_open_is_bounded_over_all_queues(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stager, "SLICE_ROWS", 50)
    monkeypatch.setattr(stager, "OPEN_BYTES", 200_000)
    monkeypatch.setattr(stager, "OPEN_TABLES", 5)
    monkeypatch.setattr(chunks, "TABLE_BYTES", 5_000)
    make_room, seen = stager._Staging._make_room, []

    def counted(self: stager._Staging) -> None:
        make_room(self)
        open_now = self._open.values()
        seen.append((sum(one.memory_bytes for one in open_now), sum(one.is_table for one in open_now)))

    monkeypatch.setattr(stager._Staging, "_make_room", counted)
    for n in range(20):
        ps.create_queue(f"queue {n}")
    ticket = ps.begin_write()
    queues = [f"queue {n % 20}" for n in range(2000)]
    ids = [str(uuid.uuid5(uuid.NAMESPACE_URL, str(n))) if n % 2 else None for n in range(2000)]
    given = batch([os.urandom(400) for _ in queues], queue=pa.array(queues), id=pa.array(ids))
    with penstock.open_writer(ticket) as writer:
        part = writer.stage(TXN, 0, [given])
    assert max(size for size, _ in seen) <= 200_000
    assert 0 < max(count for _, count in seen) <= 5
    assert ps.commit_write(ticket, TXN, [part]) == Written(enqueued=2000)
    assert ps.check().ok


def tables_open() -> int:
    return sum(os.path.realpath(link).endswith(".sst") for link in Path("/proc/self/fd").iterdir())


@pytest.fixture
def few_files() -> Iterator[None]:
    """For the process, as a shell may set it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files as Linux shows them")
@pytest.mark.usefixtures("few_files")
def test_a_store_holds_fewer_tables_open_than_it_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "TABLE_ROWS", 1)
    with penstock.open(folder, clock=ManualClock()) as ps:
        ps.create_queue("q")
        for version in range(60):
            write(ps, Txn("app", version), [[b"%02d" % version]])
        assert 0 < tables_open() <= 100
    assert tables(folder) > 110
    with penstock.open(folder, clock=ManualClock()) as ps:
        assert drain(ps.queue("q")) == [b"%02d" % version for version in range(60)]
        assert ps.check().ok
        assert 0 < tables_open() <= 100
