"""What a command runs with: the store that it was pointed at, and where its answers go."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.exits import next_step
from penstock.cli.output import Output
from penstock.errors import BackendNotInstalled, BackendUnavailable, InvalidConfig

if TYPE_CHECKING:
    from penstock import Penstock
    from penstock.config import Config

VARIABLE = "PENSTOCK_STORE"
CONFIG_FILE = "penstock.yaml"
FOLDER = "penstock-data"


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
        from penstock.backends.registry import missing_stores

        config = self.config()
        if not declare:
            config = msgspec.structs.replace(config, queues={})
        for path in missing_stores(config):
            raise BackendUnavailable(f"there is no store in {path}; create it: {next_step(path, 'init')}")
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


def checked(config: Config) -> list[str]:
    """Refuse a configuration that no command could use; what only its store can tell, as notes.

    Nothing is opened: what is refused leaves no store behind.
    """
    from penstock.backends.registry import check_config, check_keys, check_scripts, missing_stores

    check_config(config)
    check_keys(config)
    backends, missing = config.all_backends(), missing_stores(config)
    notes = []
    try:
        check_scripts(config)
    except BackendNotInstalled as error:
        if missing:
            raise
        notes.append(f"{config.source}: scripts of queues were not checked: {error}")
    for name, queue in config.queues.items():
        target = queue.settings.dead_letter
        if target is None or (target in config.queues and config.queues[target].backend == queue.backend):
            continue
        key = f"{config.source}: queues.{name}.dead_letter"
        path = getattr(backends[queue.backend], "path", None)
        if path == "" or path in missing:
            raise InvalidConfig(f"{key} is {target!r}, which is not declared on the same backend; declare it")
        notes.append(f"{key} is {target!r}, which is not declared here: the store must have it already")
    return notes
