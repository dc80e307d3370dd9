"""The factory of the backend on Redis lists."""

from __future__ import annotations

import random

from penstock.backends.redis.backend import RedisBackend
from penstock.backends.redis.connecting import connect, settings_of
from penstock.backends.redis.keys import Keys
from penstock.clock import Clock
from penstock.config import BackendSettings, masked_url


def open_lists(settings: BackendSettings, clock: Clock | None, rng: random.Random | None) -> RedisBackend:
    wanted = settings_of(settings.url)
    server = connect(wanted)
    try:
        return RedisBackend(server, Keys(wanted.prefix), clock, rng, masked_url(settings.url))
    except BaseException:
        server.close()
        raise
