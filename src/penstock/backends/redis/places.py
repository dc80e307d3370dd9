"""Opening stores at their places, in processes that were told nothing else."""

from __future__ import annotations

from penstock.backends.redis.connecting import Server, connect
from penstock.backends.redis.engine import Engine
from penstock.backends.redis.keys import Keys, keys_of
from penstock.backends.redis.seals import Seals
from penstock.clock import Clock, SystemClock
from penstock.keyring import KeyProvider
from penstock.redis_places import settings_at, shown
from penstock.settings import EncryptionSettings


def reached(place: str) -> tuple[Server, Keys]:
    """The server of a place, which is to be closed, and the store's keys on it."""
    settings = settings_at(place)
    return connect(settings), keys_of(settings)


def opened(place: str, provider: KeyProvider, clock: Clock) -> Engine:
    """A store for reading or staging, without anything that keeps house; its server is to be closed."""
    server, keys = reached(place)
    try:
        # Keys are as the store lists them, whatever anyone's settings say now.
        seals = Seals(server, keys, EncryptionSettings(enabled=None), provider, shown(place))
        return Engine(server, keys, seals, None if isinstance(clock, SystemClock) else clock, None)
    except BaseException:
        server.close()
        raise
