"""Factories of the embedded backend: the store is opened and verified before it serves anything."""

from __future__ import annotations

import contextlib
import random
import re
import traceback
from pathlib import Path

from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.founding import FORMAT_VERSION, make_readable
from penstock.backends.embedded.keys import SPACES
from penstock.clock import Clock
from penstock.config import StorageSettings
from penstock.errors import StorageError
from penstock.keyring import KeyProvider, configured_keys
from penstock.kv.base import Store
from penstock.kv.memory import MemoryStore
from penstock.kv.rocksdb import RocksStore

#: A file beside the database that tells people, and older versions, what the folder holds.
LABEL = "PENSTOCK"
LABEL_TEXT = "Penstock store, format {}\n"


def open_rocksdb(
    settings: StorageSettings,
    clock: Clock | None,
    rng: random.Random | None,
    keys: KeyProvider | None = None,
) -> EmbeddedBackend:
    """The folder's database itself: for its owner alone."""
    refuse_newer(settings.path)
    kv = _opened(settings)
    try:
        make_readable(kv)
    except BaseException:
        kv.close()
        raise
    backend = _backend(kv, settings, clock, rng, keys)
    _write_label(settings.path)
    return backend


def _opened(settings: StorageSettings) -> RocksStore:
    return RocksStore.open(
        settings.path,
        SPACES,
        cache_capacity_bytes=settings.rocksdb.cache_capacity,
        mode=settings.rocksdb.mode,
    )


def open_memory(
    settings: StorageSettings,
    clock: Clock | None,
    rng: random.Random | None,
    keys: KeyProvider | None = None,
) -> EmbeddedBackend:
    return _backend(MemoryStore(SPACES), settings, clock, rng, keys)


def refuse_newer(path: str) -> None:
    """By the label alone: opening the database, even to refuse it, would rewrite some of its files."""
    try:
        text = (Path(path) / LABEL).read_text(errors="replace")
    except OSError:
        return  # A new store, or one without a label: the format row decides.
    found = re.fullmatch(LABEL_TEXT.format(r"(\d+)"), text)
    if found and int(found[1]) > FORMAT_VERSION:
        raise StorageError(
            f"store {path} has format {found[1]}; this Penstock reads up to {FORMAT_VERSION}: "
            "open it with a newer Penstock"
        )


def _write_label(path: str) -> None:
    label = Path(path) / LABEL
    text = LABEL_TEXT.format(FORMAT_VERSION)
    with contextlib.suppress(OSError):  # A convenience; the format row is what counts.
        if not label.exists() or label.read_text(errors="replace") != text:
            label.write_text(text)


def _backend(
    kv: Store,
    settings: StorageSettings,
    clock: Clock | None,
    rng: random.Random | None,
    keys: KeyProvider | None,
) -> EmbeddedBackend:
    encryption = settings.encryption
    try:
        return EmbeddedBackend(
            kv,
            engine_name=settings.engine,
            path=settings.path or None,
            durability=settings.durability,
            interval_ms=settings.interval_ms,
            clock=clock,
            rng=rng,
            encryption=encryption,
            provider=keys or configured_keys(encryption.key_file, encryption.key_command),
            hooks=settings.hooks,
            health=settings.health,
        )
    except BaseException as error:
        kv.close()
        # Handles of the store in there would keep the database open for as long as someone keeps the error.
        traceback.clear_frames(error.__traceback__)
        raise
