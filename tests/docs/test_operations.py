"""docs/operations.md lists every kind of problem that `check` can report."""

from __future__ import annotations

from penstock.backends.embedded.checking.findings import SEVERITIES
from tests.docs.pages import DOCS, table


def test_every_kind_of_problem_is_listed_with_its_severity() -> None:
    shown = {
        kind: row["severity"]
        for row in table(DOCS / "operations.md", "Check")
        for kind in row["kind"].split(", ")
    }
    assert shown == SEVERITIES
