"""The page on bulk writes has the columns and options of the code."""

from __future__ import annotations

import re

from penstock.backends.tables.incoming import ACCEPTED
from penstock.spark.write_options import WRITE_OPTIONS
from tests.docs.pages import DOCS, table

PAGE = DOCS / "bulk.md"


def test_the_page_has_every_column_with_its_type() -> None:
    rows = {row["column"].strip("`"): row["type"] for row in table(PAGE, "Columns")}
    assert rows.keys() == ACCEPTED.keys()
    for name, accepted in ACCEPTED.items():
        assert rows[name].startswith(accepted.what)


def test_the_page_has_every_option() -> None:
    found = re.findall(r"^\| `(\w+)` \| (both|batch) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert found == [tuple(option) for option in WRITE_OPTIONS]
