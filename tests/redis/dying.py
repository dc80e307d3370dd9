"""A process that kills itself at a given step of an operation on a cluster: `dying.py URL WHAT SCRIPT NTH`.

It dies when servers have run the script for the nth time, before it hears of it; `none` is for never.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import penstock
from penstock.backends.redis.connecting import Script, Server
from penstock.clock import ManualClock
from penstock.testing.harness import START_NS, ids, receipts


def die_after(name: str, nth: int) -> None:
    run, count = Server.run, [0]

    def counted(self: Server, script: Script, *args: Any, **options: Any) -> Any:
        reply = run(self, script, *args, **options)
        if script.name == name:
            count[0] += 1
            if count[0] == nth:
                os.kill(os.getpid(), signal.SIGKILL)
        return reply

    Server.run = counted  # type: ignore[method-assign]


def move(ps: penstock.Penstock) -> None:
    ps.queue("work").move(ids(ps.queue("work").iter()), target="spare")


def bury(ps: penstock.Penstock) -> None:
    q = ps.queue("work")
    q.reject(receipts(q.lease(100)), reason="no good")


def bury_second(ps: penstock.Penstock) -> None:
    q = ps.queue("work")
    q.reject(receipts(q.lease(100, group="second")), reason="no good")


def join(ps: penstock.Penstock) -> None:
    ps.queue("work").create_group("late")


def drop(ps: penstock.Penstock) -> None:
    ps.queue("work").drop_group("second")


def redrive(ps: penstock.Penstock) -> None:
    ps.queue("work").redrive(target="spare")


def create(ps: penstock.Penstock) -> None:
    ps.create_queue("new", lease_s=7)


def update(ps: penstock.Penstock) -> None:
    ps.update_queue("work", max_leased_per_key=3)


def delete(ps: penstock.Penstock) -> None:
    ps.delete_queue("spare")


def replace(ps: penstock.Penstock) -> None:
    """One is made, two are changed, one is deleted."""
    ps.replace_queues([{"name": "new"}, {"name": "work", "lease_s": 5}, {"name": "dead", "lease_s": 5}])


WHAT: dict[str, Callable[[penstock.Penstock], None]] = {
    one.__name__: one
    for one in (move, bury, bury_second, redrive, create, update, delete, replace, join, drop)
}

if __name__ == "__main__":
    url, what, name, nth = sys.argv[1:]
    with penstock.open(url, clock=ManualClock(START_NS), rng=random.Random(2)) as store:
        die_after(name, int(nth))
        WHAT[what](store)
