"""What the embedded backend promises; in memory it is not persistent, and not for other processes to read."""

from __future__ import annotations

import msgspec

from penstock.capabilities import Capabilities

CAPABILITIES = Capabilities(
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
    throttling=True,
    journal=True,
    fifo=True,
    bulk_read=True,
    bulk_write=True,
    restore=True,
)

IN_MEMORY = msgspec.structs.replace(CAPABILITIES, persistence=False, bulk_read=False, bulk_write=False)
