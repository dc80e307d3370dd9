"""The demonstration runs, with real processes that are killed, accounts for every message, and says so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import penstock
from penstock import demo
from penstock.demo.proof import Report
from penstock.demo.shops import QUEUE


def test_the_demo_accounts_for_every_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "store"
    assert demo.main(["--messages", "600", "--path", str(path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^  enqueued +600 ", shown, re.MULTILINE)
    assert re.search(r"^  missing +0 ", shown, re.MULTILINE)
    assert re.search(r"^  check +ok ", shown, re.MULTILINE)
    assert str(path) in shown
    assert max(len(line) for line in shown.replace(str(path), "").splitlines()) <= 120
    with penstock.open(path) as ps:
        assert ps.check().ok
        assert ps.queue(QUEUE).length() == 0


def test_the_demo_gives_its_numbers_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--messages", "50", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert (numbers["ok"], numbers["enqueued"], numbers["missing"]) == (True, 50, 0)


def test_the_demo_fails_if_a_message_is_missing() -> None:
    report = Report(shops={"a": "bakery", "b": "bakery", "c": "bakery"})
    report.acked["a"] = 1
    report.dead.add("b")
    assert (report.missing(), report.twice()) == (1, 0)


def test_the_demo_notices_a_message_that_was_finished_twice() -> None:
    report = Report(shops={"a": "bakery", "b": "bakery"})
    report.acked.update({"a": 2, "b": 1})
    report.dead.add("b")
    assert (report.missing(), report.twice()) == (0, 2)


@pytest.mark.parametrize("arguments", [["--messages", "0"], ["--path", "."]])
def test_the_demo_refuses_what_it_cannot_use(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        demo.main(arguments)
    assert stopped.value.code == 2
