"""What queues on Redis lists promise; docs/backends.md gives the reason for each flag that is off."""

from __future__ import annotations

import msgspec

from penstock.capabilities import Capabilities

LISTS = Capabilities(
    atomic_ack=True,
    replay=True,
    idempotent_enqueue=True,
    transactions=True,
    persistence=True,
    time_to_live=True,
    prioritization=True,
    batch_operations=True,
    delay=True,
    fairness=True,
    journal=True,
    fifo=True,
    bulk_read=True,
    bulk_write=True,
    restore=True,
)

#: On a cluster, what spans queues is a journaled series of writes, not one.
LISTS_CLUSTER = msgspec.structs.replace(LISTS, clustering=True, transactions=False)

#: Who has what this backend lacks.
HAVING: dict[str, tuple[str, ...]] = {
    "throttling": ("rocksdb", "memory"),
}
