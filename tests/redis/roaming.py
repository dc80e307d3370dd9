"""A process that sends messages round the queues of a store until it is killed, and says what it is promised.

Lines: `+ id` enqueued, `? id` about to be acked, `- id` acked, `* n` was let down; each before the next step.
"""

from __future__ import annotations

import random
import sys
import threading

import penstock
from penstock import BackendUnavailable, NewMessage, PenstockError, Queue
from penstock.testing.harness import ids


def main(url: str, seed: int) -> None:
    rng = random.Random(seed)
    pause = threading.Event()
    while True:
        try:
            with penstock.open(url) as ps:
                while True:
                    go_round(ps, rng)
        except BackendUnavailable:
            say("*", "1")
            pause.wait(0.05)  # A master is down, or a slot moves: that passes.
        except PenstockError as error:
            say("!", f"{type(error).__name__} {error}")
            return


def go_round(ps: penstock.Penstock, rng: random.Random) -> None:
    work, spare, dead = ps.queue("work"), ps.queue("spare"), ps.queue("dead")
    keys = [f"k{rng.randrange(5)}" for _ in range(rng.randrange(1, 20))]
    for result in work.enqueue_many([NewMessage(b"x", fairness_key=key) for key in keys]):
        say("+", str(result.id))
    held = work.lease(rng.randrange(1, 25), lease_s=2)
    work.reject([one.receipt for one in held[::3]], reason="no good")
    finish(work, held[1::3])
    work.nack([one.receipt for one in held[2::3]], delay_s=0)
    work.move(ids(work.peek(rng.randrange(1, 8))), target="spare")
    finish(spare, spare.lease(rng.randrange(1, 8), lease_s=2))
    if rng.random() < 0.3:
        dead.redrive(limit=rng.randrange(1, 20))


def finish(q: Queue, deliveries: list[penstock.Delivery]) -> None:
    for delivery in deliveries:
        say("?", delivery.id)
    outcomes = q.ack([one.receipt for one in deliveries])
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        if outcome.ok:
            say("-", delivery.id)


def say(what: str, text: str) -> None:
    sys.stdout.write(f"{what} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
