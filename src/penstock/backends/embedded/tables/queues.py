"""The table `queues`: settings and counters, one row each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.backends.bulk import BATCH_ROWS, BulkRequest, Span
from penstock.backends.embedded.tables.damage import Damages
from penstock.backends.embedded.tables.view import QueueView, View
from penstock.backends.tables.columns import Batch, pa
from penstock.backends.tables.damage import Told
from penstock.errors import StorageCorrupt
from penstock.message import STORED_STATES
from penstock.tables import arrow_schema


def read_queues(
    view: View, request: BulkRequest, spans: tuple[Span, ...], told: Told | None
) -> Iterator[Batch]:
    schema = arrow_schema("queues", request.columns)
    for start in range(0, len(spans), BATCH_ROWS):
        rows = []
        for span in spans[start : start + BATCH_ROWS]:
            try:
                rows.append(_row(view.queue(span.name)))
            except StorageCorrupt as error:
                Damages("queue", span.name, told).found("its own row", error)
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


def _row(queue: QueueView) -> dict[str, Any]:
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
