"""Spark writing a table into a queue, beside a sink in the same run that discards the same rows.

python benchmarks/spark_write.py [--rows 2000000] [--rounds 5] [--master local[2]] [--json FILE]

Rows come from Parquet. The sink that discards is written the same way, in Python and by Arrow batches: what
is left is what Penstock does. The two take turns, and their medians are compared, by the clock and by the
time of processors, which neighbours on the machine disturb less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import penstock
import penstock.spark

PAYLOAD_BYTES = 205


class Discarding(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for batch in iterator:
            batch.num_rows  # noqa: B018 (it is looked at, and nothing else)
        return WriterCommitMessage()


class Discard(DataSource):
    @classmethod
    def name(cls) -> str:
        return "discard"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return Discarding()


def table(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    spark.range(rows, numPartitions=2).selectExpr(
        f"cast(rpad(concat(md5(string(id)), md5(string(-id))), {PAYLOAD_BYTES}, 'x') as binary) payload",
        "concat('tenant ', id % 100) fairness_key",
        "cast(4 + id % 2 as int) priority",
    ).write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def processor_s() -> float:
    """Of this process and all that it has started, those that have ended too."""
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    family = {os.getpid()}
    while more := {pid for pid, fields in stats.items() if int(fields[1]) in family} - family:
        family |= more
    ticks = sum(int(tick) for pid in family if pid in stats for tick in stats[pid][11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def timed(write: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of processor time."""
    started_s, before_s = time.perf_counter(), processor_s()
    write()
    return time.perf_counter() - started_s, processor_s() - before_s


def into_a_queue(df: DataFrame, store: Path) -> None:
    df.write.format("penstock").mode("append").option("url", str(store)).option("queue", "q").save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-spark-write-"))
    spark = penstock.spark.session("benchmark", args.master, **{"spark.driver.memory": "2g"})
    spark.dataSource.register(Discard)
    took: dict[str, list[tuple[float, float]]] = {"discard": [], "penstock": []}
    try:
        df = table(spark, folder / "rows", args.rows)
        for number in range(args.rounds + 1):
            store = folder / f"store {number}"
            with penstock.open(f"rocksdb:{store}?durability=os") as ps:
                ps.create_queue("q")
            discarded = timed(lambda: df.write.format("discard").mode("append").save())
            written = timed(lambda store=store: into_a_queue(df, store))  # type: ignore[misc]
            with penstock.open(store) as ps:
                assert ps.queue("q").length() == args.rows
            shutil.rmtree(store)
            shown = [
                f"{clock_s:.2f} s ({cpu_s:.2f} s of processors)" for clock_s, cpu_s in (discarded, written)
            ]
            print(f"round {number}: discard {shown[0]}, penstock {shown[1]}", flush=True)
            if number:  # The first starts Python's workers and compiles Spark's code.
                took["discard"].append(discarded)
                took["penstock"].append(written)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    medians = {name: statistics.median(clock_s for clock_s, _ in times) for name, times in took.items()}
    cpu = {name: statistics.median(cpu_s for _, cpu_s in times) for name, times in took.items()}
    results = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "rows": args.rows,
        "rows_per_s": {name: round(args.rows / median_s) for name, median_s in medians.items()},
        "ratio": round(medians["discard"] / medians["penstock"], 2),
        "processor_ratio": round(cpu["discard"] / cpu["penstock"], 2),
        "rounds_s": took,
    }
    print(results["rows_per_s"], "ratio", results["ratio"], "by processor time", results["processor_ratio"])
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
