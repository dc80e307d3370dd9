"""A driver that archives a store again and again, until it is killed: `python -m … STORE FOLDER`."""

from __future__ import annotations

import os
import sys

import penstock.spark
from penstock.spark.archive.moment import ArchiveOptions
from penstock.spark.jobs.archive import archive
from penstock.spark.store import Store
from tests.spark import quick


def main(store: str, folder: str) -> None:
    conf = {**quick.JAVA, "spark.driver.memory": "600m", "spark.default.parallelism": "2"}
    spark = penstock.spark.session("penstock-killed", "local[2]", **conf)
    os.write(1, b"archiving\n")
    while True:
        archive(spark, Store(store), folder, ArchiveOptions(events_per_commit=200))


if __name__ == "__main__":
    main(*sys.argv[1:])
