"""How Spark's processes reach a store: the driver's open it for a moment, the workers' read snapshots."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from penstock import config as configuration
from penstock import penstock as facade
from penstock.backends.bulk import BulkReader, Snapshot
from penstock.backends.registry import check_config, missing_stores, open_reader, release_snapshot
from penstock.config import Config, StorageSettings
from penstock.errors import BackendUnavailable, InvalidConfig, Unsupported
from penstock.keyring import configured_keys
from penstock.penstock import Penstock


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

    def standing(self) -> Standing:
        """Where it is, and whether what is put into it is encrypted, or would be if it were made now."""
        config = self._config()
        if missing_stores(config):
            settings = config.default
            return Standing(None, isinstance(settings, StorageSettings) and bool(settings.encryption.enabled))
        with self.open() as ps:
            info = ps.info().default
        return Standing(info.path, info.sealed_with is not None)

    def take_snapshot(self, id: str | None = None) -> Snapshot:
        """With an id, the one of that id, for as long as it is there."""
        with self.open() as ps:
            return ps.take_snapshot(id=id)

    def key_source(self) -> KeySource:
        """Also what the store's own configuration names."""
        settings = self._config().default
        if not isinstance(settings, StorageSettings):
            return KeySource()
        return KeySource(settings.encryption.key_file, settings.encryption.key_command)

    def _config(self) -> Config:
        config = configuration.resolve(self.url)
        if self.keys == KeySource():
            return config
        if not isinstance(config.default, StorageSettings):
            raise InvalidConfig(f"{config.source} is no embedded store: keyFile and keyCommand are for those")
        given = {"key_file": self.keys.file, "key_command": self.keys.command}
        found = {name: value for name, value in given.items() if value is not None}
        encryption = msgspec.structs.replace(config.default.encryption, **found)
        return msgspec.structs.replace(
            config, default=msgspec.structs.replace(config.default, encryption=encryption)
        )


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
