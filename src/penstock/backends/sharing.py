"""One folder for any number of processes: the first owns the store, the others attach to it."""

from __future__ import annotations

import logging
import random
import threading
import time
from functools import partial

from penstock.backends.attached import place
from penstock.backends.attached.backend import AttachedBackend, Owned, attach
from penstock.backends.attached.listener import Listener
from penstock.backends.attached.place import LOOK_EVERY_S, PATIENCE_S, Ownership
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.backends.embedded.opening import open_rocksdb as open_database
from penstock.backends.embedded.opening import refuse_newer
from penstock.backends.forwarding.answering import Answerer
from penstock.clock import Clock
from penstock.config import StorageSettings
from penstock.errors import StoreLocked
from penstock.keyring import KeyProvider
from penstock.kv.folder import prepare_folder

log = logging.getLogger("penstock")


def open_rocksdb(
    settings: StorageSettings,
    clock: Clock | None,
    rng: random.Random | None,
    keys: KeyProvider | None = None,
) -> EmbeddedBackend | AttachedBackend:
    """Own the store in the folder, or attach to the process that does.

    While attached, the owner's settings, clock, randomness and keys count; this one's when it takes over.
    """
    folder = settings.path
    refuse_newer(folder)
    own = partial(_own, settings, clock, rng, keys)
    locked: StoreLocked | None = None
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        attached = attach(folder, lambda: _owned(own()))
        if attached is not None:
            return attached
        try:
            backend = own()
        except StoreLocked as error:  # By its last owner, which is just ending, or by a foreign program.
            locked, backend = error, None
        if backend is not None:
            return backend
        _pause()
    raise locked or StoreLocked(_held(folder))


def _pause() -> None:
    threading.Event().wait(LOOK_EVERY_S)


def _held(folder: str) -> str:
    if place.forked_from_owner(folder):
        return f"this process is a fork of the one that owned {folder}: it cannot own it; start it by spawn"
    return f"another process owns the store in {folder}, but does not answer: stop it, or try again"


def _own(
    settings: StorageSettings,
    clock: Clock | None,
    rng: random.Random | None,
    keys: KeyProvider | None,
) -> EmbeddedBackend | None:
    """The database, and a listener before it; None while another owns it."""
    folder = settings.path
    prepare_folder(folder, read_only=False)
    ownership = Ownership.take(folder)
    if ownership is None:
        return None
    try:
        backend = open_database(settings, clock, rng, keys)
    except BaseException:
        ownership.release()
        raise
    backend.after_close.callback(ownership.release)
    try:
        listener = Listener(folder, backend)
    except OSError as error:
        log.warning("other processes cannot attach to %s: %s", folder, error)
        return backend
    except BaseException:
        backend.close()
        raise
    backend.before_close.callback(listener.stop)
    backend.after_close.callback(listener.hang_up)
    # A store that has stopped answers nothing until it is opened again: by whoever comes next.
    backend.engine.when_stopped = partial(_let_go, backend)
    return backend


def _let_go(backend: EmbeddedBackend) -> None:
    """In a thread of its own: whoever found the failure holds locks that closing takes."""
    threading.Thread(target=backend.close, name="penstock-closer").start()


def _owned(backend: EmbeddedBackend | None) -> Owned | None:
    return None if backend is None else Owned(backend, Answerer(backend))
