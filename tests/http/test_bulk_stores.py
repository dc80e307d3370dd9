"""Bulk over HTTP whatever is behind the server: Redis, and a store whose keys the server alone has."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import urllib3

import penstock
from penstock import NewMessage, Penstock
from penstock.backends.bulk import BulkRequest, Txn, Written
from penstock.backends.http.wire import PREFIX, ReadAsked
from penstock.backends.registry import open_reader, open_writer, release_snapshot
from penstock.codec.answer import encode_answer
from tests.http.running import Running
from tests.redis.one_server import shared

_numbers = itertools.count()


def there_and_back(store: Penstock, *, goes_on: bool) -> None:
    """Rows that go in through the server, with some that were there, come out of it."""
    store.create_queue("q").enqueue_many([NewMessage(b"%d" % n) for n in range(3000)])
    running = Running(store)
    try:
        with penstock.open(running.url) as ps:
            ticket, txn = ps.begin_write("q"), Txn("job", 1)
            with open_writer(ticket) as writer:
                parts = []
                for number in range(2):
                    first = 3000 + 1000 * number
                    payloads = pa.array([b"%d" % n for n in range(first, first + 1000)])
                    batch: Any = pa.record_batch({"payload": payloads})
                    parts.append(writer.stage(txn, number, [batch]))
            assert ps.commit_write(ticket, txn, parts) == Written(enqueued=2000)
            snapshot = ps.take_snapshot()
            ps.queue("q").enqueue(b"later")
            with open_reader(snapshot) as reader:
                plan = reader.plan(BulkRequest(table="messages", columns=("payload",), partitions=3))
                assert len(plan.partitions) > 1
                found = [
                    int(payload)
                    for part in plan.partitions
                    for batch in reader.read(part)
                    for payload in batch["payload"].to_pylist()
                    if payload is not None
                ]
                broken = ReadAsked(plan.partitions[0].spans[0].lower.decode(), 1)
                url = f"{running.url}{PREFIX}read"
                answer = urllib3.request(
                    "POST", url, body=encode_answer(broken), headers={"connection": "close"}
                )
                assert (answer.status == 200) == goes_on
            release_snapshot(snapshot)
        assert sorted(found) == list(range(5000))
        assert store.check().ok
    finally:
        running.stop()


def test_a_store_on_redis_is_read_and_written_through_a_server() -> None:
    url = f"{shared().url('lists')}?key_prefix=http-bulk-{next(_numbers)}-"
    with penstock.open(url) as store:
        there_and_back(store, goes_on=False)


def test_a_client_needs_no_key_of_an_encrypted_store(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"main = {'5b' * 32}\n")
    (tmp_path / "keys").chmod(0o600)
    (tmp_path / "penstock.yaml").write_text(
        "storage:\n"
        f"  path: {tmp_path / 'store'}\n"
        "  durability: os\n"
        f"  encryption: {{enabled: true, key_id: main, key_file: {tmp_path / 'keys'}}}\n"
    )
    with penstock.open(tmp_path / "penstock.yaml") as store:
        assert store.info().default.sealed_with == "main"
        there_and_back(store, goes_on=True)
