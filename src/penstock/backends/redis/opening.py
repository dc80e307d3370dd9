"""The factory of the backend on Redis lists; what it cannot do, or its server does not give, is refused."""

from __future__ import annotations

import random

from penstock.backends.redis.backend import RedisBackend
from penstock.backends.redis.connecting import connect
from penstock.backends.redis.health import WEAKEST_FIRST, durability_of
from penstock.backends.redis.keys import Keys
from penstock.backends.redis.seals import Seals
from penstock.clock import Clock
from penstock.errors import InvalidConfig
from penstock.keyring import KeyProvider, configured_keys
from penstock.redis_settings import RedisSettings


def open_lists(
    settings: RedisSettings, clock: Clock | None, rng: random.Random | None, keys: KeyProvider | None
) -> RedisBackend:
    _check(settings)
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
        layout = Keys(settings.key_prefix)
        # First of all: a store whose keys are not there, or not the right ones, is left as it is.
        seals = Seals(server, layout, encryption, provider, settings.url)
        return RedisBackend(server, layout, seals, clock, rng, settings.url)
    except BaseException:
        server.close()
        raise


def _check(settings: RedisSettings) -> None:
    """Nothing that was asked for is left out in silence."""
    refused = {"encryption": settings.encryption.enabled, "streams": settings.kind == "streams"}
    for what, asked in refused.items():
        if settings.cluster and asked:
            raise InvalidConfig(f"{settings.url}: {what} on a cluster is not part of this version")
