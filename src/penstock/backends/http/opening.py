"""Opens `http://` and `https://`: the store behind a running server."""

from __future__ import annotations

import random

from penstock.backends.http import place
from penstock.backends.http.backend import HttpBackend
from penstock.clock import Clock
from penstock.config import BackendSettings


def open_http(
    settings: BackendSettings, clock: Clock | None = None, rng: random.Random | None = None
) -> HttpBackend:
    """The time and what is random are the server's."""
    return HttpBackend(place.read(settings))
