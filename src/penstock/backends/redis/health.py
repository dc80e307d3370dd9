"""What is wrong with a store on Redis, and what its server promises of durability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from penstock.backends.base import BackendHealth, HealthNumbers
from penstock.backends.judging import Totals, judged
from penstock.backends.redis.connecting import Server, ServerHealth, pairs
from penstock.backends.redis.engine import Engine, Known, QueueChanged
from penstock.backends.redis.keys import Keys
from penstock.backends.redis.memory import memory_of
from penstock.backends.redis.numbers import Numbers, Standing
from penstock.backends.redis.profiles import parse_info
from penstock.backends.redis.shards import shard_reasons
from penstock.errors import (
    BackendUnavailable,
    DecryptFailed,
    InvalidConfig,
    KeyMissing,
    PenstockError,
    StorageCorrupt,
    StorageError,
    Unauthorized,
)

#: `appendfsync` -> the durability mode that it is.
_MODES = {"always": "sync", "everysec": "interval", "no": "os"}
UNKNOWN = "unknown"
#: No log at all.
NONE = "none"
#: What a server does not say counts as nothing.
WEAKEST_FIRST = (UNKNOWN, NONE, "os", "interval", "sync")
CANNOT_PUBLISH = (
    "this user may not publish to the store's channels: who waits only looks every few seconds; "
    "give it their pattern (ACL SETUSER … &prefix*)"
)


def durability_of(server: Server) -> str:
    """sync, interval or os; none without a log, `unknown` where one does not say. Of several, the weakest."""
    try:
        told = [_settings(raw) for raw in server.everywhere("CONFIG", "GET", "append*")]
    except PenstockError:
        return UNKNOWN
    return min(map(_mode, told), key=WEAKEST_FIRST.index)


def _mode(found: Mapping[str, str]) -> str:
    if found.get("appendonly") != "yes":
        return NONE
    return _MODES.get(found.get("appendfsync", ""), UNKNOWN)


def _settings(raw: Any) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in pairs(raw)}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def examined(
    engine: Engine, numbers: Numbers, at_open: str, own: Sequence[str], extra: dict[str, int]
) -> BackendHealth:
    """What is known and measured of a store, against its thresholds; `extra` is what a kind of store adds.

    It asks for the catalogue once and for every queue's numbers, many in a round trip: its cost grows with
    the queues, and with nothing that is in them.
    """
    server = engine.server
    shards: list[str] = []
    try:
        shards += shard_reasons(server)
        rows, damaged = engine.rows()
        standings = numbers.standings(rows)
        found = [
            *shards,
            *loss_reasons(server, at_open),
            *own,
            *(_damaged(name, error) for name, error in damaged.items()),
            *(reason for name, (q, one) in standings.items() for reason in _of_queue(q, one, numbers)),
        ]
        told = server.health()
        if told.breaker_open:
            found.append("too many calls in a row have failed: none is sent for a moment")
        totals = _totals(standings)
        if "consumer_lag" in extra:
            totals.behind(extra["consumer_lag"])
        fields = {**extra, **totals.fields(), **_memory(server)}
        measured = msgspec.structs.replace(_numbers(server, told), **fields)
        return judged(measured, server.settings.health, [*found, *told.warnings], list(loss_warnings(server)))
    except (BackendUnavailable, DecryptFailed, InvalidConfig, KeyMissing, Unauthorized) as error:
        told = msgspec.structs.replace(server.health(), reachable=False)
        return BackendHealth("unhealthy", [*shards, str(error)], _numbers(server, told))


def _numbers(server: Server, told: ServerHealth) -> HealthNumbers:
    """What is known without the queues."""
    p50_s, p99_s = told.latency_p50_s, told.latency_p99_s
    return HealthNumbers(
        reachable=told.reachable,
        latency_p50_ms=None if p50_s is None else p50_s * 1000,
        latency_p99_ms=None if p99_s is None else p99_s * 1000,
        calls=told.calls + told.errors,
        error_rate=told.error_rate,
        pool_in_use=told.pool_in_use,
        pool_size=told.pool_size,
        shards=told.nodes if server.settings.cluster and told.nodes else None,
    )


def _totals(standings: Mapping[str, tuple[Known, Standing | PenstockError]]) -> Totals:
    totals = Totals()
    for _, one in standings.values():
        if not isinstance(one, PenstockError):
            c = one.counters
            totals.add(c.ready + c.delayed, c.leased, one.oldest_s, one.rates_per_s)
            if one.has_required:
                totals.behind(c.seq - one.read_by_all)
    return totals


def _memory(server: Server) -> dict[str, Any]:
    used, limit, ratio = memory_of(server)
    return {"memory_bytes": used, "memory_limit_bytes": limit, "memory_ratio": ratio}


def server_numbers(server: Server) -> HealthNumbers:
    """Of a server alone, whatever is stored on it."""
    return msgspec.structs.replace(_numbers(server, server.health()), **_memory(server))


def loss_warnings(server: Server) -> Iterator[str]:
    """What may be lost though all settings are as they should be: what replicas lack."""
    if server.settings.min_replicas:
        return
    try:
        told = [parse_info(one) for one in server.everywhere("INFO", "replication")]
    except PenstockError:
        return
    replicas = sum(int(one.get("connected_slaves", 0)) for one in told)
    if replicas:
        yield (
            f"{replicas} replicas follow without being waited for: one that takes over may lack what was "
            "acknowledged last"
        )


def loss_reasons(server: Server, at_open: str) -> Iterator[str]:
    """What the server may lose by its settings as they are now; nothing of those that it does not tell."""
    now = durability_of(server)
    if now == UNKNOWN:
        now = at_open
    if now == NONE:
        yield "the server keeps no log (appendonly no): what it holds goes with its process"
    elif at_open not in (now, UNKNOWN):
        yield f"durability was {at_open!r} when the store was opened, and is {now!r} now; open it again"
    try:
        told = server.everywhere("CONFIG", "GET", "maxmemory-policy")
    except (Unauthorized, StorageError):
        return
    for policy in sorted(
        {_settings(raw).get("maxmemory-policy", "noeviction") for raw in told} - {"noeviction"}
    ):
        yield f"maxmemory-policy is {policy}: the server may throw away parts of queues; set noeviction"


def channel_reasons(server: Server, keys: Keys) -> list[str]:
    """Asked once, when the store is opened: whether this user may publish to the store's channels."""
    try:
        server.command("PUBLISH", keys.store, "")
    except (Unauthorized, StorageError):
        return [CANNOT_PUBLISH]
    return []


