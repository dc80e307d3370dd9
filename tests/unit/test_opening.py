"""Opening a database whose old reports somebody else removes at the same time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rocksdict

from penstock.errors import StorageError
from penstock.kv import opened
from penstock.kv.rocksdb import RocksStore


@pytest.mark.parametrize(
    ("what", "failures", "opens"),
    [
        ("while unlink() file: {}/LOG.old.17: No such file or directory", opened.ATTEMPTS - 1, True),
        ("while unlink() file: {}/LOG.old.17: No such file or directory", opened.ATTEMPTS, False),
        ("while open a file: {}/MANIFEST-000001: No such file or directory", 1, False),
    ],
)
def test_an_old_report_that_is_gone_is_no_reason_not_to_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, failures: int, opens: bool
) -> None:
    real, left = rocksdict.Rdict, [failures]

    class Driver:
        def __call__(self, *args: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise Exception("IO error: No such file or directory: " + what.format(tmp_path))
            return real(*args)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    monkeypatch.setattr(rocksdict, "Rdict", Driver())
    if not opens:
        with pytest.raises(StorageError):
            RocksStore.open(tmp_path / "store", ["a"])
        return
    store = RocksStore.open(tmp_path / "store", ["a"])
    batch = store.batch()
    batch.put(b"key", b"value", store.space("a"))
    store.write(batch)
    assert store.get(b"key", store.space("a")) == b"value"
    store.close()
