"""Which backends there are: one table, plus what other packages register under `penstock.backends`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.backends.base import QueueBackend
from penstock.backends.bulk import BulkReader, BulkWriter, Snapshot, WriteTicket
from penstock.backends.unlocking import needed_key
from penstock.clock import Clock, SystemClock
from penstock.config import (
    DEFAULT,
    AnySettings,
    BackendSettings,
    Config,
    HookSettings,
    StorageSettings,
    masked_url,
)
from penstock.errors import BackendNotInstalled, InvalidConfig
from penstock.keyring import EnvironmentKeys, KeyProvider, configured_keys
from penstock.redis_settings import RedisSettings, check_plaintext, schemes

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints
    from types import ModuleType

ENTRY_POINT_GROUP = "penstock.backends"
#: Either of them tells a folder that holds a store from one that does not.
_SIGNS = ("PENSTOCK", "CURRENT")

#: engine or URL scheme -> the factory, imported when it is asked for.
BUILT_IN: dict[str, str] = {
    "memory": "penstock.backends.embedded.opening:open_memory",
    "rocksdb": "penstock.backends.sharing:open_rocksdb",
}

#: URL scheme of a server -> (the factory, the extra that its driver comes with).
SERVERS: dict[str, tuple[str, str]] = dict.fromkeys(
    schemes(), ("penstock.backends.redis.kinds:open_redis", "redis")
)

#: URL scheme of another Penstock's server -> the factory.
REMOTE: dict[str, str] = dict.fromkeys(("http", "https"), "penstock.backends.http.opening:open_http")

#: extra -> the package without which its backends cannot be opened.
DRIVERS: dict[str, str] = {"redis": "redis"}

#: What a snapshot says that it is read by -> the module that opens and releases it, imported when asked for.
READERS: dict[str, str] = {
    "rocksdb": "penstock.backends.embedded.tables.reader",
    "redis": "penstock.backends.redis.tables.reader",
    "http": "penstock.backends.http.reader",
}

#: What a ticket says that rows are staged by -> what opens it, imported when it is asked for.
WRITERS: dict[str, str] = {
    "rocksdb": "penstock.backends.embedded.stager:open_stager",
    "redis": "penstock.backends.redis.staging:open_stager",
    "http": "penstock.backends.http.writer:open_stager",
}

#: Takes settings, clock and generator; one of Penstock's own also where its keys come from.
Factory = Callable[..., QueueBackend]


def entry_points(*, group: str, name: str | None = None) -> EntryPoints:
    """Imported here: it is a fifth of what importing Penstock costs, and few stores need it."""
    from importlib import metadata

    found = metadata.entry_points(group=group)
    return found if name is None else found.select(name=name)


def known() -> list[str]:
    """Every engine and URL scheme that can be opened here."""
    return sorted(
        {*BUILT_IN, *SERVERS, *REMOTE, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))}
    )


def factory(name: str) -> Factory:
    """The factory of an engine or URL scheme; an unknown one is refused with the known ones."""
    if name in BUILT_IN or name in SERVERS or name in REMOTE:
        where = BUILT_IN.get(name) or REMOTE.get(name) or SERVERS[name][0]
        module, _, attribute = where.partition(":")
        if name in SERVERS:
            missing = not_installed(name)
            if missing is not None:
                raise missing
        built_in: Factory = getattr(import_module(module), attribute)
        return built_in
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        registered: Factory = entry.load()
        return registered
    raise InvalidConfig(f"backend {name!r} is not known; known: {', '.join(known())}")


def not_installed(name: str) -> BackendNotInstalled | None:
    """What has to be installed before an engine or URL scheme can be opened, if anything."""
    from importlib.util import find_spec

    _, extra = SERVERS.get(name, ("", ""))
    if extra and find_spec(DRIVERS[extra]) is None:
        return BackendNotInstalled(DRIVERS[extra], extra)
    return None


def factory_of(settings: AnySettings) -> Factory:
    """The factory of what the settings name: an engine, or a URL's scheme."""
    if isinstance(settings, StorageSettings):
        return factory(settings.engine)
    if isinstance(settings, RedisSettings):
        return factory(settings.scheme)
    scheme, colon, _ = settings.url.partition(":")
    if not colon:
        shown = masked_url(settings.url)
        raise InvalidConfig(f"backend url {shown!r} has no scheme; known: {', '.join(known())}")
    return factory(scheme)


