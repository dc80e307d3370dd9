"""The factories of the backends on Redis; what one cannot do, or its server does not give, is refused."""

from __future__ import annotations

import random
from typing import TypeVar

from penstock.backends.redis.backend import RedisBackend
from penstock.backends.redis.capabilities import LISTS_SORT, Sort
from penstock.backends.redis.connecting import connect
from penstock.backends.redis.health import WEAKEST_FIRST, durability_of
from penstock.backends.redis.keys import keys_of
from penstock.backends.redis.seals import Seals
from penstock.clock import Clock
from penstock.errors import InvalidConfig
from penstock.keyring import KeyProvider, configured_keys
from penstock.redis_settings import RedisSettings

T = TypeVar("T", bound=RedisBackend)


def open_lists(
    settings: RedisSettings, clock: Clock | None, rng: random.Random | None, keys: KeyProvider | None
) -> RedisBackend:
    return opened(RedisBackend, settings, clock, rng, keys, LISTS_SORT)


def opened(
    backend: type[T],
    settings: RedisSettings,
    clock: Clock | None,
    rng: random.Random | None,
    keys: KeyProvider | None,
    sort: Sort,
) -> T:
    """A store of a sort, if its server gives what is asked of it."""
    encryption = settings.encryption
    provider = keys or configured_keys(encryption.key_file, encryption.key_command)
    # The connection waits for real, whatever the clock of the queues says.
    server = connect(settings)
    try:
        given = durability_of(server)
        asked = settings.durability
        if asked is not None and WEAKEST_FIRST.index(given) < WEAKEST_FIRST.index(asked):
            raise InvalidConfig(
                f"{settings.url}: durability is {asked!r}, but the server gives {given!r}; set appendonly "
                "and appendfsync there, or ask for less"
            )
        layout = keys_of(settings)
        # First of all: a store whose keys are not there, or not the right ones, is left as it is.
        seals = Seals(server, layout, encryption, provider, settings.url)
        return backend(server, layout, seals, clock, rng, settings.url, sort)
    except BaseException:
        server.close()
        raise
