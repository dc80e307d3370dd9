"""A process that makes a group of consumers, says so when it begins, and is killed in the middle."""

from __future__ import annotations

import sys

import penstock


def main(url: str, group: str) -> None:
    with penstock.open(url) as ps:
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        ps.queue("q").create_group(group)
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
