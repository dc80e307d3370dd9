"""One Spark session for all tests that need one, in one process, however many run the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from pyspark.sql import SparkSession

import penstock.spark
from penstock import Penstock
from tests.spark import quick
from tests.spark.stores import KEY, KEY_VARIABLE, filled

#: A JVM each would be a core and a gigabyte for every process that runs tests.
_JVM = {"spark", "cluster", "driver"}
#: PySpark leaves the sockets that it sends encrypted data to its Java by to the garbage collector.
_SOCKETS = "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"


@pytest.hookimpl(tryfirst=True)  # Before those are looked for that belong together.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _JVM & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.filterwarnings(_SOCKETS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Four attempts at a task, as a cluster makes them."""
    conf = {
        **quick.JAVA,
        **quick.ROWS,
        "spark.driver.memory": "1g",
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
    }
    with mock.patch.dict(os.environ, {KEY_VARIABLE: KEY}):  # Workers have the variables that their Java had.
        session = penstock.spark.session("penstock-tests", "local[2,4]", **conf)
    yield session
    session.stop()


@pytest.fixture
def driver() -> None:
    """Marks tests that start a Java of their own."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Penstock]:
    """An open store with something in every table; its folder is `store.info().default.path`."""
    with filled(tmp_path / "disk" / "store") as ps:
        yield ps
