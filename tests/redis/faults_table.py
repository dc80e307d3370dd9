"""The table of faults in docs/backends.md: `python -m tests.redis.faults_table [--rounds N] [STORE …]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.redis.faults import FAULTS, TARGETS, Target, run_fault

HEAD = (
    "| store | fault | rounds | acknowledged | missing | handled again | errors told to producers |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("targets", nargs="*", metavar="STORE", default=[str(target) for target in TARGETS])
    asked = parser.parse_args()
    missing = 0
    say(HEAD)
    for text in asked.targets:
        flavour, _, kind = text.partition("+")
        for seed, fault in enumerate(FAULTS):
            with tempfile.TemporaryDirectory(prefix="penstock-faults-") as folder:
                found = run_fault(Target(flavour, kind or "lists"), fault, asked.rounds, Path(folder), seed)
            say(found.row())
            missing += found.missing
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
