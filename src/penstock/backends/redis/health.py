"""What is wrong with a store on Redis, and what its server promises of durability."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.backends.redis.connecting import Server
from penstock.errors import PenstockError, QueueNotFound, StorageCorrupt

if TYPE_CHECKING:
    from penstock.backends.redis.engine import Engine, Known
    from penstock.backends.redis.numbers import Numbers

#: `appendfsync` -> the durability mode that it is.
_MODES = {"always": "sync", "everysec": "interval", "no": "os"}
UNKNOWN = "unknown"
#: No log at all.
NONE = "none"


def durability_of(server: Server) -> str:
    """sync, interval or os; none without a log, `unknown` where the server does not say."""
    try:
        found = _settings(server.command("CONFIG", "GET", "append*"))
    except PenstockError:
        return UNKNOWN
    if found.get("appendonly") != "yes":
        return NONE
    return _MODES.get(found.get("appendfsync", ""), UNKNOWN)


def _settings(raw: Any) -> dict[str, str]:
    pairs = raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)
    return {_text(name): _text(value) for name, value in pairs}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def reasons(engine: Engine, numbers: Numbers, durability: str) -> Iterator[str]:
    """One sentence each."""
    if durability == NONE:
        yield "the server keeps no log (appendonly no): what it holds goes with its process"
    for name in engine.all_queues():
        with contextlib.suppress(QueueNotFound):  # Deleted meanwhile.
            try:
                yield from engine.with_queue(name, lambda q: list(_of_queue(q, numbers)))
            except StorageCorrupt as error:
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
