"""Settings of the Redis family, frozen and typed: what its backends are opened with."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from penstock.errors import InvalidConfig
from penstock.settings import EncryptionSettings, HealthSettings

FLAVOURS = ("redis", "valkey", "keydb", "dragonfly")
KINDS = ("lists", "streams")
DEFAULT_PORT = 6379
MAX_SECRET_BYTES = 64 * 1024

_VARIABLE = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)\})")


class Secret:
    """A password that can be read again: it may be in a file, or name variables of the environment.

    It has no text form and no JSON, so that nothing which prints settings can show it.
    """

    def __init__(self, text: str = "", *, file: str | None = None, template: str | None = None) -> None:
        self._text = text
        self._template = template
        self.file = file

    @property
    def template(self) -> str | None:
        """Its text with names of variables in place of their values, if it has some."""
        return self._template

    @property
    def can_change(self) -> bool:
        """Whether reading it again may give something else."""
        return self.file is not None or self._template is not None

    def read(self, environ: Mapping[str, str] = os.environ) -> str:
        """What it is now. A file's last line end is not part of it."""
        if self.file is not None:
            return _file_text(self.file)
        if self._template is not None:
            names = [name for name in _VARIABLE.findall(self._template) if name]
            if all(name in environ for name in names):
                return _VARIABLE.sub(lambda match: environ[match[1]] if match[1] else "$", self._template)
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self._text, self.file, self._template))

    def __repr__(self) -> str:
        return "Secret(***)"


def _file_text(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            raw = stream.read(MAX_SECRET_BYTES + 1)
        text = raw.decode()
    except OSError as error:
        raise InvalidConfig(f"password_file {path!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidConfig(f"password_file {path!r} is not UTF-8; save the password as text") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text or len(raw) > MAX_SECRET_BYTES or "\n" in text:
        raise InvalidConfig(f"password_file {path!r} must hold the password, on one line, and nothing else")
    return text


class StreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How streams are read, claimed and trimmed. `max_length` None: nothing is trimmed."""

    block_timeout_s: float = 1.0
    claim_min_idle_s: float = 30.0
    claim_count: int = 100
    max_length: int | None = None
    trim_strategy: Literal["MAXLEN", "MINID"] = "MAXLEN"


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often a call is sent again, how long it waits before, and when nothing is sent for a while."""

    attempts: int = 5
    first_delay_s: float = 0.05
    max_delay_s: float = 1.0
    breaker_failures: int = 10
    breaker_open_s: float = 1.0


class RedisQueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one queue has of its own on a backend; None: as its backend."""

    stream_name: str | None = None
    consumer_group: str | None = None
    max_length: int | None = None


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One backend on a server or cluster of the Redis family. None: what suits the server that answers."""

    flavour: str = "redis"
    kind: str = "lists"
    nodes: tuple[tuple[str, int], ...] = (("localhost", DEFAULT_PORT),)
    database: int = 0
    cluster: bool = False
    key_prefix: str = "penstock:"

    username: str | None = None
    password: Secret | None = None
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    skip_verify: bool = False
    allow_plaintext: bool = False

    pool_size: int | None = None
    connect_timeout_s: float | None = None
    read_timeout_s: float | None = None
    write_timeout_s: float | None = None
    pipeline_size: int | None = None
    compression: bool | None = None
    lua_script_cache: bool = True
    retry: RetrySettings = RetrySettings()

    min_replicas: int = 0
    replica_timeout_s: float = 1.0

    durability: Literal["sync", "interval", "os"] | None = None
    streams: StreamSettings = StreamSettings()
    health: HealthSettings = HealthSettings()
    encryption: EncryptionSettings = EncryptionSettings()
    queues: dict[str, RedisQueueSettings] = {}

    @property
    def scheme(self) -> str:
        """As a URL would begin."""
        return f"{self.flavour}{'s' if self.tls else ''}+{self.kind}"

    @property
    def address(self) -> str:
        """Where it is, for people: without user and password."""
        return ",".join(endpoint(host, port) for host, port in self.nodes)

    @property
    def url(self) -> str:
        """What a URL would say, without secrets."""
        path = "?cluster=true" if self.cluster else f"/{self.database}"
        return f"{self.scheme}://{self.address}{path}"


def endpoint(host: str, port: int) -> str:
    """host:port; an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its very name; names that would have to be looked up are not."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().rstrip(".").endswith(".localhost")


def check_plaintext(settings: RedisSettings, host: str) -> None:
    """Refuse to send passwords and payloads over a network for everyone to read, unless told to."""
    if not settings.tls and not settings.allow_plaintext and not is_loopback(host):
        raise InvalidConfig(
            f"{settings.url} would send everything unencrypted to {host}, which is not this machine; "
            f"use {settings.flavour}s+{settings.kind}:// (tls: true), or set allow_plaintext: true"
        )


def schemes() -> list[str]:
    """Every URL scheme of the family."""
    return [f"{flavour}{tls}+{kind}" for flavour in FLAVOURS for tls in ("", "s") for kind in KINDS]
