"""Bulk writes to an encrypted store: nothing secret in what is staged, and keys that change meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import DecryptFailed, KeyMissing, ManualClock, Penstock, StorageError, Txn, WriteTicket
from penstock.backends.bulk import Staged
from penstock.backends.embedded import chunks, slices, staged
from penstock.config import Config, EncryptionSettings, StorageSettings
from penstock.testing.harness import drain

TXN = Txn("app", 1)
SECRETS = (b"very secret payload", b"secret header value", b"secret-dedup")


class Keys:
    def __init__(self, **keys: bytes) -> None:
        self._keys = keys

    def key(self, key_id: str, /) -> bytes | None:
        return self._keys.get(key_id)


OLD, NEW = Keys(old=b"o" * 32), Keys(new=b"n" * 32)
BOTH = Keys(old=b"o" * 32, new=b"n" * 32)


def open_store(folder: Path, key_id: str, keys: Keys) -> Penstock:
    settings = StorageSettings(path=str(folder), encryption=EncryptionSettings(enabled=True, key_id=key_id))
    return penstock.open(Config(source="test", default=settings), clock=ManualClock(), keys=keys)


def stage(ticket: WriteTicket, keys: Any, rows: int = 100) -> list[Staged]:
    batch = pa.record_batch(
        {
            "payload": pa.array([SECRETS[0] + b" %03d" % n for n in range(rows)], pa.binary()),
            "headers": pa.array([[("name", SECRETS[1].decode())]] * rows, pa.map_(pa.string(), pa.string())),
            "dedup_id": pa.array([f"secret-dedup {n}" if n % 10 == 0 else None for n in range(rows)]),
        }
    )
    with penstock.open_writer(ticket, keys) as writer:
        return [writer.stage(TXN, 0, [batch])]


@pytest.mark.parametrize("table_rows", [1, 1000])
def test_nothing_that_is_staged_can_be_read_without_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_rows: int
) -> None:
    monkeypatch.setattr(chunks, "TABLE_ROWS", table_rows)
    with open_store(tmp_path / "store", "old", OLD) as ps:
        q = ps.create_queue("q")
        ticket = ps.begin_write("q")
        parts = stage(ticket, OLD)
        files = [path for path in (tmp_path / "store" / staged.STAGING).rglob("*") if path.is_file()]
        assert len(files) >= (3 if table_rows == 1 else 1)
        for path in files:
            raw = path.read_bytes()
            assert not any(secret in raw for secret in SECRETS), path
        ps.commit_write(ticket, TXN, parts)
        assert len(drain(q)) == 100
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file():
            assert not any(secret in path.read_bytes() for secret in SECRETS), path


def test_without_the_right_key_nothing_is_staged(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", "old", OLD) as ps:
        ps.create_queue("q")
        ticket = ps.begin_write("q")
        with pytest.raises(KeyMissing, match="'old'"):
            stage(ticket, NEW)
        with pytest.raises(DecryptFailed, match="'old'"):
            stage(ticket, Keys(old=b"x" * 32))


def test_what_was_staged_under_another_key_is_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", "old", OLD) as ps:
        ps.create_queue("q")
        ticket = ps.begin_write("q")
        parts = stage(ticket, OLD)
    with open_store(tmp_path / "store", "new", BOTH) as ps:
        with pytest.raises(StorageError, match="run the job again"):
            ps.commit_write(ticket, TXN, parts)
        assert ps.queue("q").length() == 0
        again = ps.begin_write("q")
        assert ps.commit_write(again, TXN, stage(again, BOTH)).enqueued == 100


@pytest.mark.parametrize("when", ["between two slices", "in a slice"])
def test_a_commit_that_was_cut_short_is_finished_under_the_next_key_and_rekeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 30)
    monkeypatch.setattr(chunks, "TABLE_ROWS", 20)
    monkeypatch.setattr("penstock.backends.embedded.stager.SLICE_ROWS", 10)
    monkeypatch.setattr(slices, "SLICE_ROWS", 30)
    folder = tmp_path / "store"
    with open_store(folder, "old", OLD) as ps, monkeypatch.context() as patch:
        ps.create_queue("q")
        ticket = ps.begin_write("q")
        parts = stage(ticket, OLD)
        name = "take_in_ready" if when == "in a slice" else "any_exists"
        original, taken = getattr(slices, name), [0]

        def fail(*args: Any) -> Any:
            taken[0] += 1
            if taken[0] == 2:
                raise StorageError("killed")
            return original(*args)

        patch.setattr(slices, name, fail)
        with pytest.raises(StorageError, match="killed"):
            ps.commit_write(ticket, TXN, parts)
    with open_store(folder, "new", BOTH) as ps:
        assert ps.check().ok
        assert ps.queue("q").length() == 100
        assert ps.commit_write(ticket, TXN, parts).again
        ps.rekey()
    with open_store(folder, "new", NEW) as ps:
        assert ps.check().ok
        assert len(drain(ps.queue("q"))) == 100
