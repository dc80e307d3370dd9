"""Which backends there are, which of them can be used here, and which of those configured answer."""

from __future__ import annotations

from importlib import import_module

import msgspec

from penstock.backends import registry
from penstock.backends.base import HealthNumbers
from penstock.backends.redis.differences import DIFFERENCES
from penstock.backends.redis.kinds import is_part_of_this_version
from penstock.capabilities import Capabilities
from penstock.clock import Clock, SystemClock
from penstock.config import AnySettings, Config, StorageSettings, masked_url
from penstock.errors import PenstockError
from penstock.redis_settings import FLAVOURS, KINDS, RedisSettings

_REDIS = "penstock.backends.redis.capabilities"

#: engine or URL scheme -> where its capabilities are, as long as no server has a say in them.
CAPABILITIES: dict[str, str] = {
    "memory": "penstock.backends.embedded.capabilities:IN_MEMORY",
    "rocksdb": "penstock.backends.embedded.capabilities:CAPABILITIES",
    **{f"{flavour}+{kind}": f"{_REDIS}:{kind.upper()}" for flavour in FLAVOURS for kind in KINDS},
}


class KnownBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of backend. `hint` says what to install; `capabilities` None: known once it is open."""

    scheme: str
    installed: bool
    hint: str = ""
    tls_scheme: str | None = None
    capabilities: Capabilities | None = None


class ConfiguredBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend of a configuration. `answers` None: there is no store yet, and looking makes none."""

    name: str
    scheme: str
    place: str
    answers: bool | None
    server: str | None = None
    latency_s: float | None = None
    problem: str = ""
    warnings: list[str] = []
    capabilities: Capabilities | None = None
    numbers: HealthNumbers | None = None


#: What may have an `s` in its scheme.
_OVER_TLS = {*registry.SERVERS, "http"}


def known_backends() -> list[KnownBackend]:
    """Those that ship, and those that other packages register."""
    found = []
    for scheme in registry.known():
        if scheme in registry.SERVERS and scheme not in CAPABILITIES:
            continue  # The same over TLS.
        if scheme == "https":
            continue  # As well.
        flavour, plus, kind = scheme.partition("+")
        hint = str(registry.not_installed(scheme) or "")
        if scheme in registry.SERVERS and not is_part_of_this_version(kind):
            hint = "not part of this version of Penstock"
        found.append(
            KnownBackend(
                scheme=scheme,
                installed=not hint,
                hint=hint,
                tls_scheme=f"{flavour}s{plus}{kind}" if scheme in _OVER_TLS else None,
                capabilities=capabilities_of(scheme),
            )
        )
    return found


def capabilities_of(scheme: str, cluster: bool = False) -> Capabilities | None:
    """What a kind of backend can do, where that does not depend on its server."""
    module, _, name = CAPABILITIES.get(scheme, "").partition(":")
    name += "_CLUSTER" if cluster else ""
    try:
        found: Capabilities | None = getattr(import_module(module), name, None) if module else None
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None
    lacks = DIFFERENCES[scheme.partition("+")[0]].lacks if scheme in registry.SERVERS else ()
    if found is not None and "aof" in lacks:
        return msgspec.structs.replace(found, persistence=False)
    return found


def configured_backends(config: Config, clock: Clock | None = None) -> list[ConfiguredBackend]:
    """Every backend of a configuration, asked now, one after the other."""
    clock = clock or SystemClock()
    missing = set(registry.missing_stores(config))
    return [_asked(name, settings, missing, clock) for name, settings in config.all_backends().items()]


def _asked(name: str, settings: AnySettings, missing: set[str], clock: Clock) -> ConfiguredBackend:
    scheme, place = _named(settings)
    if place in missing:
        return ConfiguredBackend(name=name, scheme=scheme, place=place, answers=None)
    try:
        if isinstance(settings, RedisSettings):
            return _asked_server(name, settings, clock)
        backend = registry.open_backend(settings, None, None)
        try:
            started_ns = clock.now_ns()
            info = backend.info()
            latency_s = (clock.now_ns() - started_ns) / 1e9
            numbers = backend.health().numbers
        finally:
            backend.close()
    except PenstockError as error:
        return ConfiguredBackend(name=name, scheme=scheme, place=place, answers=False, problem=str(error))
    return ConfiguredBackend(
        name=name,
        scheme=scheme,
        place=place,
        answers=True,
        server=info.engine,
        latency_s=latency_s,
        capabilities=info.capabilities,
        numbers=numbers,
    )


def _asked_server(name: str, settings: RedisSettings, clock: Clock) -> ConfiguredBackend:
    """Without opening the store on it: nothing is made there."""
    missing = registry.not_installed(settings.scheme)
    if missing is not None:
        raise missing
    from penstock.backends.redis.connecting import connect
    from penstock.backends.redis.health import NONE, durability_of, loss_reasons, server_numbers

    once = msgspec.structs.replace(settings.retry, attempts=1)
    server = connect(msgspec.structs.replace(settings, retry=once), clock=clock)
    try:
        health = server.health()
        durability = durability_of(server)
        losses = list(loss_reasons(server, durability))
        numbers = server_numbers(server)
    finally:
        server.close()
    can = capabilities_of(f"{settings.flavour}+{settings.kind}", settings.cluster)
    if can is not None and durability == NONE:
        can = msgspec.structs.replace(can, persistence=False)
    return ConfiguredBackend(
        name=name,
        scheme=settings.scheme,
        place=settings.url,
        answers=health.reachable,
        server=health.server,
        latency_s=health.latency_p50_s,
        warnings=[*health.warnings, *losses],
        capabilities=can,
        numbers=numbers,
    )


def _named(settings: AnySettings) -> tuple[str, str]:
    """(scheme, place), with nothing secret in them."""
    if isinstance(settings, StorageSettings):
        return settings.engine, settings.path
    if isinstance(settings, RedisSettings):
        return settings.scheme, settings.url
    return settings.url.partition(":")[0], masked_url(settings.url)
