"""RocksDB's failures, as what they mean to the user of a store."""

from __future__ import annotations

import errno

from penstock.errors import StorageCorrupt, StorageError, StorageFull, StoreLocked


def translated(error: Exception, path: str) -> Exception:
    """The error to raise for one of the driver's, which are all `Exception` and differ by text only."""
    if isinstance(error, OSError):
        return _of_the_system(error, path)
    text = str(error)
    if type(error) is not Exception:
        return error  # not a storage failure: a wrong argument, say
    if "lock hold by current process" in text:
        return StoreLocked(f"this process has {path} open already: use that one, or close it first ({text})")
    if "/LOCK" in text and "open a file for lock" not in text:  # It is there to be opened, and is held.
        return StoreLocked(f"another process owns the store in {path}: stop it first ({text})")
    if "No space left" in text or "File too large" in text or "Disk quota exceeded" in text:
        return _full(path, text)
    if text.startswith("Corruption") or "checksum" in text:
        return StorageCorrupt(f"the store in {path} is damaged: restore a backup of it ({text})")
    return StorageError(f"the store in {path} failed: {text}")


def _of_the_system(error: OSError, path: str) -> Exception:
    """By its number: its text has a path in it, and a path may have any words."""
    text = str(error)
    if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return _full(path, text)
    return StorageError(f"the store in {path} failed: {text}")


def _full(path: str, text: str) -> StorageFull:
    return StorageFull(f"no room to write in {path}: free some space, then open the store again ({text})")


def not_taken_in(error: Exception, path: str) -> Exception:
    """The same while tables are taken in: what is damaged is none of the store's own."""
    failure = translated(error, path)
    if isinstance(failure, StorageCorrupt):
        return StorageCorrupt(f"a table for the store in {path} is damaged ({error})")
    return failure
