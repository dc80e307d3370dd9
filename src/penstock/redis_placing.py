"""Queues that want a server, database or prefix of their own on a backend of the Redis family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.reading import Reader, join
from penstock.redis_config import checked_block
from penstock.redis_options import OPTIONS, OWN, QUEUE, converted, node
from penstock.redis_settings import RedisQueueSettings, RedisSettings


def for_queue(
    reader: Reader, key: str, block: object, base: RedisSettings
) -> tuple[RedisSettings, RedisQueueSettings | None]:
    """The backend as a queue wants it, and what the queue has of its own there."""
    values = checked_block(reader, key, block, QUEUE)
    changes: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for leaf, content in values.items():
        below = join(key, leaf)
        if leaf == "endpoint":
            changes["nodes"] = (node(reader, below, content),)
        elif leaf in OWN:
            if base.kind != "streams":
                raise reader.refusal(below, f"goes with streams; its backend keeps {base.kind}")
            own[leaf] = converted(reader, below, OWN[leaf], content)
        else:
            changes[OPTIONS[leaf].field] = converted(reader, below, OPTIONS[leaf], content)
    if base.cluster and changes.get("database"):
        raise reader.refusal(f"{key}.database", "must be 0: a cluster has no other")
    return msgspec.structs.replace(base, queues={}, **changes), RedisQueueSettings(**own) if own else None


def place_queue(
    reader: Reader, queue: str, backend: str, blocks: Mapping[str, object], backends: dict[str, Any]
) -> str:
    """The backend that a queue lives on: its own, or one like it with the queue's database, prefix or server.

    One that is not there yet is added, under the names of both.
    """
    for word, block in blocks.items():
        key = f"{join('queues', queue)}.{word}"
        base = backends.get(backend)
        if not isinstance(base, RedisSettings) or word not in ("redis", base.flavour):
            what = base.flavour if isinstance(base, RedisSettings) else "another kind"
            raise reader.refusal(key, f"goes with a backend of {word}; that of this queue is of {what}")
        wanted, own = for_queue(reader, key, block, base)
        backend = _home(reader, key, f"{backend}/{queue}", wanted, backends)
        if own is not None:
            home = backends[backend]
            backends[backend] = msgspec.structs.replace(home, queues={**home.queues, queue: own})
    return backend


def _home(
    reader: Reader, key: str, new: str, wanted: RedisSettings, backends: dict[str, RedisSettings]
) -> str:
    for name, there in backends.items():
        if not isinstance(there, RedisSettings) or _keyspace(there) != _keyspace(wanted):
            continue
        if msgspec.structs.replace(there, queues={}) == wanted:
            return name
        raise reader.refusal(
            key,
            f"differs from backend {name!r}, but has its server, database and key_prefix: give the queue a "
            "key_prefix of its own, or set these keys on the backend",
        )
    if new in backends:
        raise reader.refusal(key, f"needs a backend of its own, {new!r}, but one is called so; rename that")
    backends[new] = wanted
    return new


def _keyspace(settings: RedisSettings) -> tuple[object, ...]:
    return settings.nodes, settings.database, settings.key_prefix, settings.kind
