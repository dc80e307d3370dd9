"""The demonstration runs, with real processes that are killed, accounts for every message, and says so."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TaskID

import penstock
from penstock import demo
from penstock.demo.play import prove
from penstock.demo.proof import Report
from penstock.demo.shops import QUEUE


def test_the_demo_accounts_for_every_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "demo"
    assert demo.main(["--messages", "600", "--no-spark", "--path", str(path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^  enqueued +600 ", shown, re.MULTILINE)
    assert re.search(r"^  missing +0 ", shown, re.MULTILINE)
    assert re.search(r"^  check +ok ", shown, re.MULTILINE)
    assert str(path) in shown
    assert max(len(line) for line in shown.replace(str(path), "").splitlines()) <= 120
    with penstock.open(path / "store") as ps:
        assert ps.check().ok
        assert ps.queue(QUEUE).length() == 0


def test_the_demo_gives_its_numbers_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--messages", "50", "--no-spark", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert (numbers["ok"], numbers["enqueued"], numbers["missing"]) == (True, 50, 0)
    assert {"late_acks", "rate_per_s"} <= set(numbers)


def test_the_demo_shows_how_far_its_check_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal that is not there: only what the bars are told."""
    with penstock.open("memory:") as ps:
        ps.create_queue(QUEUE).enqueue_many([penstock.NewMessage(b"") for _ in range(50)])
        told: list[tuple[float, float | None]] = []
        update = Progress.update

        def noting(self: Progress, task: TaskID, **named: Any) -> None:
            update(self, task, **named)
            if self.tasks[task].description == "check":
                told.append((self.tasks[task].completed, self.tasks[task].total))

        monkeypatch.setattr(Progress, "update", noting)
        prove(ps, Console(file=io.StringIO()), Report())
    assert told
    assert told[-1][0] > 0
    assert told[-1][0] == told[-1][1]


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
