"""Batches stay small whatever rows are like, a column that is not asked for costs nothing, parts are even."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Entry, NewMessage
from penstock.backends.bulk import BATCH_BYTES, BATCH_ROWS, BulkRequest
from penstock.backends.registry import open_reader
from penstock.backends.tables import bodies
from penstock.kv.chunks import Stretch, cuts
from tests.bulk.reading import opened, read

MIB = 1024 * 1024


def batch_sizes(folder: Path, table: str) -> list[tuple[int, int]]:
    """Rows and bytes of each batch."""
    with opened(folder) as ps:
        snapshot = ps.take_snapshot()
    with open_reader(snapshot) as reader:
        plan = reader.plan(BulkRequest(table=table, names=None if table != "entries" else ("w",)))  # type: ignore[arg-type]
        found = [(b.num_rows, b.nbytes) for part in plan.partitions for b in reader.read(part)]
        reader.release()
    return found


def test_large_payloads_come_few_to_a_batch(tmp_path: Path) -> None:
    """Also behind small ones, where there are no sizes to go by yet, and where they are found one by one."""
    with opened(tmp_path / "s") as ps:
        q = ps.create_queue("q")
        q.enqueue_many([NewMessage(b"small")] * 30)
        for _ in range(3):
            q.enqueue_many([NewMessage(bytes(6 * MIB))] * 2)
        q.reject([one.receipt for one in q.lease(36)])
    for table in ("messages", "bodies", "dead"):
        sizes = batch_sizes(tmp_path / "s", table)
        assert sum(rows for rows, _ in sizes) == 36
        assert max(size for _, size in sizes) < 2 * 6 * MIB + MIB


def test_payloads_that_were_compressed_to_nearly_nothing_come_few_to_a_batch_too(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as ps:
        q = ps.create_queue("q", compress_over_bytes=100)
        q.enqueue_many([NewMessage(bytes(4 * MIB))] * 12)
        q.enqueue_many([NewMessage(b"small")] * 100)
    for table in ("messages", "bodies"):
        sizes = batch_sizes(tmp_path / "s", table)
        assert sum(rows for rows, _ in sizes) == 112
        assert max(size for _, size in sizes) <= BATCH_BYTES + 5 * MIB
    with opened(tmp_path / "s") as ps:
        snapshot = ps.take_snapshot()
    found = read(snapshot, "messages", columns=("payload", "size_bytes"))
    assert sorted({len(row["payload"]) for row in found}) == [5, 4 * MIB]
    assert all(row["size_bytes"] == len(row["payload"]) for row in found)


def test_a_frame_of_very_many_events_comes_in_batches(tmp_path: Path) -> None:
    count = 2 * BATCH_ROWS + 5
    with opened(tmp_path / "s") as ps:
        q = ps.create_queue("q")
        q.enqueue_many([NewMessage()] * count)
        ps.journal("w").append([Entry("k")] * count)
    assert [rows for rows, _ in batch_sizes(tmp_path / "s", "events")] == [BATCH_ROWS, BATCH_ROWS, 5]
    for table in ("messages", "entries"):
        sizes = [rows for rows, _ in batch_sizes(tmp_path / "s", table)]
        assert sum(sizes) == count
        assert max(sizes) <= BATCH_ROWS


def test_what_is_not_asked_for_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "s") as ps:
        ps.create_queue("q", compress_over_bytes=10).enqueue(b"x" * 1000, headers={"a": "b"})
        snapshot = ps.take_snapshot()

    def refuse(*_: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(bodies, "unpacked_payload", refuse)
    monkeypatch.setattr(bodies, "decode_variable", refuse)
    (row,) = read(snapshot, "messages", columns=("id", "state", "size_bytes", "enqueued_at", "attempts"))
    assert (row["state"], row["size_bytes"]) == ("ready", 1000)
    for column in ("payload", "headers"):
        with pytest.raises(AssertionError, match="decoded"):
            read(snapshot, "messages", columns=(column,))


#: Reads everything and tells how much memory it took beyond what was there before.
MEASURED = """
import resource, sys, msgspec
from penstock.backends.bulk import BulkRequest, Snapshot
from penstock.backends.registry import open_reader
snapshot = msgspec.json.decode(sys.argv[1], type=Snapshot)
def peak_kib(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open_reader(snapshot) as reader:
    for names in (("small",), ("large",)):
        for table in ("messages", "events"):
            plan = reader.plan(BulkRequest(table=table, names=names))
            rows = sum(batch.num_rows for part in plan.partitions for batch in reader.read(part))
        print(rows, peak_kib())
"""


def test_memory_does_not_grow_with_what_is_read(tmp_path: Path) -> None:
    """Ten times as many rows, of 1 KB each, in nearly the same memory."""
    import msgspec

    with opened(tmp_path / "s") as ps:
        for name, count in (("small", 10_000), ("large", 100_000)):
            q = ps.create_queue(name)
            for _ in range(0, count, 1000):
                q.enqueue_many([NewMessage(bytes(1000))] * 1000)
        snapshot = ps.take_snapshot()
    command = [sys.executable, "-c", MEASURED, msgspec.json.encode(snapshot).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (few, small_kib), (many, large_kib) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (few, many) == (10_000, 100_000)
    assert large_kib - small_kib < 40_000


# Where ranges are cut


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def test_cuts_follow_where_the_rows_are() -> None:
    stretches = [Stretch(key(0), key(999), 1000), Stretch(key(10**9), key(10**9 + 2999), 3000)]
    found = [int.from_bytes(cut[:8], "big") for cut in cuts(stretches, b"", None, 4)]
    for cut, expected in zip(found, (1000, 10**9 + 1000, 10**9 + 2000), strict=True):
        assert abs(cut - expected) <= 2


def test_cuts_add_up_stretches_that_overlap_and_clip_those_that_reach_out() -> None:
    stretches = [Stretch(key(0), key(1999), 2000), Stretch(key(0), key(999), 1000)]
    (middle,) = cuts(stretches, key(0), key(2000), 2)
    assert abs(int.from_bytes(middle[:8], "big") - 750) <= 1
    (middle,) = cuts(stretches, key(1000), key(1500), 2)
    assert abs(int.from_bytes(middle[:8], "big") - 1250) <= 1


@pytest.mark.parametrize(
    "stretches",
    [[], [Stretch(b"", b"", 0)], [Stretch(key(5), key(5), -3)], [Stretch(key(5), key(5), 1)]],
)
def test_there_are_no_cuts_where_nothing_is_to_be_cut(stretches: list[Stretch]) -> None:
    assert cuts(stretches, b"", None, 4) in ([], [key(5) + bytes(16)])
