"""A driver of Spark that writes into a queue, as a batch or as a stream, until it is done or killed.

It runs as `python -m tests.spark.write_driver batch|stream STORE SOURCE VERSION`, and prints a line when it
starts to write. A batch writes the folder VERSION of the source, a stream all of them that are there.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import penstock.spark
from tests.spark import quick


def main(how: str, store: str, source: str, version: str) -> None:
    conf = {**quick.JAVA, "spark.driver.memory": "512m"}
    spark = penstock.spark.session("killed", "local[2,4]", **conf)
    print("writing", flush=True)  # noqa: T201 (what is waited for)
    write(spark, how, store, source, version)
    spark.stop()


def write(spark: SparkSession, how: str, store: str, source: str, version: str) -> None:
    options = {"url": store, "queue": "q"}
    if how == "batch":
        df = spark.read.parquet(f"{source}/{version}")
        options |= {"txnAppId": "killed", "txnVersion": version}
        df.write.format("penstock").mode("append").options(**options).save()
        return
    options["checkpointLocation"] = source + ".checkpoint"
    files = spark.readStream.schema("payload string, id string").option("maxFilesPerTrigger", 1)
    stream = files.parquet(f"{source}/*")
    writer = stream.writeStream.format("penstock").options(**options)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
