"""A process that writes job after job in bulk, and consumes some of it, until it is killed.

It runs as `python -m tests.bulk_write.campaigner FOLDER ACKNOWLEDGED`: the second is a file that gets a line
for each job whose commit was answered.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock
from penstock import Penstock, Staged, Txn, WriteTicket
from tests.bulk_write import scenario

APP = "campaign"
#: By partition: one becomes tables, the other does not.
ROWS = (130, 10)


def payload(version: int, partition: int, row: int) -> bytes:
    return b"%d/%d/%d" % (version, partition, row)


def stage(ticket: WriteTicket, version: int) -> list[Staged]:
    staged = []
    with penstock.open_writer(ticket) as writer:
        for partition, count in enumerate(ROWS):
            rows = range(count)
            columns: dict[str, pa.Array[Any]] = {
                "payload": pa.array([payload(version, partition, row) for row in rows], pa.binary()),
                "fairness_key": pa.array([f"k{row % 3}" for row in rows]),
                # Some go in one by one: no other job has these ids.
                "dedup_id": pa.array(
                    [f"{version}/{partition}/{row}" if row % 10 == 0 else None for row in rows]
                ),
            }
            staged.append(writer.stage(Txn(APP, version), partition, [pa.record_batch(columns)]))
    return staged


def consume(ps: Penstock) -> None:
    q = ps.queue("q")
    deliveries = q.lease(100, lease_s=0.05)
    q.ack([delivery.receipt for delivery in deliveries[:70]])


def main(folder: str, acknowledged: str) -> None:
    scenario.small_sizes()
    known = Path(acknowledged).read_text().split()
    # One that was not answered is run again, as a driver that is started again does.
    version = int(known[-1]) + 1 if known else 0
    while True:
        with penstock.open(f"rocksdb:{folder}?durability=os") as ps:
            ticket = ps.begin_write("q")
            staged = stage(ticket, version)
            ps.commit_write(ticket, Txn(APP, version), staged)
            with open(acknowledged, "a") as file:
                file.write(f"{version}\n")
            consume(ps)
        version += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
