"""A producer or a worker that lives through faults: `python -m tests.redis.working produce|work URL`.

Neither opens its store again. Lines: `+ id` enqueued, and told so; `= id` handled; `! error` raised.
"""

from __future__ import annotations

import logging
import sys
import threading

import penstock
from penstock import Delivery, NewMessage, PenstockError, Worker

BATCH = 20
PAUSE_S = 0.02


def produce(ps: penstock.Penstock) -> None:
    q, pause = ps.queue("q"), threading.Event()
    while True:
        try:
            results = q.enqueue_many([NewMessage(b"x" * 100, fairness_key=f"k{n % 5}") for n in range(BATCH)])
        except PenstockError as error:
            say("!", type(error).__name__)
        else:
            for result in results:
                say("+" if result.id else "!", result.id or type(result.error).__name__)
        pause.wait(PAUSE_S)


def work(ps: penstock.Penstock) -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    Worker(ps, "q", handled, concurrency=4).run()


def handled(delivery: Delivery) -> None:
    say("=", delivery.id)


_saying = threading.Lock()


def say(what: str, text: str) -> None:
    with _saying:
        sys.stdout.write(f"{what} {text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with penstock.open(sys.argv[2]) as opened:
        {"produce": produce, "work": work}[sys.argv[1]](opened)
