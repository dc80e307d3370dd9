"""Everything that is measured of a store, for whoever collects it."""

from __future__ import annotations

import contextlib
import os

from penstock.backends.base import BackendMetrics, CursorInfo, HealthNumbers, QueueMetrics
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.history import cursors
from penstock.backends.embedded.keystats import discovered, key_stats
from penstock.backends.embedded.reads import stats
from penstock.backends.embedded.sweep import apply_waiting
from penstock.backends.embedded.throttles import Throttles
from penstock.backends.judging import Totals
from penstock.errors import QueueNotFound, StorageCorrupt

#: Keys of a queue, and throttles, that metrics tell of: a label of each value costs whoever stores them.
KEYS_MEASURED = 20
THROTTLES_MEASURED = 100


def metrics(engine: Engine, throttles: Throttles) -> BackendMetrics:
    """The lock is free between queues."""
    with engine.lock:
        engine.check_usable()
        names = sorted(engine.queues)
    found: dict[str, QueueMetrics] = {}
    for name in names:
        # Deleted meanwhile, or damaged, which `health` tells.
        with contextlib.suppress(QueueNotFound, StorageCorrupt):
            found[name] = _of_queue(engine, name)
    with engine.lock:
        engine.check_usable()
        return BackendMetrics(
            queues=found,
            store_bytes=engine.kv.approximate_size(),
            sync_s=engine.meter.sync_s.read(),
            group_commit_calls=engine.meter.group_sizes.read(),
            throttles=throttles.all(THROTTLES_MEASURED),
        )


def _of_queue(engine: Engine, name: str) -> QueueMetrics:
    apply_waiting(engine)
    by_key = key_stats(engine, name, KEYS_MEASURED)
    with engine.lock:
        engine.check_usable()
        q = engine.queue(name)
        return QueueMetrics(
            stats=stats(engine, q),
            events={str(kind): count for kind, count in q.meter.events.items()},
            wait_s=q.meter.waits.read(),
            service_s=q.meter.services.read(),
            cursors=[CursorInfo(one, row.position, row.required) for one, row in cursors(engine, q).items()],
            keys=by_key,
        )


def health_numbers(engine: Engine) -> HealthNumbers:
    """Queue by queue, the lock free between them: each costs the same, whatever waits in it."""
    apply_waiting(engine)
    with engine.lock:
        engine.check_usable()
        names = list(engine.queues)
    totals = Totals()
    for name in names:
        with contextlib.suppress(QueueNotFound, StorageCorrupt):
            discovered(engine, name)
            with engine.lock:
                engine.check_usable()
                found = stats(engine, engine.queue(name))
            rates = (found.enqueue_rate_per_s, found.ack_rate_per_s, found.fail_rate_per_s)
            totals.add(found.ready + found.delayed, found.leased, found.oldest_ready_age_s, rates)
            if found.unread_by_required:
                totals.behind(found.unread_by_required)
    figures = engine.meter.calls.figures()
    return HealthNumbers(
        reachable=True,
        latency_p50_ms=None if figures.p50_s is None else figures.p50_s * 1000,
        latency_p99_ms=None if figures.p99_s is None else figures.p99_s * 1000,
        calls=figures.calls + figures.errors,
        error_rate=figures.error_rate,
        memory_bytes=_resident_bytes(),
        **totals.fields(),
    )


def _resident_bytes() -> int | None:
    """What this process has in memory, where the system says so."""
    try:
        with open("/proc/self/statm", "rb") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
