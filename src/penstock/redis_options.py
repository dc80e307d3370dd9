"""Every key of the Redis family: what it sets, what it accepts, and where it may stand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal, NamedTuple

from penstock.reading import Reader, expanded
from penstock.redis_settings import DEFAULT_PORT, Secret

Kind = Literal[
    "text", "prefix", "flag", "count", "seconds", "part", "path", "secret", "secret_file", "choice"
]

MAX_TEXT_BYTES = 256
DAY_S = 86_400.0
_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|)")
_NODE = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]@/?#,\\]+))(?::([0-9]{1,5}))?")


class Option(NamedTuple):
    """Where a key goes (a field, or one below `retry`, `streams` or `health`), and what it accepts."""

    field: str
    kind: Kind
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()


_COUNT = 1_000_000_000

#: key of a backend -> what it means. Keys with a dot stand in a block of their own.
OPTIONS: dict[str, Option] = {
    "database": Option("database", "count", 0, 65_535),
    "cluster": Option("cluster", "flag"),
    "key_prefix": Option("key_prefix", "prefix"),
    "username": Option("username", "text"),
    "password": Option("password", "secret"),
    "password_file": Option("password", "secret_file"),
    "tls": Option("tls", "flag"),
    "ca_file": Option("ca_file", "path"),
    "cert_file": Option("cert_file", "path"),
    "key_file": Option("key_file", "path"),
    "skip_verify": Option("skip_verify", "flag"),
    "allow_plaintext": Option("allow_plaintext", "flag"),
    "pool_size": Option("pool_size", "count", 1, 10_000),
    "connect_timeout": Option("connect_timeout_s", "seconds", 0.001, DAY_S),
    "read_timeout": Option("read_timeout_s", "seconds", 0.001, DAY_S),
    "write_timeout": Option("write_timeout_s", "seconds", 0.001, DAY_S),
    "pipeline_size": Option("pipeline_size", "count", 1, 100_000),
    "compression": Option("compression", "flag"),
    "lua_script_cache": Option("lua_script_cache", "flag"),
    "min_replicas": Option("min_replicas", "count", 0, 100),
    "replica_timeout": Option("replica_timeout_s", "seconds", 0.001, 3600),
    "durability": Option("durability", "choice", choices=("sync", "interval", "os")),
    "block_timeout": Option("streams.block_timeout_s", "seconds", 0.001, DAY_S),
    "claim_min_idle": Option("streams.claim_min_idle_s", "seconds", 0.001, DAY_S),
    "claim_count": Option("streams.claim_count", "count", 1, 1000),
    "max_length": Option("streams.max_length", "count", 1, _COUNT),
    "trim_strategy": Option("streams.trim_strategy", "choice", choices=("MAXLEN", "MINID")),
    "retry.attempts": Option("retry.attempts", "count", 1, 100),
    "retry.first_delay": Option("retry.first_delay_s", "seconds", 0.001, 3600),
    "retry.max_delay": Option("retry.max_delay_s", "seconds", 0.001, 3600),
    "retry.breaker_failures": Option("retry.breaker_failures", "count", 1, 10_000),
    "retry.breaker_open": Option("retry.breaker_open_s", "seconds", 0.001, 3600),
    "health.max_latency": Option("health.max_latency_s", "seconds", 0.001, 3600),
    "health.max_error_rate": Option("health.max_error_rate", "part", 0, 1),
    "health.max_lag": Option("health.max_lag", "count", 0, _COUNT),
    "health.max_memory_ratio": Option("health.max_memory_ratio", "part", 0, 1),
    "health.max_oldest_age": Option("health.max_oldest_age_s", "seconds", 0.001, 3650 * DAY_S),
    "health.max_depth": Option("health.max_depth", "count", 0, _COUNT),
}
ALIASES = {
    "auth": "password",
    "auth_token": "password",
    "connection_pool": "pool_size",
    "max_pipeline_size": "pipeline_size",
}
_STREAMS = tuple(name for name, option in OPTIONS.items() if option.field.startswith("streams."))
SECURITY = (
    *("username", "password", "password_file", "auth", "auth_token", "tls"),
    *("ca_file", "cert_file", "key_file", "skip_verify", "allow_plaintext"),
)
_SPEED = ("pool_size", "connect_timeout", "read_timeout", "write_timeout", "pipeline_size", "compression")
TUNING = (
    *("pipeline_size", "max_pipeline_size", "connection_pool", "lua_script_cache", "block_timeout"),
    *("max_length", "trim_strategy", "read_timeout", "write_timeout", "compression"),
)
#: Blocks below a backend and the keys of each.
GROUPS: dict[str, tuple[str, ...]] = {
    "stream_config": _STREAMS,
    "performance": (*_SPEED, "lua_script_cache"),
    "config": TUNING,
    "security": SECURITY,
    **{
        group: tuple(name.partition(".")[2] for name in OPTIONS if name.startswith(f"{group}."))
        for group in ("retry", "health")
    },
}
FLAT = tuple(name for name in OPTIONS if "." not in name)
BLOCK = ("driver", "url", "kind", *FLAT, "auth", "auth_token", "encryption", *GROUPS)
#: What a URL leaves to its other parts, or would show to everyone who lists processes.
URL = tuple(name for name in FLAT if name not in ("database", "username", "password", "tls"))
#: Keys of a queue, below the name of its server's kind.
QUEUE = (
    *("database", "key_prefix", "endpoint", "pool_size", "read_timeout"),
    *("stream_name", "consumer_group", "max_length"),
)
OWN = {
    "stream_name": Option("stream_name", "text"),
    "consumer_group": Option("consumer_group", "text"),
    "max_length": OPTIONS["max_length"],
}


def option_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """The key that the words below a backend mean: ("performance", "read_timeout") is ("read_timeout",)."""
    if len(words) == 2 and words[0] in GROUPS and words[0] not in ("retry", "health"):
        words = words[1:]
    return tuple(ALIASES.get(word, word) for word in words)


def node(reader: Reader, key: str, place: object) -> tuple[str, int]:
    """(host, port) of host, host:port or [address]:port."""
    match = _NODE.fullmatch(place) if isinstance(place, str) else None
    port = int(match[3] or DEFAULT_PORT) if match else 0
    if match is None or not 1 <= port <= 65_535:
        raise reader.refusal(key, "must name a server as host, host:port or [IPv6 address]:port")
    return match[1] or match[2], port


def converted(reader: Reader, key: str, option: Option, raw: object) -> object:
    """The value of a key; what it does not accept is refused. A secret is never shown."""
    if option.kind == "seconds":
        return _seconds(reader, key, option, raw)
    if option.kind in ("count", "part"):
        return _number(reader, key, option, raw)
    if option.kind == "flag":
        if not isinstance(raw, bool):
            raise reader.refusal(key, f"is {reader.shown(key, raw)}; accepted: true, false")
        return raw
    if option.kind == "choice":
        if raw not in option.choices:
            raise reader.refusal(key, f"is {reader.shown(key, raw)}; accepted: {', '.join(option.choices)}")
        return raw
    return _text(reader, key, option, raw)


def _text(reader: Reader, key: str, option: Option, raw: object) -> object:
    if not isinstance(raw, str) or "\0" in raw or (not raw and option.kind != "prefix"):
        raise reader.refusal(key, "must be text that is not empty; put it in quotes")
    if option.kind == "secret":
        return Secret(raw, template=reader.written.get(key))
    if option.kind in ("path", "secret_file"):
        path = str(Path(reader.folder, expanded(raw, reader.environ)).absolute())
        return Secret(file=path) if option.kind == "secret_file" else path
    if len(raw.encode(errors="surrogateescape")) > MAX_TEXT_BYTES:
        raise reader.refusal(key, f"is too long; accepted: up to {MAX_TEXT_BYTES} bytes")
    if option.kind == "prefix" and re.search("[{}]", raw):
        raise reader.refusal(key, "must not have { or } in it: they say which server of a cluster has a key")
    return raw


def _seconds(reader: Reader, key: str, option: Option, raw: object) -> float:
    match = _DURATION.fullmatch(raw) if isinstance(raw, str) else None
    if match is not None:
        value = float(match[1]) * _UNITS_S[match[2]]
    else:
        value = float(raw) if isinstance(raw, (int, float)) and not isinstance(raw, bool) else math.nan
    if not option.low <= value <= option.high:
        raise reader.refusal(
            key,
            f"is {reader.shown(key, raw)}; accepted: {option.low:g} to {option.high:g} seconds, "
            "or a number with ms, s, m or h",
        )
    return value


def _number(reader: Reader, key: str, option: Option, raw: object) -> float:
    """A whole number, or for a part any number, also as the text that a URL has."""
    value: object = raw
    if isinstance(raw, str) and re.fullmatch("[0-9]{1,10}", raw):
        value = int(raw)
    elif isinstance(raw, str) and option.kind == "part" and re.fullmatch(r"[0-9]?\.[0-9]{1,9}", raw):
        value = float(raw)
    accepted = (int, float) if option.kind == "part" else (int,)
    is_number = isinstance(value, accepted) and not isinstance(value, bool)
    if not is_number or not option.low <= value <= option.high:  # type: ignore[operator]  # a number
        what = "" if option.kind == "part" else " whole numbers"
        shown = reader.shown(key, raw)
        raise reader.refusal(key, f"is {shown}; accepted:{what} {option.low:g} to {option.high:.15g}")
    return value  # type: ignore[return-value]  # a number


def plain(option: Option, text: str) -> object:
    """What a URL's text stands for."""
    return {"true": True, "false": False}.get(text.lower(), text) if option.kind == "flag" else text
