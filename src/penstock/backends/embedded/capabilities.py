"""What the embedded backend promises; in memory it is not persistent."""

from __future__ import annotations

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
    journal=True,
    fifo=True,
)
