"""Which server it is that answers, and whether it is the one that was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.backends.redis import driver
from penstock.backends.redis.differences import DIFFERENCES, OLDEST
from penstock.errors import InvalidConfig, PenstockError, Unauthorized
from penstock.redis_settings import RedisSettings


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The server that answers. `detected` False: it did not let us ask, and the URL was believed."""

    flavour: str
    version: str = ""
    mode: str = "standalone"
    detected: bool = True
    lacks: tuple[str, ...] = ()

    def has(self, feature: str) -> bool:
        return feature not in self.lacks

    @property
    def name(self) -> str:
        return f"{self.flavour} {self.version}".rstrip()


Ask = Callable[..., Any]


def detect(ask: Ask, expected: str) -> Profile:
    """Ask the server what it is: INFO, and HELLO where INFO is forbidden."""
    try:
        info = parse_info(ask("INFO", "server"))
        if _identity(info)[0] == "redis" and _numbers(info.get("redis_version", ""))[:1] == (6,):
            info |= parse_info(ask("INFO", "keydb"))  # It poses as the Redis that it was made of.
    except Unauthorized as error:
        if isinstance(error.__cause__, driver.AuthenticationError):
            raise  # Not that we may not ask: we are not let in.
        info = _hello(ask)
    if not info:
        return Profile(flavour=expected, detected=False, lacks=DIFFERENCES[expected].lacks)
    flavour, version = _identity(info)
    mode = info.get("server_mode") or info.get("redis_mode") or info.get("mode") or "standalone"
    lacks = DIFFERENCES[flavour].lacks
    if flavour == "redis" and _numbers(version) < (7,):
        lacks = (*lacks, "functions")
    return Profile(flavour=flavour, version=version, mode=mode, lacks=lacks)


def parse_info(reply: Any) -> dict[str, str]:
    """The lines `name:value` of INFO."""
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line and line[0] != "#")


def _hello(ask: Ask) -> dict[str, str]:
    try:
        reply = ask("HELLO")
    except PenstockError:
        return {}
    words = [word.decode() if isinstance(word, bytes) else str(word) for word in reply]
    found = dict(zip(words[::2], words[1::2], strict=False))
    server, version = found.get("server", ""), found.get("version", "")
    key = "redis_version" if server == "redis" else f"{server}_version"
    return {key: version, "server_name": server, "mode": found.get("mode", "")} if server else {}


def _identity(info: Mapping[str, str]) -> tuple[str, str]:
    if "dragonfly_version" in info:
        return "dragonfly", info["dragonfly_version"].removeprefix("df-").removeprefix("v")
    if info.get("server_name") == "valkey" or "valkey_version" in info:
        return "valkey", info.get("valkey_version", "")
    if "mvcc_depth" in info or info.get("executable", "").endswith("keydb-server"):
        return "keydb", info.get("redis_version", "")
    return "redis", info.get("redis_version", "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check(profile: Profile, settings: RedisSettings) -> None:
    """Refuse a server that is another than the URL says, too old, or not a cluster where one is meant."""
    accepted = DIFFERENCES[settings.flavour].answers_as
    if profile.detected and profile.flavour not in accepted:
        right = settings.scheme.replace(settings.flavour, profile.flavour, 1)
        raise InvalidConfig(
            f"{settings.url} says {settings.flavour}, but {profile.name} answers there; write {right}://"
        )
    if profile.detected and _numbers(profile.version) < OLDEST[profile.flavour]:
        oldest = ".".join(map(str, OLDEST[profile.flavour]))
        raise InvalidConfig(f"{settings.url} is {profile.name}; needed: {profile.flavour} {oldest} or newer")
    if profile.detected and settings.cluster != (profile.mode == "cluster"):
        what, say = ("no member of a cluster", "leave out") if settings.cluster else ("a cluster", "add")
        raise InvalidConfig(f"{settings.url} is {what}; {say} ?cluster=true")
    if settings.min_replicas and not profile.has("wait"):
        raise InvalidConfig(
            f"{settings.url}: min_replicas is {settings.min_replicas}, but {profile.name} cannot be asked to "
            "wait for replicas; leave it out"
        )


def filled(settings: RedisSettings, flavour: str | None = None) -> RedisSettings:
    """The settings with what they leave to the server's kind."""
    differences = DIFFERENCES[flavour or settings.flavour]
    return msgspec.structs.replace(
        settings,
        **{
            name: getattr(differences, name)
            for name in differences.__struct_fields__
            if name in settings.__struct_fields__ and getattr(settings, name) is None
        },
    )
