"""The folder of a store on disk: whether it holds one, may hold one, or must be left alone."""

from __future__ import annotations

import os
import re

from penstock.errors import StorageCorrupt, StorageError


def holds_store(path: str) -> bool:
    return os.path.exists(os.path.join(path, "CURRENT"))


def _tables(path: str) -> str:
    """The name of a file that only a store has, if the folder has one."""
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return ""
    return next((name for name in names if name.endswith((".sst", ".blob"))), "")


_OWN_FILES = re.compile(
    r"(\d{6}\.log|LOCK|LOG(\.old\.\d+)?|IDENTITY|(MANIFEST|OPTIONS)-\d{6}|.*\.dbtmp|rocksdict-config\.json|PENSTOCK|OWNER|penstock\.sock.*|WITNESS|WITNESS\.unfinished|lost|snapshots)"
)


def _foreign(path: str) -> str:
    """The name of a file that no half-made store has, if the folder has one."""
    try:
        return next((name for name in sorted(os.listdir(path)) if not _OWN_FILES.fullmatch(name)), "")
    except OSError:
        return ""  # Not there yet, or no folder at all: creating it tells.


def prepare_folder(path: str, *, read_only: bool) -> None:
    if read_only and not holds_store(path):
        raise StorageError(f"{path} holds no store to read; check the path")
    if not holds_store(path) and (left := _tables(path)):
        # RocksDB would make a new store here and delete the old one's tables as left-overs.
        raise StorageCorrupt(f"{path} has {left} but no CURRENT: part of a store; restore all of its files")
    if read_only:
        return
    if not holds_store(path) and (other := _foreign(path)):
        raise StorageError(f"{path} holds no store, but {other!r} and perhaps more: choose an empty folder")
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot create {path}: {error.strerror}; choose another path") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise StorageError(f"{path} is not writable; change its permissions or choose another path")
