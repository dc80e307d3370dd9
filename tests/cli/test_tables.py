"""On a terminal of any width: numbers, ids, kinds and reasons are whole, or their column is not there."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest
from rich.console import Console

from penstock import Penstock
from penstock.cli.check import _PROBLEMS
from penstock.cli.columns import EVENTS, MESSAGES, STATS
from penstock.cli.consume import _OUTCOMES
from penstock.cli.output import Output, StreamedTable
from penstock.cli.rows import Row, row
from penstock.cli.tables import Column, rich_table

ID = "01a1e3b6-0903-7da4-aa4a-1fd58031f0aa"
RECEIPT = "01a1e3681f9e73c4b715540a06367e860000000100000000000003f1"
STALE = "receipt no longer holds its message (released, taken again or finished); lease again"


@pytest.fixture(params=[40, 60, 80, 100, 120, 200])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def drawn(rows: Sequence[Row], columns: Sequence[Column], screen: int) -> str:
    """What a terminal shows; nothing of it is wider than the screen."""
    out = io.StringIO()
    Console(file=out, width=screen, markup=False, emoji=False, highlight=False).print(
        rich_table(rows, columns)
    )
    shown = out.getvalue()
    assert max(len(line) for line in shown.splitlines()) <= screen
    return shown


def numbers(queue: str, memory: Penstock) -> Row:
    memory.create_queue(queue)
    found = {"queue": queue, **row(memory.queue(queue).stats())}
    return {**found, "ready": 2_023, "delayed": 1_204_418, "leased": 17, "oldest_ready_age_s": 200.0}


def test_depths_are_never_cut(screen: int, memory: Penstock) -> None:
    shown = drawn([numbers("emails" * 20, memory), numbers("jobs", memory)], STATS, screen)
    assert all(shown.count(number) == 2 for number in ("2,023", "1,204,418", " 17"))
    assert ("total in" in shown) == (screen >= 100 or screen == 40)


def test_events_keep_their_numbers_kinds_ids_and_reasons(screen: int) -> None:
    event = {
        "seq": 1_234_567, "at_ns": 1_763_280_000_123_456_789, "kind": "enqueued", "message_id": ID,
        "attempt": 3, "consumer": "worker-1", "reason": "label cannot be printed", "extra": "", "due_ns": 0,
    }  # fmt: skip
    words = re.sub(r"\s+", " ", drawn([event] * 2, EVENTS, screen))
    for whole in ("1234567", "enqueued", "worker-1"):
        assert words.count(whole) == 2
    assert words.count(ID) == 2
    assert {"label", "cannot", "be", "printed"} <= set(words.split())


def test_ids_that_are_listed_can_be_given_to_get(screen: int, memory: Penstock) -> None:
    memory.create_queue("q").enqueue(b"x" * 500, fairness_key="tenant" * 20)
    (message,) = memory.queue("q").peek()
    shown = drawn([row(message)], MESSAGES["ready"], screen)
    assert message.id in shown
    assert screen <= 40 or "xxx…" in shown


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (_OUTCOMES, {"receipt": RECEIPT, "ok": False, "error": STALE}),
        (_PROBLEMS, {"severity": "damage", "queue": "jobs", "where": f"message {ID}", "what": STALE}),
    ],
    ids=["ack", "check"],
)
def test_what_says_what_to_do_is_there_to_its_end(
    columns: tuple[Column, ...], found: Row, screen: int
) -> None:
    words = drawn([found] * 2, columns, screen).split()
    assert [words.count(word) for word in ("holds", "(released,", "lease", "again")] == [2, 2, 2, 4]
    assert screen < 60 or words.count(found.get("receipt", ID)) == 2


def test_a_table_whose_columns_change_on_the_way_gets_a_new_heading(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out = Output(as_json=False)
    out.is_terminal = True
    table = StreamedTable(out, (Column("id", lambda r: r["id"]), Column("extra", lambda r: "x" * 10, drop=1)))
    for name in ("short", "brief", "a-name-of-twenty-one-", "n" * 31, "last"):
        table.add({"id": name})
        table.flush()
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == ["id     extra", "short  xxxxxxxxxx", "brief  xxxxxxxxxx"]
    assert lines[3:5] == ["id", "a-name-of-twenty-one-"]
    # Where the id alone is wider than the screen, each row is a list of its fields.
    assert lines[5:8] == [f"id     {'n' * 31}", "extra  xxxxxxxxxx", ""]
    assert lines[8:] == ["id     last", "extra  xxxxxxxxxx", ""]
