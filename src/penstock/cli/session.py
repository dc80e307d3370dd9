"""What a command runs with: the store that it was pointed at, and where its answers go."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.output import Output
from penstock.errors import BackendUnavailable

if TYPE_CHECKING:
    from penstock import Penstock
    from penstock.config import Config

VARIABLE = "PENSTOCK_STORE"
CONFIG_FILE = "penstock.yaml"
FOLDER = "penstock-data"
#: Either of them tells a folder that holds a store from one that does not.
_SIGNS = ("PENSTOCK", "CURRENT")


class Session:
    """One run of one command."""

    def __init__(self, store: str | None, out: Output) -> None:
        self.given = store
        self.out = out

    @property
    def target(self) -> str | Path:
        """What `--store` names; else PENSTOCK_STORE, ./penstock.yaml or ./penstock-data."""
        return find_store(self.given)

    def config(self) -> Config:
        from penstock import config

        return config.resolve(self.target)

    @contextmanager
    def open(self, *, declare: bool = True) -> Iterator[Penstock]:
        """The store, which must exist: a mistyped path is an error, not a new store.

        Without `declare` it is left as it is: queues that a configuration names are not made.
        """
        config = self.config()
        if not declare:
            config = msgspec.structs.replace(config, queues={})
        for path in missing_stores(config):
            raise BackendUnavailable(f"there is no store in {path}; create it: penstock init --store {path}")
        with self.create(config) as ps:
            yield ps

    @contextmanager
    def create(self, config: Config) -> Iterator[Penstock]:
        """The store, made if it is not there."""
        import penstock

        with penstock.open(config) as ps:
            yield ps


def find_store(given: str | None, environ: Mapping[str, str] = os.environ) -> str | Path:
    """The store by the documented order; what was typed may be a URL, what was found is a path."""
    if given or environ.get(VARIABLE):
        return given or environ[VARIABLE]
    return Path(CONFIG_FILE if Path(CONFIG_FILE).exists() else FOLDER)


def missing_stores(config: Config) -> list[str]:
    """Folders of embedded stores that hold none yet."""
    from penstock.config import StorageSettings

    paths = [
        settings.path
        for settings in (config.default, *config.backends.values())
        if isinstance(settings, StorageSettings) and settings.path
    ]
    return [path for path in paths if not any(Path(path, sign).exists() for sign in _SIGNS)]
