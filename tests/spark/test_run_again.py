"""Bad rows of jobs that are run again, with other rows or after a crash: those of the run that counted."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import penstock
from penstock import InvalidConfig, Penstock, StorageError
from penstock.backends.embedded.loads import Loads
from penstock.spark import set_aside, write
from penstock.spark.write import Part, PenstockWriter
from penstock.spark.write_options import parsed
from penstock.testing.harness import drain

SCHEMA = StructType([StructField("payload", StringType()), StructField("fairness_key", StringType())])
#: Between `reveal` and the commit, in its middle, and right behind it.
Cut = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def ps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Penstock]:
    monkeypatch.setattr(write, "_context", lambda: SimpleNamespace(partitionId=lambda: 0))
    with penstock.open(tmp_path / "store") as ps:
        ps.create_queue("q")
        yield ps


def run(folder: Path, good: list[str], bad: list[str], version: int = 1) -> None:
    """A job as Spark runs it: bad rows are known by their fairness key."""
    given = {"url": str(folder / "store"), "queue": "q", "rejectsPath": str(folder / "rejects")}
    options = parsed({**given, "txnAppId": "nightly", "txnVersion": str(version)}, "batch")
    one = PenstockWriter(options, SCHEMA, overwrite=False)
    payloads: list[str | None] = [*good, *[None] * len(bad)]
    batch = pa.record_batch(
        {"payload": pa.array(payloads, pa.string()), "fairness_key": pa.array([*good, *bad], pa.string())}
    )
    part = one.write(iter([batch]))
    assert isinstance(part, Part)
    try:
        one.commit([part])
    except Exception:
        one.abort([part])
        raise


def rejects(folder: Path) -> list[str]:
    files = list((folder / "rejects").iterdir())
    assert all(path.suffix == ".parquet" for path in files)
    return sorted(
        str(key) for path in files for key in pa.parquet.read_table(path)["fairness_key"].to_pylist()
    )


def test_the_same_job_with_its_rows_mended_enqueues_nothing_and_keeps_what_it_had_set_aside(
    ps: Penstock, tmp_path: Path
) -> None:
    run(tmp_path, ["a"], ["b"])
    run(tmp_path, ["a", "b"], [])
    assert rejects(tmp_path) == ["b"]
    run(tmp_path, ["a"], ["b", "c"])
    assert rejects(tmp_path) == ["b"]
    assert drain(ps.queue("q")) == [b"a"]
    run(tmp_path, ["b"], ["c"], version=2)
    assert rejects(tmp_path) == ["b", "c"]


def test_a_job_that_was_superseded_leaves_nothing_and_takes_nothing_away(
    ps: Penstock, tmp_path: Path
) -> None:
    run(tmp_path, ["a"], ["b"], version=1)
    run(tmp_path, ["c"], ["d"], version=3)
    for version in (1, 2):
        run(tmp_path, ["e"], ["f"], version)
        assert rejects(tmp_path) == ["b", "d"]


def before(patch: pytest.MonkeyPatch) -> None:
    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    patch.setattr(Penstock, "commit_write", killed)


def amid(patch: pytest.MonkeyPatch) -> None:
    def no_room(*args: object) -> None:
        raise StorageError("no room")

    patch.setattr(Loads, "_step", no_room)


def after(patch: pytest.MonkeyPatch) -> None:
    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    patch.setattr(set_aside, "settle", killed)


@pytest.mark.parametrize(("cut", "counts"), [(before, "second"), (amid, "first"), (after, "first")])
@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_wherever_a_run_is_cut_off_the_next_leaves_what_the_one_had_set_aside_that_counted(
    ps: Penstock, tmp_path: Path, cut: Cut, counts: str, earlier: int
) -> None:
    def cut_off(cut: Cut, name: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            cut(patch)
            with pytest.raises((KeyboardInterrupt, StorageError)):
                run(tmp_path, [f"from {name}"], [f"bad of {name}"])

    for _ in range(earlier):
        cut_off(before, "earlier")
    cut_off(cut, "first")
    assert "bad of first" in rejects(tmp_path)
    for _ in range(2):
        run(tmp_path, ["from second"], ["bad of second"])
        assert rejects(tmp_path) == [f"bad of {counts}"]
    assert drain(ps.queue("q")) == [f"from {counts}".encode()]


def test_bad_rows_that_stayed_on_another_machine_fail_the_job_by_name(ps: Penstock, tmp_path: Path) -> None:
    def gone(patch: pytest.MonkeyPatch) -> None:
        close = set_aside.SetAside.close

        def elsewhere(self: set_aside.SetAside) -> set_aside.Hidden | None:
            found = close(self)
            assert found is not None
            Path(found.path).unlink()
            return found

        patch.setattr(set_aside.SetAside, "close", elsewhere)

    with pytest.MonkeyPatch.context() as patch:
        gone(patch)
        with pytest.raises(InvalidConfig, match=f"{socket.gethostname()} has put into {tmp_path}/rejects"):
            run(tmp_path, ["a"], ["b"])
    assert ps.queue("q").length() == 0
    run(tmp_path, ["a"], ["b"])
    assert rejects(tmp_path) == ["b"]
