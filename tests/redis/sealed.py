"""What tests of encryption on Redis look at: everything that the server has, and what of it can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import Penstock
from tests.encryption.stores import SECRETS, contents
from tests.redis.stores import Place

#: What is there, sealed or not, once `fill` is done: the log alone has what was removed.
STAYING = set(SECRETS) - {"removed-payload"}


def everything(place: Place) -> dict[bytes, Any]:
    return stored_on(place.client, place.prefix)


def stored_on(client: Any, prefix: str) -> dict[bytes, Any]:
    """By content: how a server has it laid out differs from one moment to the next."""
    readers: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"stream": client.xrange,
        b"string": client.get,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    return {key: readers[client.type(key)](key) for key in client.keys(f"{prefix}*")}


def readable(place: Place) -> set[str]:
    """Which of the secrets some value on the server shows."""
    return shown_by(everything(place))


def shown_by(found: dict[bytes, Any]) -> set[str]:
    text = repr(found)
    return {name for name, word in SECRETS.items() if word in text}


def all_contents(ps: Penstock) -> dict[str, Any]:
    """Without the sizes of journals: sealed ones are larger."""
    return {
        name: found if name in ("entries", "state") else found[:2] for name, found in contents(ps).items()
    }
