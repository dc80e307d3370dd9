"""The process that is killed while it leases under a limit: `python -m tests.crash.throttled STORE`.

The limit never refills. It says how many it has leased, each time; what it could not say may be true too.
"""

from __future__ import annotations

import os
import sys

import penstock
from penstock import NewMessage

BURST = 100_000


def main(store: str) -> None:
    ps = penstock.open(f"rocksdb:{store}?durability=os")
    if not ps.queues():
        ps.throttles.set("api", 0, BURST)
        q = ps.create_queue("q", lease_s=86_400)
        q.enqueue_many([NewMessage(fairness_key=f"{n % 50}", throttle_keys=["api"]) for n in range(20_000)])
    q = ps.queue("q")
    leased = q.stats().leased
    while True:
        leased += len(q.lease(7))
        os.write(1, b"%d\n" % leased)


if __name__ == "__main__":
    main(sys.argv[1])
