"""What is wrong with a store, as `health` tells it: damage that was met, cursors that hold too much back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from penstock.backends.embedded import history
from penstock.backends.embedded.engine import Engine
from penstock.errors import StorageCorrupt


def complaints(engine: Engine) -> Iterator[str]:
    """One sentence each. Call it with the lock held."""
    for name, why in engine.damaged.items():
        yield f"queue {name!r} is damaged: {why}"
    for key, why in engine.buckets.damaged.items():
        yield f"throttle {key!r} is damaged, and closed: {why}; set it again, or run check with repair"
    for what in engine.kv.damage():
        yield f"{what}: run check with repair"
    for number in history.queues_with_cursors(engine):
        q = engine.sound_queue(number)
        if q is None:
            continue
        if q.counters.held:
            yield f"queue {q.name!r}: required cursors hold back {q.counters.held} bodies"
        with contextlib.suppress(StorageCorrupt):  # Then the store's own complaints say so.
            if history.keeps_too_much(engine, q, engine.clock.now_ns()):
                yield f"queue {q.name!r}: required cursors keep its journal past its retention"