def _of_queue(q: Known, standing: Standing | PenstockError, numbers: Numbers) -> Iterator[str]:
    """One sentence each."""
    if isinstance(standing, BackendUnavailable):
        yield str(standing)
        return
    if isinstance(standing, PenstockError):
        yield _damaged(q.name, standing)
        return
    c, settings = standing.counters, q.settings
    if c.held:
        yield f"queue {q.name!r}: required cursors hold back {c.held} bodies"
    if standing.read_by_all == c.seq or not standing.has_required:
        return
    try:
        first_us = numbers.first_event_us(q)
        keep_s, size = settings.journal_retention_s, settings.journal_max_bytes
        too_old = keep_s is not None and first_us is not None and first_us < standing.now_us - keep_s * 1e6
        if (too_old or (size is not None and c.journal_bytes > size)) and numbers.first_is_unread(
            q, standing
        ):
            yield f"queue {q.name!r}: required cursors keep its journal past its retention"
    except QueueChanged:
        return  # Deleted, changed or being repaired since.
    except StorageCorrupt as error:
        yield _damaged(q.name, error)


def _damaged(name: str, error: PenstockError) -> str:
    if isinstance(error, InvalidConfig):
        return str(error)
    return f"queue {name!r} is damaged: {error}; run check with repair"
