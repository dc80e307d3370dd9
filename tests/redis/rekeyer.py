"""A process that opens a store with a key, rekeys it in small slices, and says after each how far it is.

`rekeyer.py FLAVOUR PORT PREFIX KEY [cluster]`
"""

from __future__ import annotations

import sys

from penstock.backends.redis import copying, rekeying
from tests.encryption.stores import ALL_KEYS
from tests.redis.stores import opened


def main(flavour: str, port: int, prefix: str, key_id: str, where: str = "") -> None:
    rekeying.VALUES_PER_SLICE = 10
    copying.FRAMES_PER_SLICE = 3
    with opened(flavour, port, prefix, ALL_KEYS, key_id, cluster=where == "cluster") as ps:
        report = ps.rekey(lambda phase, done, total: say(f"{phase} {done}"))
    say(f"ended {report.unreadable}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
