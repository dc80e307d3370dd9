"""A process that opens a store with a key, rekeys it in small slices, and says after each how far it is.

`rekeyer.py FLAVOUR PORT PREFIX KEY [cluster]`. It goes on when it is told to, so that whoever kills it
knows how far it was, however busy the machine is.
"""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from penstock.backends.redis import copying, rekeying
from tests.encryption.stores import ALL_KEYS
from tests.redis.stores import opened

ROOT = Path(__file__).parents[2]


def main(flavour: str, port: int, prefix: str, key_id: str, where: str = "") -> None:
    rekeying.VALUES_PER_SLICE = 10
    copying.FRAMES_PER_SLICE = 3
    with opened(flavour, port, prefix, ALL_KEYS, key_id, cluster=where == "cluster") as ps:
        report = ps.rekey(lambda phase, done, total: say(f"{phase} {done}"))
    say(f"ended {report.unreadable}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    sys.stdin.readline()


def killed_at_work(arguments: list[str], steps: int, rng: random.Random) -> str:
    """The last that such a process said before it was killed, in the midst of what follows so many steps."""
    command = [sys.executable, "-m", "tests.redis.rekeyer", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = ""
        for _ in range(steps):
            said = process.stdout.readline()
            assert said, "it ended without a word"
            process.stdin.write("\n")
            process.stdin.flush()
            if said.startswith("ended"):
                return said
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.random() * 0.003)
        process.kill()
    return said


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
