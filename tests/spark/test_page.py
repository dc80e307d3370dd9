"""docs/spark.md: its options are those of the code; and the examples of all pages on Spark run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import Penstock
from penstock.spark.options import OPTIONS
from penstock.tables import TABLES
from tests.docs.pages import DOCS, table
from tests.docs.test_examples import run

PAGE = DOCS / "spark.md"
USES = {"both": "both", "batch": "read", "stream": "readStream"}


@pytest.mark.parametrize("page", ["spark.md", "archive.md", "audit-and-report.md"])
def test_the_examples_run_from_top_to_bottom(
    page: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "example"}
    try:
        run(DOCS / page, namespace)
    finally:
        for value in namespace.values():
            if isinstance(value, Penstock):
                value.close()


def test_the_options_are_those_that_are_accepted() -> None:
    told = [(row["option"], row["goes with"], row["meaning"]) for row in table(PAGE, "Options")]

    assert told == [(one.name, USES[one.use], one.meaning.replace("`", "")) for one in OPTIONS]


def test_the_tables_are_those_that_there_are() -> None:
    assert {row["table"] for row in table(PAGE, "Tables")} == set(TABLES)
