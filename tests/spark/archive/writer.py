"""A process that owns a store and works in it, until its standard input ends: `python -m … FOLDER SEED`.

What it has enqueued is noted in a file beside the store, each payload when its enqueue has returned. Journals
are cut off as soon as they may be: whatever is not archived before a cursor moves is lost, and found missing.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path
from typing import TextIO

import penstock
from penstock import NewMessage, Penstock, Queue
from penstock.clock import SystemClock

QUEUES = ("plain", "kept/ü")


def main(folder: str, seed: str) -> None:
    over = threading.Event()
    threading.Thread(target=_until_end, args=(over,), daemon=True).start()
    rng = random.Random(int(seed))
    with (
        penstock.open(f"rocksdb:{folder}?durability=os") as ps,
        Path(folder + ".enqueued").open("a", buffering=1) as noted,
    ):
        ps.create_queue("plain", journal_max_bytes=1, max_attempts=3)
        ps.create_queue("kept/ü", journal_max_bytes=1, retention_s=0.5, max_attempts=2)
        for name in QUEUES:
            ps.queue(name).cursor("archive", required=True)
        os.write(1, b"working\n")
        number = 0
        while not over.is_set():
            number = _turn(ps, rng, number, noted)
            with (woken := threading.Condition()):
                SystemClock().wait(woken, 20_000_000)


def _until_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def _turn(ps: Penstock, rng: random.Random, number: int, noted: TextIO) -> int:
    for name in QUEUES:
        queue, count = ps.queue(name), rng.randrange(1, 30)
        payloads = [f"{name} {number + n}" for n in range(count)]
        queue.enqueue_many([NewMessage(payload.encode()) for payload in payloads])
        for payload in payloads:
            noted.write(payload + "\n")
        number += count
        _work(queue, rng)
    ps.sweep()
    return number


def _work(queue: Queue, rng: random.Random) -> None:
    receipts = [one.receipt for one in queue.lease(max_messages=rng.randrange(1, 40), lease_s=60)]
    cut = len(receipts) // 4
    queue.nack(receipts[:cut], delay_s=0, reason="again")
    queue.reject(receipts[cut : cut + 1], reason="no")
    queue.ack(receipts[cut + 1 :])


if __name__ == "__main__":
    main(*sys.argv[1:])
