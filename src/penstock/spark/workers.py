"""Whether the workers of a cluster have the package that Spark calls there: asked when a session starts."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.errors import BackendUnavailable, InvalidConfig
from penstock.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A cluster in which no worker takes a task for so long has none to give.
PATIENCE_S = 120.0
_GROUP = "penstock: have the workers what they need?"


def check_workers(spark: SparkSession, patience_s: float = PATIENCE_S) -> None:
    """Errors name the worker and what it lacks, or the version that it has."""

    # Spark sends the code of a function inside a function. Of others it sends the name of their module, which
    # is what a worker without the package does not know.
    def missing_or_version(_: Iterable[int]) -> list[tuple[str, str, str]]:
        import socket

        try:
            import pandas  # noqa: F401
            import pyarrow  # noqa: F401

            from penstock.version import __version__
        except ImportError as error:
            return [(socket.gethostname(), error.name or str(error), "")]
        return [(socket.gethostname(), "", __version__)]

    context = spark.sparkContext
    tasks = max(2, context.defaultParallelism)
    late = threading.Timer(patience_s, context.cancelJobGroup, [_GROUP])
    context.setJobGroup(_GROUP, _GROUP)
    late.start()
    try:
        answers = context.parallelize(range(tasks), tasks).mapPartitions(missing_or_version).collect()
    except Exception as error:
        raise BackendUnavailable(_refusal(str(context.master), str(error), patience_s)) from error
    finally:
        late.cancel()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None takes it away
    for host, missing, version in answers:
        if missing:
            raise InvalidConfig(
                f"{missing} is not installed on Spark worker {host}: pip install 'penstock[spark]' there, "
                "or name the Python that has it in PYSPARK_PYTHON"
            )
        if version != __version__:
            raise InvalidConfig(f"penstock is {version} on the Spark worker {host}, and {__version__} here")


def _refusal(master: str, error: str, patience_s: float) -> str:
    if _GROUP in error or "cancelled" in error:
        return f"no worker of {master} took a task within {patience_s:.0f} s: has it any to spare?"
    for line in error.splitlines():
        if "Cannot run program" in line:
            reason = line[line.index("Cannot run program") :]
            return f"a worker of {master} cannot start Python: {reason}; PYSPARK_PYTHON names the one to use"
    return f"the workers of {master} did not answer: {' '.join(error.split())[:500]}"
