"""A process that produces and consumes until it is killed, and says what it was promised.

Lines: `+ id` enqueued, `? id` about to be acked, `- id` acked; each is written before the next step.
"""

from __future__ import annotations

import random
import sys
import threading

import penstock
from penstock import BackendUnavailable, NewMessage, PenstockError


def main(url: str, seed: int) -> None:
    rng = random.Random(seed)
    pause = threading.Event()
    while True:
        try:
            with penstock.open(url) as ps:
                work(ps.queue("q"), rng)
        except BackendUnavailable:
            pause.wait(0.02)  # The server is down: it comes back.
        except PenstockError as error:
            say("!", f"{type(error).__name__} {error}")
            return


def work(q: penstock.Queue, rng: random.Random) -> None:
    while True:
        keys = [f"k{rng.randrange(5)}" for _ in range(rng.randrange(1, 30))]
        for result in q.enqueue_many([NewMessage(b"x", fairness_key=key) for key in keys]):
            say("+", str(result.id))
        held = q.lease(rng.randrange(1, 40), lease_s=0.3)
        finished = held[: rng.randrange(len(held) + 1)]
        for delivery in finished:
            say("?", delivery.id)
        for delivery, outcome in zip(finished, q.ack([one.receipt for one in finished]), strict=True):
            if outcome.ok:
                say("-", delivery.id)
        rest = held[len(finished) :]
        q.nack([one.receipt for one in rest[::2]], delay_s=0)  # The others are left to run out.


def say(what: str, text: str) -> None:
    sys.stdout.write(f"{what} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
