"""Makes the golden store of the current format: `python -m tests.golden.make`.

It writes `v{FORMAT_VERSION}.tar.gz`, a store with something of everything in it, and
`v{FORMAT_VERSION}.json`, what must be found in it. Once a version has been released its files are never made
again: they prove that what users have on their disks can still be read. A new format gets new files beside
the old ones; until its release, `--replace` makes them again.
"""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from random import Random

import msgspec

import penstock
from penstock import Entry, ManualClock, NewMessage, Penstock, Retry
from penstock.backends.embedded.founding import FORMAT_VERSION
from tests.golden.contents import STATE_KEY, WORLD, contents

FOLDER = Path(__file__).parent
#: The engine's diary and lock say nothing about the data.
LEFT_OUT = ("LOG*", "LOCK")
DAY_S = 86_400
#: Rows after which heads of lanes and due-time ranges are written down.
MANY = 4_200
#: More than one slice: the dropping of such a queue is left as a job.
SLICES = 1_200


def _every_state(system: Penstock, clock: ManualClock) -> None:
    q = system.create_queue(
        "every state", max_attempts=3, retention_s=DAY_S, dead_retention_s=7 * DAY_S, retry=Retry(delay_s=5)
    )
    q.enqueue_many([NewMessage(name.encode()) for name in ("done", "dead", "leased", "nacked", "released")])
    first, second, third, fourth = q.lease(4, lease_s=DAY_S, consumer="worker-1")
    q.ack([first.receipt])
    q.reject([second.receipt], reason="cannot be parsed")
    q.extend([third.receipt], lease_s=2 * DAY_S)
    q.nack([fourth.receipt], delay_s=3600, reason="try later")
    q.lease(1, lease_s=0.5, consumer="worker-2")
    clock.advance(1)
    q.enqueue(b"delayed", delay_s=3600, ttl_s=2 * DAY_S)
    q.enqueue(b"ready")
    system.sweep()  # What worker-2 held is released.


def _ready_ones(system: Penstock, clock: ManualClock) -> None:
    q = system.create_queue("ready/Ω: of all kinds", dedup_window_s=DAY_S)
    q.enqueue(b"", headers={"type": "empty", "ключ": "значение"})
    q.enqueue(b"\0\xff" * 50, fairness_key="tenant-1", weight=7, priority=9, ttl_s=DAY_S)
    q.enqueue(b"once", dedup_id="order-17", fairness_key="tenant-2", priority=0)
    q.enqueue(b"own id", id="0190aaaa-bbbb-7ccc-8ddd-eeeeffff0001")
    q.upsert([NewMessage(b"own id, replaced", id="0190aaaa-bbbb-7ccc-8ddd-eeeeffff0001", priority=5)])


def _dead_letters(system: Penstock, clock: ManualClock) -> None:
    system.create_queue("graveyard")
    q = system.create_queue("mortal", dead_letter="graveyard", max_attempts=1)
    q.enqueue(b"buried", headers={"type": "job"})
    q.nack([delivery.receipt for delivery in q.lease(1, consumer="worker-3")], reason="failed")
    q.enqueue(b"alive")


def _fifo(system: Penstock, clock: ManualClock) -> None:
    q = system.create_queue("fifo", fifo=True)
    q.enqueue_many([NewMessage(b"%d" % n, fairness_key=key) for n in range(3) for key in ("", "k")])
    q.lease(1, lease_s=DAY_S, consumer="worker-4")


def _held_body(system: Penstock, clock: ManualClock) -> None:
    q = system.create_queue("archived")
    q.cursor("archive", required=True)
    q.enqueue_many([NewMessage(b"held"), NewMessage(b"waiting")])
    q.ack([delivery.receipt for delivery in q.lease(1)])
    q.cursor("archive").commit(2)
    q.cursor("reader").commit(3)


def _busy(system: Penstock, clock: ManualClock) -> None:
    """Much was done, and its journal cut: what remains are the places where live rows start."""
    q = system.create_queue("busy", journal_max_bytes=1)
    for _ in range(MANY // 600):
        q.enqueue_many([NewMessage(b"") for _ in range(600)])
        q.ack([delivery.receipt for delivery in q.lease(600)])
        system.sweep()
    q.enqueue(b"the last")


def _world_and_state(system: Penstock, clock: ManualClock) -> None:
    system.journal(WORLD).append(
        [
            Entry("note", b"plain"),
            Entry("note", b"marked", labels=["a", "b"], flags=["seen"]),
            Entry("embedding", b"with a vector", vector=[0.5, -1.25, 3.0]),
        ]
    )
    system.state.put(STATE_KEY, b"dark")


def _job(system: Penstock, clock: ManualClock) -> None:
    """A queue that is gone, but whose rows are still being removed."""
    system.create_queue("dropped").enqueue_many([NewMessage(b"", delay_s=60) for _ in range(SLICES)])
    system.delete_queue("dropped")


#: Something of everything: in the store's tables, then in its log.
STEPS = (
    (_every_state, _ready_ones, _dead_letters, _fifo, _busy),
    (_held_body, _world_and_state, _job),
)


def make(folder: Path) -> None:
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as scratch:
        store, copy = Path(scratch) / "open", Path(scratch) / "store"
        for number, steps in enumerate(STEPS):
            url = f"rocksdb:{store}?mode=low_space"
            with penstock.open(url, clock=clock, rng=Random(number)) as system:
                for step in steps:
                    step(system, clock)
                    clock.advance(1)
                if steps is STEPS[-1]:
                    # As a crash would leave it: closing writes the log's rows into tables.
                    shutil.copytree(store, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        with tarfile.open(folder / f"v{FORMAT_VERSION}.tar.gz", "w:gz") as archive:
            for file in sorted(copy.iterdir()):
                _add(archive, file)
        with penstock.open(copy, clock=clock) as system:
            expected = {"now_ns": clock.now_ns(), **contents(system)}
    text = msgspec.json.format(msgspec.json.encode(expected, order="deterministic"))
    (folder / f"v{FORMAT_VERSION}.json").write_bytes(text + b"\n")


def _add(archive: tarfile.TarFile, file: Path) -> None:
    raw = file.read_bytes()
    entry = tarfile.TarInfo(f"store/{file.name}")
    entry.size = len(raw)
    archive.addfile(entry, io.BytesIO(raw))


def main() -> None:
    exists = (FOLDER / f"v{FORMAT_VERSION}.tar.gz").exists()
    if exists and "--replace" not in sys.argv[1:]:
        sys.exit(f"v{FORMAT_VERSION} exists; --replace makes it again, if it was never released")
    make(FOLDER)


if __name__ == "__main__":
    main()
