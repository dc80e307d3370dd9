"""docs/tables.md has every column of every table, with its type and meaning, and every part of a request."""

from __future__ import annotations

import pytest

from penstock import BulkRequest
from penstock.backends.tables import requests
from penstock.tables import TABLES, TableName, arrow_schema
from tests.docs.pages import DOCS, section, table

PAGE = DOCS / "tables.md"


@pytest.mark.parametrize("name", [name for name in TABLES if name != "dead"])
def test_the_columns_are_those_of_the_code(name: TableName) -> None:
    shown = [(row["column"], row["type"], row["what"]) for row in table(PAGE, f"`{name}`")]
    assert shown == [
        (column.name, column.type + ", *null*" * column.nullable, column.meaning) for column in TABLES[name]
    ]


def test_dead_has_the_columns_of_messages() -> None:
    assert TABLES["dead"] == TABLES["messages"]
    assert "those of `messages`" in section(PAGE, "`dead`")


def test_every_part_of_a_request_is_listed_with_the_tables_that_it_goes_with() -> None:
    shown = {name: row["goes with"] for row in table(PAGE, "Requests") for name in row[_PART].split(", ")}
    assert set(shown) == set(BulkRequest.__struct_fields__)
    for name, tables in requests.FILTERS.items():
        if shown[name].startswith("all but"):
            assert {*tables, shown[name].removeprefix("all but ")} == set(TABLES)
        else:
            assert shown[name].split(", ") == list(tables)


_PART = "part of BulkRequest"


@pytest.mark.parametrize("name", TABLES)
def test_schemas_have_no_type_that_spark_would_have_to_convert(name: TableName) -> None:
    for field in arrow_schema(name):
        assert "large" not in str(field.type)
        assert "dictionary" not in str(field.type)
        assert "uint" not in str(field.type)
