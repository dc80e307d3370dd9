"""Who sends what: the shops, their parcels, and the queue that these go into."""

from __future__ import annotations

import random
from collections.abc import Iterator

from penstock import NewMessage, Penstock, Queue, Retry

QUEUE, DEAD_LETTERS = "parcels", "parcels-dead"
#: shop -> messages in a hundred. The largest must not crowd out the others.
SHOPS = {"bakery": 60, "florist": 18, "bookshop": 12, "toyshop": 7, "clockmaker": 3}
BROKEN = {"type": "broken"}
BROKEN_EVERY = 1000
LEASE_S = 2.0
RETRY_S = 0.2


def set_up(ps: Penstock) -> Queue:
    ps.create_queue(DEAD_LETTERS)
    retry = Retry(policy="fixed", delay_s=RETRY_S)
    return ps.create_queue(QUEUE, lease_s=LEASE_S, max_attempts=5, retry=retry, dead_letter=DEAD_LETTERS)


def batches(count: int, size: int, rng: random.Random) -> Iterator[list[tuple[str, NewMessage]]]:
    """(shop, message) in batches, a few of them broken."""
    shops = rng.choices(list(SHOPS), weights=list(SHOPS.values()), k=count)
    for start in range(0, count, size):
        yield [
            (
                shop,
                NewMessage(
                    payload=f"label {number} for {shop}".encode(),
                    headers=BROKEN if number % BROKEN_EVERY == 0 else {},
                    fairness_key=shop,
                ),
            )
            for number, shop in enumerate(shops[start : start + size], start=start + 1)
        ]
