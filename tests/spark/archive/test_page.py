"""docs/archive.md: its tables are those of the code."""

from __future__ import annotations

import msgspec

from penstock.cli.main import load
from penstock.spark.archive.log import Commit, Position
from penstock.spark.jobs.rebuild import Rebuilt
from tests.docs.pages import DOCS, table

PAGE = DOCS / "archive.md"


def test_the_commands_are_those_that_there_are() -> None:
    told = {row["command"].split()[0] for row in table(PAGE, "Archive, rebuild, replay, copy")}
    assert told == set(load("pipeline").commands) - {"audit", "report"}


def test_the_counts_of_a_rebuild_are_those_that_it_gives() -> None:
    told = {row["count"] for row in table(PAGE, "Rebuild")}
    given = {field.name for field in msgspec.structs.fields(Rebuilt)}
    assert told == given - {"queues", "restored", "existing", "again", "missing_ids", "newer_ids"}


def test_the_parts_of_a_commit_are_those_that_are_stored() -> None:
    told = [row["part of a commit"] for row in table(PAGE, "The log, byte by byte")]
    parts = {name for text in told for name in text.replace(" ", "").split(",")}
    assert parts == {field.name for field in msgspec.structs.fields(Commit)}


def test_the_parts_of_a_position_are_those_that_are_stored() -> None:
    told = [row["part of a position"] for row in table(PAGE, "The log, byte by byte", 1)]
    parts = {name for text in told for name in text.replace(" ", "").split(",")}
    assert parts == {field.name for field in msgspec.structs.fields(Position)}
