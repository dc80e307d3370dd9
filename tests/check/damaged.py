"""Damages each table of a store in turn, and tells what became of it: run in a process of its own.

A crash of the interpreter, or a hang, is then an answer too. Prints a line of JSON for each table.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

import penstock
from penstock import NewMessage, Penstock
from penstock.backends.embedded.keys import SPACES
from penstock.kv.rocksdb import RocksStore
from tests.crash.clocks import now_clock

QUEUES = ("a", "b", "c")
#: Space of a table, by the length of its first key.
SPACE_OF_LENGTH = {20: "messages", 21: "state", 29: "due", 12: "journal", 16: "entries", 28: "held"}


class Outcome(msgspec.Struct, kw_only=True):
    """What was seen of a store with one damaged table."""

    table: str
    space: str
    refused: str = ""
    #: Queues that could not be used before the repair.
    failed: list[str] = []
    health: str = ""
    problems: list[str] = []
    counts: dict[str, int] = {}
    #: What the first repair left: a table that is set aside when the store is opened again.
    again: list[str] = []
    left: dict[str, int] = {}
    unusable: list[str] = []
    lost: int = 0
    altered: int = 0
    kept: bool = False


def build(path: Path) -> None:
    """Several tables in each space: a store that was closed and opened again."""
    for opening in range(2):
        with penstock.open(f"rocksdb:{path}?durability=os", clock=now_clock()) as ps:
            for name in QUEUES:
                q = ps.queue(name) if opening else ps.create_queue(name, retention_s=900)
                q.cursor("archive", required=name == "b")
                q.enqueue_many([NewMessage(b"%d %s %d" % (opening, name.encode(), n)) for n in range(300)])
                taken = q.lease(60, lease_s=600)
                q.ack([delivery.receipt for delivery in taken[:20]])
                q.nack([delivery.receipt for delivery in taken[20:40]], delay_s=0)
            ps.journal("w").append([penstock.Entry("k", b"x")])


def tables(path: Path) -> dict[str, str]:
    """The tables of a store, and the space of each."""
    store = RocksStore.open(path, SPACES, read_only=True)
    files: list[dict[str, Any]] = store._database.live_files()
    found = {}
    for file in files:
        length = len(file["start_key"] or b"")
        found[file["name"].lstrip("/")] = SPACE_OF_LENGTH.get(length, "ready" if length >= 33 else "meta")
    store.close()
    return found


def damage(file: Path, how: str) -> None:
    raw = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
    elif how == "half":
        file.write_bytes(raw[: len(raw) // 2])
    elif how == "flip":
        raw[len(raw) // 4] ^= 0x08
        file.write_bytes(raw)
    elif how == "index":  # Behind the data: the blocks that say where everything is.
        for at in range(len(raw) - 700, len(raw) - 60, 40):
            raw[at] ^= 0x55
        file.write_bytes(raw)


def payloads(ps: Penstock) -> dict[str, bytes]:
    return {m.id: m.payload for s in ps.queues() for m in ps.queue(s.name).iter()}


def failing(ps: Penstock, names: list[str]) -> list[str]:
    """The queues that cannot be used."""
    out = []
    for name in names:
        try:
            q = ps.queue(name)
            q.enqueue(b"new")
            q.ack([delivery.receipt for delivery in q.lease(3)])
        except penstock.PenstockError:
            out.append(name)
    return out


def look(path: Path, outcome: Outcome, before: dict[str, bytes]) -> None:
    try:
        ps = penstock.open(f"rocksdb:{path}?durability=os", clock=now_clock())
    except penstock.StorageError as error:
        outcome.refused = str(error)
        return
    with ps:
        outcome.failed = failing(ps, [settings.name for settings in ps.queues()])
        found = ps.check()
        outcome.counts, outcome.problems = found.counts, [p.what for p in found.problems[:50]]
        outcome.health = str(ps.health().reasons)
        outcome.again = [p.action for p in ps.check(repair=True).problems if p.action.startswith("left")][:3]
    with penstock.open(f"rocksdb:{path}?durability=os", clock=now_clock()) as ps:
        if outcome.again:
            outcome.health += str(ps.health().reasons)
            ps.check(repair=True)
        outcome.left = ps.check().counts
        after = payloads(ps)
        outcome.lost = len(before.keys() - after.keys())
        outcome.altered = sum(after[i] != before[i] for i in before.keys() & after.keys())
        outcome.unusable = failing(ps, [settings.name for settings in ps.queues()])
        outcome.kept = (path / "lost" / outcome.table).exists()


def main(folder: Path, how: str) -> None:
    base = folder / "base"
    build(base)
    with penstock.open(f"rocksdb:{base}?durability=os", clock=now_clock()) as ps:
        before = payloads(ps)
    for table, space in sorted(tables(base).items()):
        path = folder / table
        shutil.copytree(base, path)
        damage(path / table, how)
        outcome = Outcome(table=table, space=space)
        look(path, outcome, before)
        sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
