"""What the tests of Spark share: stores with something in every table, and reading them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock import Entry, NewMessage, Penstock, Queue
from penstock.backends.embedded.keys import SPACES
from penstock.kv.rocksdb import RocksStore

KEY = "5b" * 32
KEY_VARIABLE = "PENSTOCK_KEY_TESTS"
QUEUES = ("orders", "mails", "ünïcode, with a comma")


def filled(folder: Path, messages: int = 100) -> Penstock:
    """Owned by this process, so that what Spark reads is read beside its owner."""
    ps = penstock.open(f"rocksdb:{folder}?durability=os", rng=random.Random(7))
    for name in QUEUES:
        work(
            ps.create_queue(name, lease_s=3600, retention_s=3600, retry={"policy": "fixed", "delay_s": 600}),
            messages,
        )
    ps.journal("world").append(
        [
            Entry(kind="made", body=b"\0\xff", labels=["a", "b"], flags=["x"], vector=[0.5, -1.25]),
            Entry(kind="seen"),
            Entry(kind="made", body=b"last"),
        ]
    )
    ps.journal("other").append([Entry(kind="made")])
    return ps


def work(queue: Queue, messages: int) -> None:
    """Messages in every state, with every setting on some of them."""
    queue.enqueue_many(
        [
            NewMessage(
                payload=b"payload %d" % n,
                headers={"type": "job", "n": str(n)} if n % 2 else {},
                fairness_key=f"key {n % 5}",
                weight=1 + n % 3,
                throttle_keys=["slow"] if n % 10 == 0 else [],
                priority=n % 10,
                ttl_s=3600 if n % 4 == 0 else None,
                dedup_id=f"dedup {n}" if n % 3 == 0 else None,
                delay_s=600 if n % 20 == 19 else 0,
            )
            for n in range(messages)
        ]
    )
    receipts = [one.receipt for one in queue.lease(max_messages=messages // 2, consumer="worker 1")]
    fifth = len(receipts) // 5
    queue.ack(receipts[:fifth])
    queue.reject(receipts[fifth : 2 * fifth], reason="no good")
    queue.nack(receipts[2 * fifth : 3 * fifth], reason="try again")
    queue.nack(receipts[3 * fifth : 4 * fifth], delay_s=0, reason="at once")


def place(ps: Penstock) -> str:
    path = ps.info().default.path
    assert path is not None
    return path


def load(spark: SparkSession, url: str, table: str, **options: object) -> DataFrame:
    reader = spark.read.format("penstock").option("url", url).option("table", table)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def rows(df: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in df.collect()]


def broken(folder: Path, space: str) -> str:
    """A closed store of two queues with three rows each, one of which is not what it was."""
    with penstock.open(f"rocksdb:{folder}?durability=os") as ps:
        for name in ("sound", "broken"):
            queue = ps.create_queue(name)
            for _ in range(3):
                queue.enqueue(b"payload")
    store = RocksStore.open(folder, SPACES)
    handle = store.space(space)
    rows = sorted(store.scan(handle, b"", b"\xff" * 8))
    key, value = [row for row in rows if row[0][:4] == rows[-1][0][:4]][1]
    batch = store.batch()
    batch.put(key, b"\xfe" + value[1:], handle)
    store.write(batch, sync=True)
    store.close()
    return str(folder)
