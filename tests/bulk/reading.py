"""What the tests of bulk reads share: a snapshot's rows as plain values, and stores to take one of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock
from penstock import ManualClock, Penstock
from penstock.backends.bulk import BulkRequest, Damage, Snapshot
from penstock.backends.embedded.keys import SPACES
from penstock.backends.registry import open_reader
from penstock.keyring import KeyProvider
from penstock.kv.rocksdb import RocksStore

Row = dict[str, Any]


def read(
    snapshot: Snapshot,
    table: Any,
    *,
    keys: KeyProvider | None = None,
    told: Callable[[Damage], None] | None = None,
    **request: Any,
) -> list[Row]:
    """All rows of a request, by a reader of their own."""
    with open_reader(snapshot, keys) as reader:
        plan = reader.plan(BulkRequest(table=table, **request))
        for damage in plan.damage:
            assert told is not None
            told(damage)
        return [
            row
            for partition in plan.partitions
            for batch in reader.read(partition, told)
            for row in batch.to_pylist()
        ]


def opened(folder: Path, clock: ManualClock | None = None) -> Penstock:
    return penstock.open(f"rocksdb:{folder}?durability=os", clock=clock)


@contextmanager
def raw_store(folder: str | Path) -> Iterator[RocksStore]:
    """A snapshot's database as it is stored, to tamper with."""
    store = RocksStore.open(Path(folder) / "store", SPACES)
    try:
        yield store
    finally:
        store.close()


def folders(store: Path) -> list[str]:
    """The snapshots that a store has."""
    below = store / "snapshots"
    return sorted(path.name for path in below.iterdir()) if below.exists() else []
