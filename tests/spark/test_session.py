"""penstock.spark.session: silent, on the Java that there is, and clear about what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import StorageLevel
from pyspark.sql import SparkSession

import penstock.spark
from penstock.errors import BackendNotInstalled, InvalidConfig
from penstock.spark.java import java_home
from penstock.spark.session import DEFAULTS, GIB, NEEDED, _heap_gib, _of_local
from tests.spark import quick

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
import penstock, penstock.spark

if __name__ == "__main__":
    with penstock.open(sys.argv[1]) as ps:
        ps.create_queue("orders").enqueue(b"x")
        spark = penstock.spark.session(master="local[1]", **{"spark.driver.memory": "1g"})
        df = spark.read.format("penstock").load(sys.argv[1], table="messages")
        java = spark.sparkContext._jvm.System.getProperty("java.version")
        address = spark.conf.get("spark.driver.host")
        print(df.count(), java.split(".")[0], address)
"""


def test_what_must_be_set_is_set(spark: SparkSession) -> None:
    for key, value in (NEEDED | DEFAULTS).items():
        assert spark.conf.get(key) == value, key
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.parametrize(
    ("master", "parts"),
    [("local", 16), ("local[2]", 16), ("local[8,4]", 32), ("local[999]", 200)],
)
def test_a_local_master_cuts_work_into_as_many_parts_as_its_cores_can_use(master: str, parts: int) -> None:
    assert _of_local(master)["spark.sql.shuffle.partitions"] == str(parts)
    every = int(_of_local("local[*]")["spark.sql.shuffle.partitions"])
    assert every == min(200, max(16, 4 * (os.cpu_count() or 1)))


@pytest.mark.parametrize(
    ("cores", "memory_gib", "heap_gib"), [(2, 24, 3), (2, 8, 2), (2, 1, 1), (8, 64, 9), (64, 512, 16)]
)
def test_java_gets_more_where_more_runs_at_the_same_time_and_there_is_more(
    cores: int, memory_gib: int, heap_gib: int
) -> None:
    assert _heap_gib(cores, memory_gib * GIB) == heap_gib


def test_what_java_was_given_by_others_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("SPARK_DRIVER_MEMORY", raising=False)
    assert "spark.driver.memory" in _of_local("local[2]")
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.memory 2g\n")
    assert "spark.driver.memory" not in _of_local("local[2]")


def test_what_the_user_sets_counts(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_what_spark_puts_on_disk_cannot_be_read_there(spark: SparkSession) -> None:
    secret = "for nobody else's eyes"
    # Spark deletes what earlier queries left whenever it likes: only what this one writes is looked at.
    before = _on_disk(spark)
    kept = spark.range(100).selectExpr("id", f'concat("{secret} ", id) AS text')
    kept = kept.repartition(2, "text").persist(StorageLevel.DISK_ONLY)
    assert kept.count() == 100
    files = _on_disk(spark) - before
    assert files
    assert not [file for file in files if secret.encode() in file.read_bytes()]
    kept.unpersist()


def _on_disk(spark: SparkSession) -> set[Path]:
    return {file for file in Path(spark.conf.get("spark.local.dir") or "").rglob("*") if file.is_file()}


def test_the_session_that_runs_is_given_again(spark: SparkSession) -> None:
    assert penstock.spark.session() is spark or penstock.spark.session().sparkContext is spark.sparkContext


def test_a_session_that_runs_keeps_what_its_user_has_set(spark: SparkSession) -> None:
    mine = {
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.sql.execution.arrow.pyspark.enabled": "false",
    }
    before = {key: str(spark.conf.get(key)) for key in mine}
    try:
        for key, value in mine.items():
            spark.conf.set(key, value)
        again = penstock.spark.session()
        assert {key: again.conf.get(key) for key in mine} == mine
        assert again.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)


SUBMITTED = """
import penstock.spark

spark = penstock.spark.session()
keys = ("sql.session.timeZone", "app.name", "io.encryption.enabled")
print(*(spark.conf.get(f"spark.{key}") for key in keys))
"""


@pytest.mark.soak
def test_what_is_submitted_counts_and_the_rest_is_set(driver: None, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SUBMITTED)
    mine = ("--conf", "spark.sql.session.timeZone=Europe/Berlin", *quick.SUBMITTED)
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]", *mine]
    environment = {**os.environ, "JAVA_HOME": str(java_home(tmp_path)), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [*command, str(tmp_path / "program.py")],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["Europe/Berlin", "penstock", "true"]


UNFOUND = """
import sys, penstock, penstock.spark
with penstock.open(sys.argv[1]) as ps:
    ps.create_queue("q")
spark = penstock.spark.session(master="local[1]")
print(spark.read.format("penstock").load(sys.argv[1], table="queues").count())
"""


@pytest.mark.soak
def test_the_source_is_there_though_spark_has_not_found_it(driver: None, tmp_path: Path) -> None:
    """As after the Python was killed that Spark had look for it."""
    (tmp_path / "pyspark_penstock.py").write_text("raise ImportError")
    done = subprocess.run(
        [sys.executable, "-c", UNFOUND, str(tmp_path / "store")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


def test_a_session_that_runs_with_what_does_not_do_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NEEDED, "spark.speculation", "true")

    with pytest.raises(
        InvalidConfig, match=r"the Spark session that runs has spark\.speculation=false; stop it"
    ):
        penstock.spark.session()


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"driver.memory": "1g"}, "Spark has no setting 'driver.memory': all their names start with spark."),
        ({"spark.speculation": True}, "spark.speculation must be false for Penstock, not 'true'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(conf: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        penstock.spark.session(**conf)


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(BackendNotInstalled) as refused:
        penstock.spark.session()

    assert str(refused.value) == f"{package} is not installed; pip install 'penstock[spark]'"


def without_java(folder: Path) -> dict[str, str]:
    """An environment in which no Java is found; the rest of what shells need is there."""
    tools = folder / "tools"
    tools.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if not program.name.startswith("java") and not (tools / program.name).exists():
                (tools / program.name).symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return environment | {"PATH": str(tools)}


@pytest.mark.usefixtures("driver")
@pytest.mark.soak
def test_without_a_java_the_packaged_one_runs_and_nothing_is_printed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    run = subprocess.run(
        [sys.executable, program, tmp_path / "store"],
        env=without_java(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert (run.stderr, run.stdout) == ("", "1 21 127.0.0.1\n")


def test_spark_does_not_load_with_the_rest() -> None:
    code = "import sys, penstock, penstock.cli.main; print([m for m in sys.modules if m.split('.')[0] in "
    code += "('pyspark', 'pyarrow', 'pandas', 'numpy')])"

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout == "[]\n"
