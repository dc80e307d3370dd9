"""Everything that a store, a queue and a journal can do is reached by REST, and over `http://`."""

from __future__ import annotations

import pytest

from penstock.backends.forwarding.methods import METHODS
from penstock.journal import Cursor, Journal, UserState
from penstock.penstock import Penstock, Throttles
from penstock.queue import Queue
from penstock.server.rest.table import TABLE

#: What each public name of the facade is in REST. `native`: calls of programs that hold the library.
ROUTES: dict[type, dict[str, str]] = {
    Penstock: {
        **{name: name for name in ("create_queue", "update_queue", "delete_queue", "replace_queues")},
        **{name: name for name in ("get_entries", "check", "reindex", "rekey", "sweep")},
        "queues": "list_queues",
        "queue": "get_queue",
        "journal": "world_stats",
        "due": "list_due",
        "info": "get_info",
        "health": "get_health",
        "metrics": "get_metrics",
        "quarantine": "list_quarantine",
        "quarantine_get": "get_quarantined",
        "quarantine_drop": "drop_quarantined",
        **dict.fromkeys(("take_snapshot", "begin_write", "commit_write", "abort_write", "restore"), "native"),
        **dict.fromkeys(("open_reader", "open_writer"), "bulk"),
    },
    Queue: {
        **{name: name for name in ("enqueue", "upsert", "lease", "ack", "nack", "reject", "extend", "peek")},
        **{name: name for name in ("create_group", "drop_group", "key_stats", "move", "redrive", "purge")},
        "enqueue_many": "enqueue",
        "groups": "list_groups",
        "get": "get_message",
        "settings": "get_queue",
        "iter": "list_messages",
        "list": "list_messages",
        "stats": "queue_stats",
        "length": "queue_length",
        "events": "list_events",
        "cursor": "open_cursor",
        "cursors": "list_cursors",
        "group": "queue_stats",
    },
    Journal: {
        "append": "append_entries",
        "scan": "scan_entries",
        "stats": "world_stats",
        "configure": "configure_world",
    },
    Cursor: {
        "position": "list_cursors",
        "read": "read_cursor",
        "commit": "commit_cursor",
        "drop": "drop_cursor",
    },
    UserState: {"put": "put_state", "get": "get_state", "delete": "delete_state"},
    Throttles: {
        "set": "set_throttle",
        "get": "get_throttle",
        "list": "list_throttles",
        "delete": "delete_throttle",
    },
}
#: What is of a process that holds the store itself.
OWN = {Penstock: {"backends", "close"}, Queue: {"watch", "lease_or_due"}}


@pytest.mark.parametrize("kind", ROUTES, ids=lambda kind: kind.__name__)
def test_every_public_name_is_reached(kind: type) -> None:
    public = {name for name in vars(kind) if not name.startswith("_")} - OWN.get(kind, set())
    assert public == set(ROUTES[kind])
    operations = {route.name for route in TABLE.routes}
    for name, reached in ROUTES[kind].items():
        assert reached in operations or (reached == "native" and name in METHODS) or reached == "bulk"


def test_every_operation_stands_for_something() -> None:
    reached = {name for names in ROUTES.values() for name in names.values()}
    assert {route.name for route in TABLE.routes} == reached - {"native", "bulk"}


def test_every_call_of_the_contract_is_an_operation_or_of_bulk_groups_and_configurations() -> None:
    by_rest = {route.method for route in TABLE.routes}
    bulk = {"take_snapshot", "begin_write", "commit_write", "abort_write", "restore"}
    # What a program's own penstock.yaml names is there when it opens; by REST queues are created or replaced.
    configured = {"declare_queues"}
    assert set(METHODS) - by_rest == bulk | configured | {"lease_group", "group_line"}


def test_what_may_be_given_as_a_group_is_asked_for_by_name() -> None:
    """What `Queue.group` has of its own."""
    grouped = {
        route.name for route in TABLE.routes if "group" in getattr(route.asked, "__struct_fields__", ())
    }
    assert grouped >= {"lease", "queue_stats", "queue_length", "key_stats", "list_messages", "get_message"}
    assert grouped >= {"peek", "list_events", "purge", "redrive"}
