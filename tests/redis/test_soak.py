"""A million messages through one queue on Redis: memory and keys are what they were before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import NewMessage
from tests.redis.one_server import started
from tests.redis.servers import RunningServer

MESSAGES = int(os.environ.get("PENSTOCK_SOAK_MESSAGES", "1000000"))
#: What the server may have more in use afterwards: buffers, and calls of the last minute.
SLACK_BYTES = 4 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    server = started(tmp_path, appendfsync="everysec")
    yield server
    server.kill()


def kept_keys(client: Any) -> set[bytes]:
    """All but who keeps house at the moment."""
    return {key for key in client.scan_iter() if not key.endswith(b":sweeper")}


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["lists", "streams"])
def test_a_million_messages_leave_nothing_behind(server: RunningServer, kind: str) -> None:
    with server.client() as client, penstock.open(server.url(kind)) as ps:
        q = ps.create_queue("q", journal_retention_s=1)
        q.enqueue_many([NewMessage(b"warm")] * 1000)
        q.ack([one.receipt for one in q.lease(1000)])
        start = int(client.info("memory")["used_memory"])
        keys = kept_keys(client)
        done = 0
        for batch in range(MESSAGES // 1000):
            news = [
                NewMessage(b"x" * 100, fairness_key=f"{batch}-{n % 20}", priority=n % 3, ttl_s=600)
                for n in range(1000)
            ]
            q.enqueue_many(news)
            if batch % 4 == 3:
                while held := q.lease(1000):
                    done += len(q.ack([one.receipt for one in held]))
        while held := q.lease(1000):
            done += len(q.ack([one.receipt for one in held]))
        assert done == MESSAGES // 1000 * 1000
        assert (q.length(), q.stats().acked_total) == (0, done + 1000)
        while ps.sweep():
            pass
        assert int(client.info("memory")["used_memory"]) - start < SLACK_BYTES
        assert kept_keys(client) <= keys
        assert ps.check().ok
