"""Stores on Redis for tests of Spark: what is in them, and where."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import penstock
from penstock import Entry, NewMessage, Penstock, Queue
from tests.redis.one_server import shared

_numbers = itertools.count()


def new_url(kind: str = "lists") -> str:
    """A store that nothing is in yet, on the server of this process."""
    return f"{shared().url(kind)}?key_prefix=spark-{next(_numbers)}-"


def filled(url: str, messages: int = 200) -> None:
    """Messages in every state, with every setting on some of them."""
    with penstock.open(url, rng=random.Random(3)) as ps:
        for name in ("orders", "m\u00e4ils"):
            work(ps.create_queue(name, lease_s=3600, retention_s=3600), messages)
        ps.journal("world").append([Entry(kind="made", body=b"\0\xff", labels=["a"], vector=[0.5])])


def work(queue: Queue, messages: int) -> None:
    queue.enqueue_many(
        [
            NewMessage(
                payload=b"payload %d" % n,
                headers={"n": str(n)} if n % 2 else {},
                fairness_key=f"key {n % 5}",
                weight=1 + n % 3,
                priority=n % 10,
                ttl_s=3600 if n % 4 == 0 else None,
                dedup_id=f"dedup {n}" if n % 3 == 0 else None,
                delay_s=600 if n % 20 == 19 else 0,
            )
            for n in range(messages)
        ]
    )
    receipts = [one.receipt for one in queue.lease(max_messages=messages // 2, consumer="worker 1")]
    fifth = len(receipts) // 5
    queue.ack(receipts[:fifth])
    queue.reject(receipts[fifth : 2 * fifth], reason="no good")
    queue.nack(receipts[2 * fifth : 3 * fifth], delay_s=600, reason="try again")
    queue.nack(receipts[3 * fifth : 4 * fifth], delay_s=0, reason="at once")
    queue.extend(receipts[4 * fifth :], lease_s=1800)


def payloads(ps: Penstock, queue: str) -> Counter[bytes]:
    return Counter(message.payload for message in ps.queue(queue).iter())
