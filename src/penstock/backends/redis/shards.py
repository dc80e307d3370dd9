"""What is wrong with the servers of a cluster, or with replicas that writes wait for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.backends.redis.connecting import Server
from penstock.errors import PenstockError
from penstock.redis_settings import endpoint

SLOTS = 16384


def shard_reasons(server: Server) -> Iterator[str]:
    """One sentence each: masters that do not answer, slots that nobody serves, replicas that are missing."""
    if server.settings.cluster:
        yield from _cluster(server)
    wanted = server.settings.min_replicas
    for node, said in server.each("INFO", "replication").items() if wanted else ():
        have = _rows(said).get("connected_slaves")
        if have is not None and int(have) < wanted:
            yield f"{endpoint(*node)} has {have} replicas, min_replicas is {wanted}: writes there fail"


def _cluster(server: Server) -> Iterator[str]:
    """Each server tells how it sees all of them: one that sees trouble is enough."""
    told = server.each("CLUSTER", "INFO")
    down = [endpoint(*node) for node, said in told.items() if isinstance(said, PenstockError)]
    if down:
        yield f"{len(down)} of {len(told)} shards do not answer: {', '.join(down)}"
    seen = [_rows(said) for said in told.values() if not isinstance(said, PenstockError)]
    if any(rows.get("cluster_state", "ok") != "ok" for rows in seen):
        yield "cluster_state is not ok: no server of the cluster takes calls until that is mended"
    failed = max((int(rows.get("cluster_slots_fail", 0)) for rows in seen), default=0)
    if failed:
        yield f"{failed} slots have a master that failed"
    assigned = min((int(rows.get("cluster_slots_assigned", SLOTS)) for rows in seen), default=SLOTS)
    if assigned < SLOTS:
        yield f"{SLOTS - assigned} slots have no owner: queues in them cannot be reached"


def _rows(said: Any) -> dict[str, str]:
    text = said.decode() if isinstance(said, bytes) else ""
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)
