"""A row of the table `queues`: settings and counters."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.backends.embedded.tables.view import QueueView
from penstock.message import STORED_STATES


def queue_row(queue: QueueView) -> dict[str, Any]:
    counters = queue.counters
    return {
        "name": queue.name,
        "settings": msgspec.json.encode(queue.settings).decode(),
        **{str(state): counters.counts[at] for at, state in enumerate(STORED_STATES)},
        "enqueued_total": counters.enqueued_total,
        "acked_total": counters.acked_total,
        "failed_total": counters.failed_total,
        "first_seq": queue.first_seq,
        "last_seq": queue.last_seq,
        **{f"base_{state}": counters.base_counts[at] for at, state in enumerate(STORED_STATES)},
        "journal_bytes": counters.journal_bytes,
        "held_bodies": counters.held,
        "required_seq": queue.required_seq,
    }
