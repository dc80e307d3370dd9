"""What the URL schemes of the family open: the kind of store that each names, imported when asked for."""

from __future__ import annotations

import random
from importlib import import_module
from importlib.util import find_spec

from penstock.backends.base import QueueBackend
from penstock.clock import Clock
from penstock.errors import InvalidConfig
from penstock.keyring import KeyProvider
from penstock.redis_settings import RedisSettings

#: kind -> what opens it: takes settings, clock, generator and where keys come from.
ENGINES: dict[str, str] = {
    "lists": "penstock.backends.redis.opening:open_lists",
    "streams": "penstock.backends.redis.streams:open_streams",
}


def is_part_of_this_version(kind: str) -> bool:
    return find_spec(ENGINES[kind].partition(":")[0]) is not None


def open_redis(
    settings: RedisSettings, clock: Clock | None, rng: random.Random | None, keys: KeyProvider | None = None
) -> QueueBackend:
    """Open a backend on a server of the family. The driver is needed from here on."""
    if not is_part_of_this_version(settings.kind):
        raise InvalidConfig(f"{settings.scheme} is not part of this version of Penstock")
    module, _, name = ENGINES[settings.kind].partition(":")
    backend: QueueBackend = getattr(import_module(module), name)(settings, clock, rng, keys)
    return backend
