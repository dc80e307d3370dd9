"""What makes Spark quick where there are few rows, and processes that live for seconds."""

from __future__ import annotations

#: Java's second compiler takes longer to make code fast than tests run.
JAVA = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
SUBMITTED = tuple(word for key, value in JAVA.items() for word in ("--conf", f"{key}={value}"))
#: Few partitions; and neither plans that are made anew at each step, nor code that is compiled for each: both
#: take longer than a few rows do. Drivers in processes of their own, and clusters, run without these two.
ROWS = {
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
