"""What queues on Redis promise; docs/backends.md gives the reason for each flag that is off."""

from __future__ import annotations

from typing import Literal, NamedTuple

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

STREAMS = msgspec.structs.replace(LISTS, consumer_groups=True)
STREAMS_CLUSTER = msgspec.structs.replace(LISTS_CLUSTER, consumer_groups=True)

#: Who has what these backends lack.
HAVING: dict[str, tuple[str, ...]] = {
    "throttling": ("rocksdb", "memory"),
}


class Sort(NamedTuple):
    """One of the backends: its name, where it keeps bodies, and what it promises."""

    name: str
    store: Literal["hash", "stream"]
    capabilities: Capabilities
    on_a_cluster: Capabilities


LISTS_SORT = Sort("redis-lists", "hash", LISTS, LISTS_CLUSTER)
STREAMS_SORT = Sort("redis-streams", "stream", STREAMS, STREAMS_CLUSTER)
