"""What is wrong with a store on Redis, and what its server promises of durability."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.backends.redis.connecting import Server, pairs
from penstock.errors import PenstockError, QueueNotFound, StorageError, Unauthorized

if TYPE_CHECKING:
    from penstock.backends.redis.engine import Engine, Known
    from penstock.backends.redis.keys import Keys
    from penstock.backends.redis.numbers import Numbers

#: `appendfsync` -> the durability mode that it is.
_MODES = {"always": "sync", "everysec": "interval", "no": "os"}
UNKNOWN = "unknown"
#: No log at all.
NONE = "none"
#: What a server does not say counts as nothing.
WEAKEST_FIRST = (UNKNOWN, NONE, "os", "interval", "sync")
#: Of fewer calls in the last minutes than this, one slow one in a hundred says nothing.
JUDGED_CALLS = 100
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


def server_reasons(server: Server) -> Iterator[str]:
    """How it is reached and how calls went lately, by the thresholds of its settings; one sentence each."""
    found, limits = server.health(), server.settings.health
    judged = found.calls + found.errors >= JUDGED_CALLS
    p99_s = found.latency_p99_s if judged else None
    if found.breaker_open:
        yield "too many calls in a row have failed: none is sent for a moment"
    if p99_s is not None and p99_s > limits.max_latency_s:
        yield f"a call in a hundred takes {p99_s:.3f} s; health.max_latency is {limits.max_latency_s}"
    if judged and found.error_rate > limits.max_error_rate:
        yield f"{found.error_rate:.0%} of attempts failed; health.max_error_rate is {limits.max_error_rate}"
    used, most = _memory(server)
    if most and used > limits.max_memory_ratio * most:
        yield f"the server has {used / most:.0%} of its maxmemory in use; at all of it, it refuses writes"
    yield from found.warnings


def _memory(server: Server) -> tuple[int, int]:
    """Bytes in use and allowed; 0 where there is no limit, or the server does not say."""
    try:
        text = _text(server.command("INFO", "memory"))
    except PenstockError:
        return 0, 0
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(rows.get("used_memory", 0)), int(rows.get("maxmemory", 0))


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


def reasons(engine: Engine, numbers: Numbers) -> Iterator[str]:
    """One sentence each."""
    for name in engine.all_queues():
        with contextlib.suppress(QueueNotFound):  # Deleted meanwhile.
            try:
                yield from engine.with_queue(name, lambda q: list(_of_queue(q, numbers)))
            except StorageError as error:
                yield f"queue {name!r} is damaged: {error}; run check with repair"


def _of_queue(q: Known, numbers: Numbers) -> Iterator[str]:
    standing = numbers.standing(q)
    c, settings = standing.counters, q.settings
    if c.held:
        yield f"queue {q.name!r}: required cursors hold back {c.held} bodies"
    if standing.read_by_all < c.seq and any(one.required for one in standing.cursors):
        first_us = numbers.first_event_us(q)
        keep_s, size = settings.journal_retention_s, settings.journal_max_bytes
        too_old = keep_s is not None and first_us is not None and first_us < standing.now_us - keep_s * 1e6
        if (too_old or (size is not None and c.journal_bytes > size)) and numbers.first_is_unread(
            q, standing
        ):
            yield f"queue {q.name!r}: required cursors keep its journal past its retention"
