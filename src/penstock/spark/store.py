"""How Spark's processes reach a store: the driver's open it for a moment, the workers' read snapshots."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from penstock import config as configuration
from penstock import penstock as facade
from penstock.backends.bulk import BulkReader, Snapshot
from penstock.backends.http.place import VARIABLE as TOKEN_VARIABLE
from penstock.backends.http.place import read as read_place
from penstock.backends.registry import REMOTE, check_config, missing_stores, open_reader, release_snapshot
from penstock.config import AnySettings, BackendSettings, Config, StorageSettings
from penstock.errors import BackendUnavailable, InvalidConfig, Unsupported
from penstock.keyring import configured_keys
from penstock.penstock import Penstock
from penstock.redis_places import PASSWORD_VARIABLE, place_of, settings_at, with_password
from penstock.redis_settings import RedisSettings


class KeySource(msgspec.Struct, frozen=True):
    """Where keys come from besides the environment. Never a key: Spark may log what it sends around."""

    file: str | None = None
    command: str | tuple[str, ...] | None = None

    def options(self) -> dict[str, str]:
        """As options of the source, whose values are text: the words of a command as a shell has them."""
        command = self.command
        words = command if command is None or isinstance(command, str) else shlex.join(command)
        given = {"keyFile": self.file, "keyCommand": words}
        return {name: value for name, value in given.items() if value is not None}


class Standing(NamedTuple):
    """What must be known of a store before anything is put into it."""

    path: str | None
    sealed: bool


class Store(msgspec.Struct, frozen=True):
    """A store by its folder, URL or penstock.yaml, and where its keys come from."""

    url: str
    keys: KeySource = KeySource()

    @contextmanager
    def open(self) -> Iterator[Penstock]:
        """For a moment: whoever has the store open stays its owner, and whoever wants to be one can.

        It must exist, and is left as it is: queues that a configuration names are not made.
        """
        for path in missing_stores(self._config()):
            raise BackendUnavailable(f"there is no store in {path}; check option url")
        with self._opened() as ps:
            yield ps

    @contextmanager
    def open_or_make(self) -> Iterator[Penstock]:
        """The same, where it need not exist yet, for tasks to write to: they open it each by itself."""
        settings = self._config().default
        if isinstance(settings, StorageSettings) and settings.engine == "memory":
            what = "a store that tasks of Spark write to, each of them in a process of its own,"
            raise Unsupported(what, "persistence", "memory", ("rocksdb",))
        with self._opened() as ps:
            yield ps

    @contextmanager
    def _opened(self) -> Iterator[Penstock]:
        with facade.open(msgspec.structs.replace(self._config(), queues={})) as ps:
            yield ps

    def check(self) -> None:
        """Refuse what can be no store; nothing is opened or made."""
        check_config(self._config())

    def reached(self) -> Store:
        """The same for tasks elsewhere: nothing in it is secret, and no path depends on where they run."""
        settings = self._config().default
        if isinstance(settings, RedisSettings):
            return Store(place_of(settings), self.key_source())
        if isinstance(settings, StorageSettings) and settings.path:
            return Store(os.path.abspath(settings.path), self.key_source())
        if (served := _served(settings)) is not None:
            return Store(served)
        return self

    @property
    def unit_ns(self) -> int:
        """What its times are measured in."""
        settings = self._config().default
        if _served(settings) is None:
            return 1000 if isinstance(settings, RedisSettings) else 1
        with self.open() as ps:
            return 1000 if ps.info().default.engine == "redis" else 1

    def standing(self) -> Standing:
        """Where it is, and whether what is put into it is encrypted, or would be if it were made now."""
        config = self._config()
        if missing_stores(config):
            settings = config.default
            return Standing(None, isinstance(settings, StorageSettings) and bool(settings.encryption.enabled))
        with self.open() as ps:
            info = ps.info().default
        settings = config.default
        # A path is one of the machine that the store is on: that of another says nothing here.
        path = place_of(settings) if isinstance(settings, RedisSettings) else _served(settings) or info.path
        return Standing(path, info.sealed_with is not None)

    def take_snapshot(self, id: str | None = None) -> Snapshot:
        """With an id, the one of that id, for as long as it is there."""
        with self.open() as ps:
            return ps.take_snapshot(id=id)

    def key_source(self) -> KeySource:
        """Also what the store's own configuration names."""
        settings = self._config().default
        if isinstance(settings, BackendSettings):
            return KeySource()
        encryption = settings.encryption
        return KeySource(encryption.key_file, encryption.key_command)

    def _config(self) -> Config:
        config = _resolved(self.url)
        if self.keys == KeySource():
            return config
        if isinstance(config.default, BackendSettings):
            raise InvalidConfig(
                f"{config.source} has no keys of Penstock's: leave keyFile and keyCommand out"
            )
        given = {"key_file": self.keys.file, "key_command": self.keys.command}
        found = {name: value for name, value in given.items() if value is not None}
        encryption = msgspec.structs.replace(config.default.encryption, **found)
        return msgspec.structs.replace(
            config, default=msgspec.structs.replace(config.default, encryption=encryption)
        )


def _resolved(url: str) -> Config:
    """A folder, URL or penstock.yaml, or the place of a store on a server."""
    if url.startswith("{"):
        settings = settings_at(url)
        return Config(source=settings.url, default=settings)
    config = configuration.resolve(url)
    if configuration.is_url(url) and _served(config.default) and "@" in urlsplit(url).netloc:
        raise InvalidConfig(
            f"{config.source}: a key in option url would be in Spark's plans and logs; put it into "
            f"{TOKEN_VARIABLE}, of the driver and of every worker"
        )
    if not isinstance(config.default, RedisSettings):
        return config
    if configuration.is_url(url) and config.default.password is not None and not config.default.password.file:
        raise InvalidConfig(
            f"{config.source}: a password in option url would be in Spark's plans and logs; put it into "
            f"{PASSWORD_VARIABLE}, of the driver and of every worker, or into a file: password_file"
        )
    return msgspec.structs.replace(config, default=with_password(config.default))


def _served(settings: AnySettings) -> str | None:
    """The URL of the server that a store is behind, without the key, if it is behind one."""
    if isinstance(settings, BackendSettings) and settings.url.partition(":")[0] in REMOTE:
        return read_place(settings).shared()
    return None


def opened(snapshot: Snapshot, keys: KeySource) -> BulkReader:
    """A snapshot, in whichever process this is."""
    return open_reader(snapshot, configured_keys(keys.file, keys.command))


@contextmanager
def snapshot(
    url: str | os.PathLike[str], key_file: str | None = None, key_command: str | None = None
) -> Iterator[str]:
    """One moment of a store for several reads, as the value of the option `snapshot`; gone in the end."""
    store = Store(os.fspath(url), KeySource(key_file, key_command))
    taken = store.take_snapshot()
    try:
        yield msgspec.json.encode(taken).decode()
    finally:
        release_snapshot(taken)