@contextmanager
def naming(source: str, key: str) -> Iterator[None]:
    """An error of configuration says where the setting stands."""
    try:
        yield
    except InvalidConfig as error:
        raise InvalidConfig(f"{source}: {key}: {error}") from None


def check_config(config: Config) -> None:
    """Refuse what cannot be used, whatever the stores hold. Nothing is opened."""
    for name, settings in config.all_backends().items():
        with naming(config.source, _key(name)):
            factory_of(settings)
            if isinstance(settings, RedisSettings):
                for host, _ in settings.nodes:
                    check_plaintext(settings, host)


def check_keys(config: Config) -> None:
    """Refuse encryption whose key is not there. Nothing is opened; a key_command is run."""
    for name, settings in config.all_backends().items():
        if not isinstance(settings, BackendSettings) and settings.encryption.enabled:
            encryption = settings.encryption
            provider = configured_keys(encryption.key_file, encryption.key_command)
            needed_key(provider, encryption.key_id, f"{config.source}: {_key(name)}")


def check_scripts(config: Config) -> None:
    """Refuse scripts that no store would take. Nothing is opened; they find no state."""
    from penstock.clock import SystemClock
    from penstock.hooks.scripts import Script, Scripts
    from penstock.hooks.wire import HOOKS

    for backend, settings in config.all_backends().items():
        if isinstance(settings, BackendSettings):
            continue
        limits = settings.hooks if isinstance(settings, StorageSettings) else HookSettings()
        queues = [(name, one.settings) for name, one in config.queues.items() if one.backend == backend]
        with closing(Scripts(limits, SystemClock(), lambda key: None)) as scripts:
            for (name, queue), hook in product(queues, HOOKS):
                text = getattr(queue, hook)
                if text is not None:
                    with naming(config.source, f"queues.{name}"):
                        scripts.check(Script(name, hook, text))


def missing_stores(config: Config) -> list[str]:
    """Folders of embedded stores that hold none yet."""
    paths = [
        settings.path
        for settings in config.all_backends().values()
        if isinstance(settings, StorageSettings) and settings.path
    ]
    return [path for path in paths if not any(Path(path, sign).exists() for sign in _SIGNS)]


def _key(backend: str) -> str:
    """Where a configuration has it."""
    return "storage" if backend == DEFAULT else f"backends.{backend}"


def open_backend(
    settings: AnySettings,
    clock: Clock | None,
    rng: random.Random | None,
    keys: KeyProvider | None = None,
) -> QueueBackend:
    """Open what the settings name. A third-party factory gets its `BackendSettings`."""
    if isinstance(settings, BackendSettings):
        return factory_of(settings)(settings, clock, rng)
    return factory_of(settings)(settings, clock, rng, keys)


def open_reader(
    snapshot: Snapshot, keys: KeyProvider | None = None, clock: Clock | None = None
) -> BulkReader:
    """Open a snapshot in this process, which need not be the one that took it; close it in the end.

    Keys of an encrypted store come from `keys`, else from the environment: a snapshot has none.
    """
    reader: BulkReader = _reader_of(snapshot).open_reader(
        snapshot, keys or EnvironmentKeys(), clock or SystemClock()
    )
    return reader


def release_snapshot(snapshot: Snapshot) -> None:
    """Give a snapshot up for everyone, without opening it; done twice is as once."""
    _reader_of(snapshot).release_snapshot(snapshot)


def _reader_of(snapshot: Snapshot) -> ModuleType:
    if snapshot.reader not in READERS:
        raise InvalidConfig(
            f"snapshot {snapshot.id} is read by {snapshot.reader!r}, which is not known here; known: "
            f"{', '.join(READERS)}: use the same version of Penstock everywhere"
        )
    return _bulk_module(READERS[snapshot.reader])


def _bulk_module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "pyarrow"):
            raise
        raise BackendNotInstalled(error.name, "spark") from error


def open_writer(ticket: WriteTicket, keys: KeyProvider | None = None) -> BulkWriter:
    """What stages rows for a ticket in this process, which need not be the one that it was given to.

    Keys of an encrypted store come from `keys`, else from the environment: a ticket has none.
    """
    if ticket.writer not in WRITERS:
        raise InvalidConfig(
            f"ticket {ticket.id} is for {ticket.writer!r}, which is not known here; known: "
            f"{', '.join(WRITERS)}: use the same version of Penstock everywhere"
        )
    module, _, attribute = WRITERS[ticket.writer].partition(":")
    writer: BulkWriter = getattr(_bulk_module(module), attribute)(ticket, keys)
    return writer
