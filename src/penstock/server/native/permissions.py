"""What each call of the native interface needs to be allowed, and on which queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from penstock.errors import PenstockError, Unauthorized
from penstock.message import SERVER_STATE_PREFIX, checked_name
from penstock.server.access import PERMISSIONS, STORE, Permission, Principal
from penstock.server.audit import WORLD
from penstock.settings import QueueSettings

#: Calls whose first argument is a queue's name, or its settings.
OF_QUEUE: dict[str, Permission] = {
    **dict.fromkeys(("enqueue", "upsert", "begin_write"), "enqueue"),
    **dict.fromkeys(("lease", "lease_group", "ack", "nack", "reject", "extend"), "consume"),
    **dict.fromkeys(("open_cursor", "read_cursor", "commit_cursor", "drop_cursor"), "consume"),
    **dict.fromkeys(("create_group", "group_line"), "consume"),
    **dict.fromkeys(("get_many", "peek", "page", "stats", "key_stats"), "read"),
    **dict.fromkeys(("events", "cursors", "groups"), "read"),
    **dict.fromkeys(("create_queue", "update_queue", "delete_queue", "purge"), "admin"),
    **dict.fromkeys(("move", "redrive", "drop_group", "restore"), "admin"),
}
#: Calls with settings of several queues, each of which needs what this one call for it does.
OF_QUEUES = {"declare_queues": "create_queue"}
#: Calls that concern no queue, or all of them.
OF_STORE: dict[str, Permission] = {
    "append_entries": "enqueue",
    **dict.fromkeys(("due", "scan_entries", "get_entries", "world_stats", "get_state"), "read"),
    **dict.fromkeys(("get_throttle", "throttles", "health", "metrics"), "read"),
    **dict.fromkeys(("replace_queues", "configure_world", "put_state", "delete_state"), "admin"),
    **dict.fromkeys(("set_throttle", "delete_throttle", "check", "reindex", "rekey", "sweep"), "admin"),
    **dict.fromkeys(("quarantine", "quarantine_get", "quarantine_drop"), "admin"),
}
#: Whoever is let in may ask these, and is told what concerns it.
OF_ANYBODY = ("info", "queues", "queue")
#: What these may do is in what the server has sealed: `Bulk` looks at it.
OF_TICKET = ("take_snapshot", "commit_write", "abort_write")
#: Administration that is written down before it is done.
AUDITED = frozenset(
    {"create_queue", "update_queue", "delete_queue", "replace_queues", "purge", "move", "redrive", "restore"}
    | {
        "declare_queues",
        "drop_group",
        "configure_world",
        "put_state",
        "delete_state",
        "set_throttle",
        "delete_throttle",
    }
    | {"reindex", "rekey", "quarantine_drop"}
)


def queue_of(method: str, args: Sequence[Any]) -> str:
    """The queue that a call is about; `STORE` where it is about none, or about what is no queue's name."""
    if method not in OF_QUEUE and method != "queue":
        return STORE
    name = args[0].name if isinstance(args[0], QueueSettings) else args[0]
    try:
        checked_name(name, "queue")
    except PenstockError:
        return STORE  # The line of a consumer group, or nonsense: for those who may do it everywhere.
    return str(name)


def check(who: Principal, method: str, args: Sequence[Any]) -> None:
    """Raise `Unauthorized` for what this principal may not do."""
    for permission, queue in _needed(method, args):
        if not who.may(permission, queue):
            where = f"on queue {queue!r}" if queue != STORE else "on all queues ('*')"
            raise Unauthorized(f"{method} needs the permission {permission!r} {where}, which this key lacks")
    if method == "queue" and not sees(who, queue_of(method, args)):
        raise Unauthorized("queue needs some permission on the queue, and this key has none there")
    if method in ("append_entries", "configure_world") and args[0] == WORLD:
        raise Unauthorized(f"the world {WORLD!r} is the server's alone, to write and to shorten")
    if method in ("get_state", "put_state", "delete_state") and str(args[0]).startswith(SERVER_STATE_PREFIX):
        raise Unauthorized(f"state below {SERVER_STATE_PREFIX!r} is the server's alone")


def sees(who: Principal, queue: str) -> bool:
    """Whether it may know that the queue exists."""
    return any(who.may(permission, queue) for permission in PERMISSIONS)


def _needed(method: str, args: Sequence[Any]) -> Iterator[tuple[Permission, str]]:
    if method in OF_STORE:
        yield OF_STORE[method], STORE
    elif method in OF_QUEUE:
        yield OF_QUEUE[method], queue_of(method, args)
    if method == "move":
        yield "enqueue", queue_of("queue", args[2:])
    elif method == "redrive":
        # Without a target, each message goes back to where it came from, wherever that is.
        yield "enqueue", STORE if args[2] is None else queue_of("queue", args[2:])
    elif method in ("create_queue", "update_queue"):
        settings: QueueSettings = args[0]
        if settings.dead_letter is not None:
            yield "enqueue", queue_of("queue", [settings.dead_letter])
        if settings.on_enqueue is not None or settings.on_failure is not None:
            yield "admin", STORE  # Scripts read the store's state.
    elif method in OF_QUEUES:
        for one in args[0]:
            yield from _needed(OF_QUEUES[method], [one])
