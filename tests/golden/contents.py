"""Everything that a store tells through the public calls, as plain values that a JSON file can hold."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock import Penstock

WORLD = "notes"
STATE_KEY = "settings/theme"
ALL = 1 << 40


def contents(system: Penstock) -> dict[str, Any]:
    """What must be there again, whichever version opens the store."""
    names = [settings.name for settings in system.queues()]
    found = {
        "queues": {settings.name: settings for settings in system.queues()},
        "messages": {name: [_message(m) for m in system.queue(name).iter()] for name in names},
        "counts": {name: _counts(system, name) for name in names},
        "events": {name: [_event(e) for e in system.queue(name).events(limit=ALL)] for name in names},
        "cursors": {name: list(system.queue(name).cursors()) for name in names},
        "due": [[item.at_ns, item.what, item.queue, item.message_id] for item in system.due(limit=1000)],
        "entries": system.journal(WORLD).scan(),
        "state": system.state.get(STATE_KEY),
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
    return plain


def _message(message: Any) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.structs.asdict(message)
    del values["raw_id"]
    return {"id": message.id, **values}


def _event(event: Any) -> list[Any]:
    return [
        event.seq,
        event.at_ns,
        event.kind,
        event.message_id,
        event.attempt,
        event.due_ns,
        event.consumer,
        event.reason,
        event.extra,
    ]


def _counts(system: Penstock, name: str) -> dict[str, int]:
    stats = system.queue(name).stats()
    fields = (
        "delayed",
        "ready",
        "leased",
        "done",
        "dead",
        "enqueued_total",
        "acked_total",
        "failed_total",
        "first_seq",
        "last_seq",
        "journal_bytes",
        "held_bodies",
        "unread_by_required",
    )
    return {field: getattr(stats, field) for field in fields}
