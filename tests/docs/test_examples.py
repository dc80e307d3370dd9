"""Every Python example of the documentation runs, page by page, in the order in which it is read."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from penstock import Penstock, config
from tests.docs.pages import DOCS, PAGES, ROOT, blocks

#: Its stores are in places that only a reader has: they are read, not opened.
CONFIGURATION = DOCS / "configuration.md"
#: Their examples need a Java, which one process has for all tests: they run in tests/spark.
SPARK = (DOCS / "spark.md", DOCS / "archive.md", DOCS / "audit-and-report.md")
#: Its examples need a server, which test_sqs_page starts.
SQS = DOCS / "sqs.md"
RUN = [page for page in PAGES if page not in (CONFIGURATION, SQS, *SPARK) and blocks(page, "python")]


def run(page: Path, namespace: dict[str, Any]) -> None:
    """The page's blocks as one program; a failure names the page and its line."""
    for block in blocks(page, "python"):
        source = "\n" * block.line + block.text
        exec(compile(source, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "example"}
    try:
        with mock.patch.dict(os.environ):  # Examples may set some variables.
            run(page, namespace)
    finally:
        for value in namespace.values():
            if isinstance(value, Penstock):
                value.close()


def test_readme_and_guide_have_examples() -> None:
    assert {page.name for page in RUN} >= {"README.md", "guide.md"}


def test_the_readme_example_runs_again_on_the_store_that_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        run(ROOT / "README.md", {"__name__": "example"})


def test_the_readme_example_fits_on_a_screen() -> None:
    (example,) = blocks(ROOT / "README.md", "python")
    assert len(example.text.splitlines()) <= 15


def test_the_configuration_page_names_stores_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDIS_PASSWORD", "secret")
    (tmp_path / "penstock.yaml").write_text(blocks(CONFIGURATION, "yaml")[0].text)
    run(CONFIGURATION, {"penstock": SimpleNamespace(open=config.resolve)})
