"""The factory of the backend on Redis streams."""

from __future__ import annotations

import random

from penstock.backends.redis.backend import RedisBackend
from penstock.backends.redis.capabilities import STREAMS_SORT
from penstock.backends.redis.opening import open_sort
from penstock.clock import Clock
from penstock.keyring import KeyProvider
from penstock.redis_settings import RedisSettings


def open_streams(
    settings: RedisSettings, clock: Clock | None, rng: random.Random | None, keys: KeyProvider | None
) -> RedisBackend:
    return open_sort(settings, clock, rng, STREAMS_SORT)
