"""Which backends there are: one table, plus what other packages register under `penstock.backends`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING

from penstock.backends.base import QueueBackend
from penstock.clock import Clock
from penstock.config import DEFAULT, BackendSettings, Config, StorageSettings, masked_url
from penstock.errors import InvalidConfig
from penstock.keyring import KeyProvider, configured_keys

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINT_GROUP = "penstock.backends"

#: engine or URL scheme -> the factory, imported when it is asked for.
BUILT_IN: dict[str, str] = {
    "memory": "penstock.backends.embedded.opening:open_memory",
    "rocksdb": "penstock.backends.sharing:open_rocksdb",
}

#: Takes settings, clock and generator; one of an embedded store also where its keys come from.
Factory = Callable[..., QueueBackend]


def entry_points(*, group: str, name: str | None = None) -> EntryPoints:
    """Imported here: it is a fifth of what importing Penstock costs, and few stores need it."""
    from importlib import metadata

    found = metadata.entry_points(group=group)
    return found if name is None else found.select(name=name)


def known() -> list[str]:
    """Every engine and URL scheme that can be opened here."""
    return sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))})


def factory(name: str) -> Factory:
    """The factory of an engine or URL scheme; an unknown one is refused with the known ones."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        built_in: Factory = getattr(import_module(module), attribute)
        return built_in
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        registered: Factory = entry.load()
        return registered
    raise InvalidConfig(f"backend {name!r} is not known; known: {', '.join(known())}")


def factory_of(settings: StorageSettings | BackendSettings) -> Factory:
    """The factory of what the settings name: an engine, or a URL's scheme."""
    if isinstance(settings, StorageSettings):
        return factory(settings.engine)
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


def check_keys(config: Config) -> None:
    """Refuse encryption whose key is not there. Nothing is opened; a key_command is run."""
    from penstock.backends.embedded.encryption import needed_key

    for name, settings in config.all_backends().items():
        if isinstance(settings, StorageSettings) and settings.encryption.enabled:
            encryption = settings.encryption
            provider = configured_keys(encryption.key_file, encryption.key_command)
            needed_key(provider, encryption.key_id, f"{config.source}: {_key(name)}")


def check_scripts(config: Config) -> None:
    """Refuse scripts that no store would take. Nothing is opened; they find no state."""
    from penstock.clock import SystemClock
    from penstock.hooks.scripts import Script, Scripts
    from penstock.hooks.wire import HOOKS

    for backend, settings in config.all_backends().items():
        if not isinstance(settings, StorageSettings):
            continue
        queues = [(name, one.settings) for name, one in config.queues.items() if one.backend == backend]
        with closing(Scripts(settings.hooks, SystemClock(), lambda key: None)) as scripts:
            for (name, queue), hook in product(queues, HOOKS):
                text = getattr(queue, hook)
                if text is not None:
                    with naming(config.source, f"queues.{name}"):
                        scripts.check(Script(name, hook, text))


def _key(backend: str) -> str:
    """Where a configuration has it."""
    return "storage" if backend == DEFAULT else f"backends.{backend}"


def open_backend(
    settings: StorageSettings | BackendSettings,
    clock: Clock | None,
    rng: random.Random | None,
    keys: KeyProvider | None = None,
) -> QueueBackend:
    """Open what the settings name. A third-party factory gets its `BackendSettings`."""
    if isinstance(settings, StorageSettings):
        return factory_of(settings)(settings, clock, rng, keys)
    return factory_of(settings)(settings, clock, rng)
