"""RocksDB's failures, as what they mean to the user of a store."""

from __future__ import annotations

from penstock.errors import StorageCorrupt, StorageError, StorageFull, StoreLocked


def translated(error: Exception, path: str) -> Exception:
    """The error to raise for one of the driver's, which are all `Exception` and differ by text only."""
    text = str(error)
    if type(error) is not Exception and not isinstance(error, OSError):
        return error  # not a storage failure: a wrong argument, say
    if "lock hold by current process" in text:
        return StoreLocked(f"this process has {path} open already: use that one, or close it first ({text})")
    if "/LOCK" in text:
        return StoreLocked(f"another process owns the store in {path}: stop it first ({text})")
    if "No space left" in text or "File too large" in text or "Disk quota exceeded" in text:
        return StorageFull(f"no room to write in {path}: free some space, then open the store again ({text})")
    if text.startswith("Corruption") or "checksum" in text:
        return StorageCorrupt(f"the store in {path} is damaged: restore a backup of it ({text})")
    return StorageError(f"the store in {path} failed: {text}")
