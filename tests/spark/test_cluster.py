"""A real cluster, master and two workers: what runs in one process runs there, unchanged."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import NewMessage, Penstock
from penstock.spark.archive.layout import LOG_FOLDER
from tests.spark.cluster import Cluster
from tests.spark.stores import QUEUES, filled, place

START = """
import contextlib, io, json, sys
import penstock.spark
from penstock.cli.main import main
from penstock.errors import PenstockError

CONF = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.cores.max": "2"}
CONF |= {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.task.maxFailures": "1"}
# Java's second compiler takes longer to make code fast than tests run.
CONF |= {f"spark.{part}.extraJavaOptions": "-XX:TieredStopAtLevel=1" for part in ("driver", "executor")}
# Nothing begins before both workers are there: each of two tasks then has one to itself.
CONF |= {"spark.scheduler.minRegisteredResourcesRatio": "1.0"}

def session():
    try:
        return penstock.spark.session(master=sys.argv[1], **CONF)
    except PenstockError as error:
        print(type(error).__name__, error)
        sys.exit()

def load(table, **options):
    return session().read.format("penstock").options(url=sys.argv[2], table=table, **options).load()

def written(rows, **options):
    df = session().range(0, rows, 1, 2).selectExpr("CAST(id AS STRING) AS payload")
    df.write.format("penstock").mode("append").options(url=sys.argv[2], queue="orders", **options).save()

def pipeline(*arguments):
    "As the command line, in the session that runs: its exit code, and what it says to programs."
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(said):
            main(["--store", sys.argv[2], "--json", "pipeline", *arguments, "--master", sys.argv[1]])
    except SystemExit as end:
        said.flush()
        return [end.code, *map(json.loads, said.buffer.getvalue().splitlines())]
"""

WORKING = """
answer = {table: load(table).count() for table in ("messages", "entries")}
answer["executors"] = session().sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
stream = session().readStream.format("penstock").load(sys.argv[2])
writer = stream.writeStream.format("parquet").option("checkpointLocation", sys.argv[3] + "/checkpoint")
writer.trigger(availableNow=True).start(sys.argv[3] + "/events").awaitTermination()
streamed = session().read.parquet(sys.argv[3] + "/events")
answer["streamed"] = [streamed.count(), streamed.select("queue", "seq").distinct().count()]
written(500)
answer["archive"] = pipeline("archive", sys.argv[3] + "/archive")
answer["audit"] = pipeline("audit")
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that one of the workers finds empty."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, hidden: Path) -> Iterator[Cluster]:
    """One for all tests: it takes longer to start than most of them."""
    folder = tmp_path_factory.mktemp("cluster") / "spark"
    with Cluster(folder, hidden=hidden) as cluster:
        yield cluster


def answer(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_tables_streams_writes_and_jobs_are_run_by_the_workers(
    cluster: Cluster, store: Penstock, tmp_path: Path
) -> None:
    stats = [store.queue(name).stats() for name in QUEUES]

    told = json.loads(answer(cluster.run(START + WORKING, place(store), tmp_path)))

    events = sum(one.last_seq for one in stats)
    messages = sum(one.delayed + one.ready + one.leased + one.done + one.dead for one in stats)
    assert told["executors"] == 2
    assert (told["messages"], told["entries"]) == (messages, 4 + len(QUEUES))
    assert told["streamed"] == [events, events]
    assert store.queue("orders").stats().enqueued_total == 100 + 500
    (code, archived), (audit_code, audited) = told["archive"], told["audit"]
    assert (code, archived["events"], archived["bodies"]) == (0, events + 500, messages + 500)
    assert (audit_code, audited["ok"], audited["events"]) == (0, True, events + 500)


ALL_JOBS = """
def folder(name): return sys.argv[3] + "/" + name
archive, into = folder("archive"), folder("rebuilt")
answer = [
    pipeline("archive", archive, "--batch", "200"),
    pipeline("compact", archive),
    pipeline("rebuild", archive, into),
    pipeline("verify", archive, into),
    pipeline("copy", folder("copied"), "--verify"),
    pipeline("audit"),
    pipeline("report", folder("report.html")),
    pipeline("replay", "again", "mails", "--archive", archive),
]
print(json.dumps(answer))
"""


@pytest.mark.soak
def test_every_job_runs_there(cluster: Cluster, store: Penstock, tmp_path: Path) -> None:
    told = json.loads(answer(cluster.run(START + ALL_JOBS, place(store), tmp_path)))

    assert [code for code, *_ in told] == [0] * len(told)
    _, _, _, verified, copied, audited, _, _ = (said for _, said in told)
    assert (verified["same"], copied["same"], audited["ok"]) == (True, True, True)
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert store.queue("mails").stats().enqueued_total > 100


@pytest.mark.soak
def test_a_package_that_workers_lack_is_named_when_the_session_starts(
    cluster: Cluster, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)

    told = answer(cluster.run(START + "session()", PYSPARK_PYTHON=str(tmp_path / "bare" / "bin" / "python")))

    assert told.startswith("InvalidConfig ")
    assert " is not installed on Spark worker " in told
    assert "pip install 'penstock[spark]' there" in told
    assert told.count("\n") == 1


@pytest.mark.soak
def test_a_python_that_workers_lack_is_named(cluster: Cluster, tmp_path: Path) -> None:
    told = answer(cluster.run(START + "session()", PYSPARK_PYTHON=str(tmp_path / "no-python")))

    assert "cannot start Python" in told
    assert str(tmp_path / "no-python") in told
    assert told.count("\n") == 1


FAILING = """
answer = {}
for name, work in {"read": lambda: load("events").count(), "write": lambda: written(500)}.items():
    try:
        work()
    except Exception as error:
        answer[name] = str(error)
answer["job"] = pipeline("archive", sys.argv[3] + "/archive")[0]
print(json.dumps(answer))
"""


@pytest.mark.soak
def test_one_worker_of_two_that_does_not_see_the_store_says_so(
    cluster: Cluster, hidden: Path, tmp_path: Path
) -> None:
    with filled(hidden / "store") as ps:
        ps.queue("orders").enqueue_many([NewMessage(b"x")] * 4000)  # Enough for both to have some to read.
        before = ps.queue("orders").stats()

        run = cluster.run(START + FAILING, place(ps), tmp_path)

        told = json.loads(answer(run))
        here, folder = socket.gethostname(), place(ps)
        assert "SnapshotNotFound: snapshot" in told["read"]
        assert f"is in {folder}/snapshots/" in told["read"]
        assert f"which machine {here} does not see" in told["read"]
        assert f"StorageError: {folder}, the folder of the store, cannot be seen from {here}" in told["write"]
        assert told["job"] != 0
        assert f"which machine {here} does not see" in run.stderr
        assert ps.queue("orders").stats().last_seq == before.last_seq
        assert not list((tmp_path / "archive" / LOG_FOLDER).glob("*.json"))
