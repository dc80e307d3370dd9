"""docs/rest.md: its requests are sent to a server, and answered as the page shows."""

from __future__ import annotations

import http.client
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, get_args

import pytest

import penstock
from penstock.server.rest.errors import MEANING
from penstock.server.rest.shapes import MOST, Few
from tests.docs.pages import DOCS, section, table
from tests.server.rest.api import Api, api

PAGE = DOCS / "rest.md"
_BLOCK = re.compile(r"^```(sh|json)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What differs from run to run.
ANYTHING = "…"


@pytest.fixture
def server() -> Iterator[Api]:
    with penstock.open("memory:") as ps, api(ps) as served:
        yield served


def ask(port: int, command: str, receipts: list[str]) -> tuple[int, Any]:
    """What curl would do, with the receipt that was given last."""
    words, verb, headers, body, path = shlex.split(command)[1:], "GET", {}, None, ""
    while words:
        word = words.pop(0)
        if word == "-X":
            verb = words.pop(0)
        elif word == "-H":
            name, value = words.pop(0).split(": ")
            headers[name] = value
        elif word == "-d":
            body = words.pop(0).replace('"RECEIPT"', json.dumps(receipts[-1]) if receipts else "")
        else:
            path = word.removeprefix("http://127.0.0.1:9324")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(verb, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def is_like(shown: Any, told: Any) -> bool:
    if shown == ANYTHING:
        return isinstance(told, str)
    if isinstance(shown, dict) and isinstance(told, dict):
        return shown.keys() == told.keys() and all(is_like(shown[name], told[name]) for name in shown)
    if isinstance(shown, list) and isinstance(told, list):
        return len(shown) == len(told) and all(map(is_like, shown, told))
    return bool(shown == told)


def test_the_requests_of_the_page_are_answered_as_it_shows(server: Api) -> None:
    told: Any = None
    receipts: list[str] = []
    statuses = []
    for kind, text in _BLOCK.findall(PAGE.read_text()):
        if kind == "json":
            assert is_like(json.loads(text), told), (text, told)
            continue
        for command in text.replace("\\\n", " ").splitlines():
            status, told = ask(server.port, command, receipts)
            statuses.append(status)
            receipts += [one["receipt"] for one in told.get("deliveries", ())]
    assert statuses == [201, *[200] * 7, 404]
    assert len(receipts) == 1


def test_the_page_has_the_limits_and_statuses_of_the_code() -> None:
    rules = " ".join(section(PAGE, "Rules").split())
    assert f"{MOST:,} items in a request" in rules
    assert f"{get_args(Few)[1].max_length} values of one parameter" in rules
    assert f"Up to {MOST:,} rows" in section(PAGE, "Arrow")
    shown = {int(code) for row in table(PAGE, "Errors") for code in row["status"].split(", ")}
    assert shown == set(MEANING)
