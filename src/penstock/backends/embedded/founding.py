"""The first thing that is read of a store, and the first thing that is written to a new one."""

from __future__ import annotations

import logging
import os
import random

from penstock.backends.embedded import keys
from penstock.backends.embedded.encryption import unlock
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import MARK
from penstock.config import EncryptionSettings
from penstock.errors import StorageCorrupt, StorageError
from penstock.keyring import KeyProvider
from penstock.kv.base import Store
from penstock.kv.damage import readable_rows

log = logging.getLogger("penstock")

FORMAT_VERSION = 1

#: Of the secret that dedup ids are hashed with.
SECRET_BYTES = 32


def found(
    kv: Store,
    path: str | None,
    rng: random.Random | None,
    encryption: EncryptionSettings,
    provider: KeyProvider,
) -> Store:
    """The store, its format verified and its keys at hand; a new one is given both."""
    meta = kv.space("meta")
    raw = refuse_newer_format(kv, f"store {path or 'in memory'}")
    where = f"the store in {path}" if path else "the store in memory"
    is_new = raw is None and not _has_rows(kv, where)
    kv = unlock(kv, encryption, provider, where, is_new=is_new)
    if raw is None:
        batch = kv.batch()
        batch.put(keys.meta(Meta.FORMAT), MARK + keys.u32(FORMAT_VERSION), meta)
        if kv.get(keys.meta(Meta.SECRET), meta) is None:
            # From the system, unless a test wants the same again: what a generator gives can be worked out.
            secret = os.urandom(SECRET_BYTES) if rng is None else rng.randbytes(SECRET_BYTES)
            batch.put(keys.meta(Meta.SECRET), MARK + secret, meta)
        kv.write(batch, sync=True)
    return kv


def refuse_newer_format(kv: Store, what: str) -> bytes | None:
    """The store's format row, if it has one, of a version that this Penstock knows."""
    raw = kv.get(keys.meta(Meta.FORMAT), kv.space("meta"))
    if raw is not None and (version := int.from_bytes(raw[1:], "big")) > FORMAT_VERSION:
        raise StorageError(
            f"{what} has format {version}; this Penstock reads up to {FORMAT_VERSION}: open it with a newer "
            "Penstock"
        )
    return raw


#: Rows that an opening reads, besides those of the queues.
_READ_FIRST = (Meta.FORMAT, Meta.NEXT_NUMBER, Meta.OPENINGS, Meta.KEYS, Meta.SECRET, Meta.REKEY, Meta.REINDEX)


def make_readable(kv: Store) -> None:
    """If what an opening reads cannot be read, write that space anew from what can: queues go on without."""
    meta = kv.space("meta")
    first = [keys.meta(kind) for kind in _READ_FIRST]
    try:
        kv.get_many(first, meta)
        for _ in kv.scan(meta, keys.meta(Meta.QUEUE), keys.meta(Meta.QUEUE + 1)):
            pass
        return
    except StorageCorrupt as error:
        # As text: who keeps the record would keep the error, its frames and the database.
        log.error("rows that say what the store holds cannot be read: %s", str(error))
    del meta  # A handle: what it stands for is about to be replaced.
    kv.salvage(
        "meta", lambda start, end: [key for key in first if start <= key and (end is None or key < end)]
    )


def _has_rows(kv: Store, where: str) -> bool:
    """Whether a store without a format row is not new, but has lost it; a repair then finds its queues."""
    for name in ("journal", "messages"):
        for _ in readable_rows(kv, kv.space(name), name, b"", None, lambda hole: None):
            log.error("%s has lost rows of its own: run check with repair", where)
            return True
    return False
