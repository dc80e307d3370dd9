"""What the tests of encryption share: keys, opening, a store with something secret in every place."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock
from penstock import Entry, ManualClock, NewMessage, Penstock
from penstock.backends.embedded.keys import SPACES
from penstock.config import Config, EncryptionSettings, StorageSettings
from penstock.kv.rocksdb import RocksStore

KEYS = {"main": bytes(range(32)), "new": bytes(range(1, 33)), "third": bytes(range(2, 34))}


class Keys:
    """A provider of some of the keys, which remembers what it was asked for."""

    def __init__(self, *ids: str, **keys: bytes) -> None:
        self.known = {key_id: KEYS[key_id] for key_id in ids} | keys
        self.asked: list[str] = []

    def key(self, key_id: str, /) -> bytes | None:
        self.asked.append(key_id)
        return self.known.get(key_id)


ALL_KEYS = Keys(*KEYS)


def opened(
    folder: Path,
    key_id: str | None = "main",
    keys: penstock.KeyProvider = ALL_KEYS,
    clock: ManualClock | None = None,
    *,
    follow: bool = False,
    durability: Any = "os",
) -> Penstock:
    """The store, encrypted with that key; None: encryption is off; `follow`: as the store says."""
    encryption = EncryptionSettings(enabled=None if follow else key_id is not None, key_id=key_id or "main")
    settings = StorageSettings(path=str(folder), encryption=encryption, durability=durability)
    config = Config(source="test", default=settings)
    return penstock.open(config, keys=keys, clock=clock or ManualClock(), rng=random.Random(1))


@contextmanager
def raw_store(folder: Path) -> Iterator[RocksStore]:
    """The bytes as they are stored, to look at or to tamper with."""
    store = RocksStore.open(folder, SPACES)
    try:
        yield store
    finally:
        store.close()


def rows(store: RocksStore, space: str) -> dict[bytes, bytes]:
    return dict(store.scan(store.space(space), b"", None))


#: A word for each place that is secret: none may be found in the files of an encrypted store.
SECRETS = {
    name: f"secret-{number:02}-{name}"
    for number, name in enumerate(
        (
            "payload",
            "header-name",
            "header-value",
            "nack-reason",
            "reject-reason",
            "dead-letter-reason",
            "dedup-id",
            "delayed-payload",
            "done-payload",
            "held-payload",
            "updated-payload",
            "removed-payload",
            "entry-kind",
            "entry-body",
            "entry-label",
            "entry-flag",
            "user-state",
            "script",
        )
    )
}


def fill(ps: Penstock) -> None:
    """Put each of the secrets where it belongs."""
    text = SECRETS
    raw = {name: word.encode() for name, word in text.items()}
    ps.create_queue("dead")
    q = ps.create_queue("q", retention_s=1000, dead_letter="dead")
    q.cursor("archive", required=True)
    q.enqueue(raw["done-payload"])
    q.ack([q.lease()[0].receipt])
    q.enqueue(b"", headers={text["header-name"]: text["header-value"]})
    q.nack([q.lease()[0].receipt], reason=text["nack-reason"], delay_s=50)
    q.enqueue(b"")
    q.reject([q.lease()[0].receipt], reason=text["dead-letter-reason"])
    dead = ps.queue("dead")
    dead.reject([dead.lease()[0].receipt], reason=text["reject-reason"])
    q.enqueue(raw["delayed-payload"], delay_s=60)
    (updated,) = q.upsert([NewMessage(b"before")])
    q.upsert([NewMessage(raw["updated-payload"], id=updated.id)])
    held = ps.create_queue("held")
    held.cursor("archive", required=True)
    held.enqueue(raw["held-payload"])
    held.ack([held.lease()[0].receipt])
    gone = ps.create_queue("gone")
    gone.enqueue(raw["removed-payload"])
    gone.ack([gone.lease()[0].receipt])
    q.enqueue_many([NewMessage(raw["payload"], dedup_id=f"{text['dedup-id']}-{n}") for n in range(50)])
    ps.journal("world").append(
        [Entry(text["entry-kind"], raw["entry-body"], [text["entry-label"]], [text["entry-flag"]], [0.5])]
    )
    ps.state.put("state-key", raw["user-state"])
    ps.create_queue("scripted", on_failure=f"function on_failure() return 'drop', '{text['script']}' end")


def contents(ps: Penstock) -> dict[str, Any]:
    """Everything that can be read, to compare before and after."""
    found: dict[str, Any] = {"entries": ps.journal("world").scan(), "state": ps.state.get("state-key")}
    for settings in ps.queues():
        q = ps.queue(settings.name)
        found[settings.name] = (
            sorted(q.iter(), key=lambda message: message.id),
            list(q.events(limit=100_000)),
            q.stats().journal_bytes,
        )
    return found


def secrets_in(folder: Path) -> set[str]:
    """Which of the secrets some file of the folder shows."""
    found = set()
    for file in folder.rglob("*"):
        if file.is_file():
            raw = file.read_bytes()
            found |= {name for name, word in SECRETS.items() if word.encode() in raw}
    return found
