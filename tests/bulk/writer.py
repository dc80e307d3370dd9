"""One that owns a store, or attaches to it, and changes it in every way until it is killed."""

from __future__ import annotations

import sys
from random import Random

import penstock
from penstock import NewMessage


def work(folder: str, seed: int) -> None:
    rng = Random(seed)
    with penstock.open(f"rocksdb:{folder}?durability=os") as ps:
        q = ps.queue("q")
        number = 0
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            count = rng.randint(1, 30)
            q.enqueue_many(
                [
                    NewMessage(
                        b"%d" % (number + n), headers={"n": str(number + n)}, delay_s=rng.choice([0, 0, 900])
                    )
                    for n in range(count)
                ]
            )
            number += count
            held = [delivery.receipt for delivery in q.lease(rng.randint(1, 25), lease_s=900, consumer="w")]
            cut, last = len(held) // 2, len(held) * 3 // 4
            q.ack(held[:cut])
            q.nack(held[cut:last], delay_s=0, reason="again")
            if rng.random() < 0.2:
                q.reject(held[last:], reason="bad")
            ps.journal("w").append([penstock.Entry("k", b"%d" % number)])


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
