"""Which server it is, and the one table of how servers of the family differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.backends.redis import driver
from penstock.errors import InvalidConfig, PenstockError, Unauthorized
from penstock.redis_settings import RedisSettings


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """What one server of the family has of its own.

    `lacks` names features; `answers_as` the names under which it may answer. The rest are the values of
    settings that the configuration leaves out.
    """

    lacks: tuple[str, ...] = ()
    answers_as: tuple[str, ...] = ()
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 5.0
    write_timeout_s: float = 5.0
    pool_size: int = 20
    pipeline_size: int = 100
    compression: bool = False


#: KeyDB and Dragonfly use many threads, so that longer pipelines pay there. Dragonfly runs a script only
#: if every key is declared, and has no cluster bus of Redis's own kind.
DIFFERENCES: dict[str, Differences] = {
    "redis": Differences(answers_as=("redis",)),
    "valkey": Differences(answers_as=("valkey",)),
    "keydb": Differences(answers_as=("keydb",), lacks=("functions",), pipeline_size=1000),
    "dragonfly": Differences(
        answers_as=("dragonfly",), lacks=("functions", "wait", "aof"), pipeline_size=1000
    ),
}

#: Before these, a server lacks what the backends need: LMOVE, and streams that can be trimmed by id.
OLDEST = {"redis": (6, 2), "valkey": (7, 2), "keydb": (6, 3), "dragonfly": (1, 0)}


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
