"""Repairs or reindexes a store, again and again until it is killed: run in a process of its own."""

from __future__ import annotations

import sys

import penstock
from penstock import Penstock
from tests.check.stores import Raw
from tests.crash.clocks import now_clock


def spoil(ps: Penstock) -> None:
    """Faults that cost no message: index rows, state rows that the journal has, counters, hints."""
    raw = Raw(ps)
    for space in ("ready", "due", "entries"):
        for key, _ in raw.rows(space)[::3]:
            raw.delete(space, key)
    kept = raw.number("kept")
    for key, _ in raw.rows("state")[::2]:
        if int.from_bytes(key[:4], "big") != kept:
            raw.delete("state", key)


def main(target: str, what: str) -> None:
    with penstock.open(target, clock=now_clock()) as ps:
        while True:
            spoil(ps)
            sys.stdout.write("spoilt\n")
            sys.stdout.flush()
            if what == "reindex":
                ps.reindex()
            else:
                ps.check(repair=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
