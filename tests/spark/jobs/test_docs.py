"""docs/audit-and-report.md: its tables are those of the code."""

from __future__ import annotations

import re
import shlex

from penstock.cli.main import load
from penstock.spark.jobs.auditing.findings import KINDS
from penstock.spark.jobs.reporting.readings import READINGS
from tests.docs.pages import DOCS, blocks, table

PAGE = DOCS / "audit-and-report.md"


def test_the_kinds_of_findings_are_those_of_the_code() -> None:
    told = {row["kind"]: row["meaning"] for row in table(PAGE, "Audit")}
    assert told == KINDS


def test_the_sections_are_those_of_the_page() -> None:
    assert [row["section"] for row in table(PAGE, "Report")] == [one.title for one in READINGS.values()]


def test_the_commands_take_what_the_page_says() -> None:
    """What they answer is tested elsewhere: that takes a day's history."""
    text = PAGE.read_text()
    commands = [
        line[2:] for block in blocks(PAGE, "console") for line in block.text.splitlines() if line[0] == "$"
    ]
    commands += re.findall(r"`(penstock pipeline [^`]*)`", text)
    assert len(commands) >= 5
    for command in commands:
        _, _, name, *words = shlex.split(command)
        taken = {option for param in load("pipeline").commands[name].params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= taken, command


def test_the_picture_is_there_and_small() -> None:
    (picture,) = re.findall(r"!\[[^]]*\]\(([^)]*)\)", PAGE.read_text())
    assert (DOCS / picture).stat().st_size < 300 * 1024
