"""A process that owns a store and is killed at a step of its work, counted from when it is open.

It runs as `python -m tests.bulk_write.owner FOLDER STEP`, and ends with its input otherwise.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bulk_write import scenario
from tests.bulk_write.killed import Killer


def main(folder: str, step: str) -> None:
    scenario.small_sizes()
    killer = Killer(int(step), "after", Path(folder).with_suffix(".synced"))
    killer.patch()
    with scenario.open_store(Path(folder)):
        killer.armed = True
        print("open", flush=True)  # noqa: T201 (what is waited for)
        sys.stdin.read()
        killer.armed = False


if __name__ == "__main__":
    main(*sys.argv[1:])
