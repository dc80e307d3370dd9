"""A process that commits a bulk write: `python -m tests.redis.bulk_committer URL FILE`."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import penstock


def main(url: str, file: str) -> None:
    ticket, txn, staged = pickle.loads(Path(file).read_bytes())
    with penstock.open(url) as ps:
        sys.stdout.write("committing\n")
        sys.stdout.flush()
        ps.commit_write(ticket, txn, staged)


if __name__ == "__main__":
    main(*sys.argv[1:])
