"""The page on SQS: its examples run, and its tables are those of the code."""

from __future__ import annotations

import re

import msgspec

from penstock.server.access import PERMISSIONS
from penstock.server.sqs.actions import ACTIONS
from penstock.server_config import SqsSettings
from tests.docs.pages import DOCS, blocks, table
from tests.server.sqs.serving import serving

PAGE = DOCS / "sqs.md"


def test_the_examples_run_in_order() -> None:
    names: dict[str, object] = {}
    with serving() as server:
        for block in blocks(PAGE, "python"):
            assert "127.0.0.1:9324" in block.text or names
            exec(block.text.replace("http://127.0.0.1:9324", server.url), names)
        assert {queue.name for queue in server.ps.queues()} == {"orders", "orders-dead"}
        assert server.ps.queue("orders").length() == 0


def test_the_table_of_permissions_is_that_of_the_actions() -> None:
    found: dict[str, set[str]] = {}
    for row in table(PAGE, "Who may do what"):
        allowed = {name for name in PERMISSIONS if re.search(rf"\b{name}\b", row["permissions"])}
        found |= {action: allowed | {"admin"} for action in re.findall(r"\w+", row["action"])}
    assert found == {name: {*action.permissions, "admin"} for name, action in ACTIONS.items()}
    assert f"all {len(ACTIONS)} actions" in PAGE.read_text()


def test_the_table_of_settings_has_their_defaults() -> None:
    rows = {row["key"]: row["default"] for row in table(PAGE, "Where queues are")}
    assert {key.strip("`"): value.strip("`") for key, value in rows.items()} == msgspec.to_builtins(
        SqsSettings()
    )
