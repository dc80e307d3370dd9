"""Any URL as a place for many stores: each has a key prefix, or a folder, of its own."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from penstock.backends.redis.connecting import Script, connect
from penstock.config import Config, StorageSettings, from_url
from penstock.redis_settings import RedisSettings

VARIABLE = "PENSTOCK_TEST_URL"
_REMOVE = Script("remove", b"return redis.call('UNLINK', KEYS[1])")


def place_of(url: str, folder: Path) -> Config:
    """The store that belongs to a folder, on whatever the URL names."""
    config = from_url(url)
    settings = config.default
    if isinstance(settings, RedisSettings):
        own = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        prefix = f"{settings.key_prefix}test-{own}:"
        settings = msgspec.structs.replace(settings, key_prefix=prefix)
    elif isinstance(settings, StorageSettings) and settings.path:
        settings = msgspec.structs.replace(settings, path=str(folder))
    return msgspec.structs.replace(config, default=settings)


def clear(config: Config) -> int:
    """Remove the keys of a store from its server, and no other; how many there were."""
    settings = config.default
    if not isinstance(settings, RedisSettings):
        return 0
    server = connect(settings)
    try:
        found = {key for page in server.scan(_pattern(settings.key_prefix)) for key in page}
        server.run_many([(_REMOVE, [key], []) for key in found])
    finally:
        server.close()
    return len(found)


def _pattern(prefix: str) -> bytes:
    """Matches what begins with the prefix, whatever is in it."""
    return re.sub(r"([*?\[\]\\^])", r"\\\1", prefix).encode() + b"*"
