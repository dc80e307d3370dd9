"""The Spark session that the source and the jobs need: what must be set, which Java, and nothing printed."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import BackendNotInstalled, BackendUnavailable, InvalidConfig
from penstock.spark.java import java_home
from penstock.spark.workers import check_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Without these the source cannot be read, or a task is done twice at the same time.
NEEDED = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.speculation": "false",
}
DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # What Spark shuffles, spills and caches on disk is encrypted with a key that ends with the session: a
    # store may be encrypted, and a killed driver leaves its files behind.
    "spark.io.encryption.enabled": "true",
}
#: Of a local master: so many parts are enough for its cores, and do not cost more than what is in them.
PARTS_PER_CORE = 4
FEWEST_PARTS, MOST_PARTS = 16, 200
#: For little to do on one machine, where most of the time goes into starting. Java's second compiler takes
#: longer to make code fast than such a job runs; without it Java has a fifth of the room for compiled code,
#: of which Spark then needs more, and dies. And each part of what is grouped costs more than what is in it.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    "spark.sql.shuffle.partitions": "4",
}
#: What Java may use there, of which Spark's own default is 1 GiB whatever there is: a task that has a payload
#: of 64 MiB in its hands, the largest that there is, needs most of one. At most a part of the machine's.
GIB = 1024**3
MOST_HEAP_GIB = 16
PART_OF_MEMORY = 4
HEAP = "spark.driver.memory"
LOOPBACK = "127.0.0.1"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

# Errors, and no greeting: the logger `shell` is the one whose level Spark takes for that of a shell, and
# announces unless it is that of all others. What a task raises is raised again where its result is wanted.
_LOGGING = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
"""


def session(app_name: str = "penstock", master: str | None = None, **conf: object) -> SparkSession:
    """A session in which `format("penstock")` works; the one that runs already, if one does, as it is.

    `master` is `local[*]` unless spark-submit has named another. `conf` is Spark's own:
    `session(**{"spark.driver.memory": "4g", "spark.ui.enabled": True})`.
    """
    given = _checked(conf)
    check_installed()
    fresh = not is_running()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not submitted:
        master = given.get("spark.master", "local[*]")
    if not fresh:
        spark = _got(app_name, master, given)
    elif submitted:
        spark = _got(app_name, master, _unless_submitted(DEFAULTS) | given)
    else:
        spark = _started(app_name, master or "", DEFAULTS | given)
    _check_running(spark)
    if fresh:
        _register(spark)
    if fresh and not is_local(str(spark.sparkContext.master)):
        check_workers(spark)
    return spark


def is_running() -> bool:
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def _register(spark: SparkSession) -> None:
    """Spark finds the source by itself, too; it looks once, by a Python of its own, and if that one is killed
    the session never knows of it.
    """
    from penstock.spark.source import PenstockSource

    spark.dataSource.register(PenstockSource)


def is_local(master: str) -> bool:
    """Whether driver and workers are one process: then nothing need listen for other machines."""
    return master.split("[")[0] == "local"


def _checked(conf: dict[str, object]) -> dict[str, str]:
    given = {}
    for key, value in conf.items():
        if not key.startswith("spark."):
            raise InvalidConfig(f"Spark has no setting {key!r:.60}: all their names start with spark.")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if text != NEEDED.get(key, text):
            raise InvalidConfig(f"{key} must be {NEEDED[key]} for Penstock, not {text!r:.60}")
        given[key] = text
    return given


def check_installed() -> None:
    """Refuse by the name of what is missing; whatever imports Spark at its head comes after this."""
    for package in ("pyspark", "pyarrow", "pandas"):
        try:
            __import__(package)
        except ImportError as error:
            raise BackendNotInstalled(package, "spark") from error


def _started(app_name: str, master: str, given: dict[str, str]) -> SparkSession:
    """Starts Java, which takes what it is told by variables from this process."""
    scratch = _scratch()
    variables = {"JAVA_HOME": str(java_home(scratch)), "PYSPARK_PYTHON": sys.executable}
    conf = dict(given)
    if is_local(master):
        variables["SPARK_LOCAL_IP"] = LOOPBACK
        conf = _of_local(master) | conf
    if "log4j" not in (options := conf.get(JAVA_OPTIONS, "")) and not _has_logging():
        (scratch / "log4j2.properties").write_text(_LOGGING)
        conf[JAVA_OPTIONS] = (
            f"{options} -Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}"
        )
    with _environment(variables):
        return _got(app_name, master, conf)


def _unless_submitted(defaults: dict[str, str]) -> dict[str, str]:
    """Those that neither spark-submit nor its files have set."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # Before, nobody knows what was submitted.
    submitted = SparkConf()
    return {key: value for key, value in defaults.items() if not submitted.contains(key)}


def _of_local(master: str) -> dict[str, str]:
    """What suits one machine. Spark's own 200 parts of whatever is grouped or joined are for a cluster."""
    cores = re.match(r"local\[(\d+)", master)
    count = int(cores[1]) if cores else os.cpu_count() or 1 if "[" in master else 1
    parts = min(MOST_PARTS, max(FEWEST_PARTS, PARTS_PER_CORE * count))
    conf = {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.sql.shuffle.partitions": str(parts),
    }
    return conf if _heap_is_set() else {**conf, HEAP: f"{_heap_gib(count, _memory_bytes())}g"}


def _heap_gib(cores: int, memory_bytes: int) -> int:
    """One for each task at a time, and one for all else; an unused one costs nothing."""
    return max(1, min(cores + 1, MOST_HEAP_GIB, memory_bytes // PART_OF_MEMORY // GIB))


def _memory_bytes() -> int:
    """What this process may use: a container may have less than its machine."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # Not on this system, or without a limit, which is the word `max`.
        memory_bytes = min(memory_bytes, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory_bytes


def _heap_is_set() -> bool:
    """Whether somebody has told this Spark, by a variable or its file of defaults."""
    if os.environ.get("SPARK_DRIVER_MEMORY") or "driver" in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        return True
    with suppress(OSError):
        return HEAP in Path(_conf_folder(), "spark-defaults.conf").read_text()
    return False


def _got(app_name: str, master: str | None, conf: dict[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**conf, **NEEDED}.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        reason = " ".join(str(error).split())
        raise BackendUnavailable(f"Spark did not start with master {master!r}: {reason:.500}") from error


def _check_running(spark: SparkSession) -> None:
    """One that was there before has been told again what is SQL's; the rest counts from its start."""
    from_start = spark.sparkContext.getConf()
    for key, value in NEEDED.items():
        found = spark.conf.get(key, "false") if key.startswith("spark.sql.") else from_start.get(key, "false")
        if found != value:
            raise InvalidConfig(
                f"the Spark session that runs has {key}={found}; stop it, then ask for another"
            )


def _has_logging() -> bool:
    """Whether somebody has told this Spark how to log."""
    folder = _conf_folder()
    return any(Path(folder, f"log4j2.{kind}").exists() for kind in ("properties", "xml", "yaml", "json"))


def _conf_folder() -> str:
    from pyspark.find_spark_home import _find_spark_home

    return os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")


@cache
def _scratch() -> Path:
    """Until this process ends: the session's Java may start others."""
    folder = tempfile.mkdtemp(prefix="penstock-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """What the user has set stays, but for JAVA_HOME: that has been looked at, and may be of no use."""
    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if name == "JAVA_HOME" or not before[name]:
            os.environ[name] = value
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = was
