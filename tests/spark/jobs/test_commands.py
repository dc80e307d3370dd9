"""`penstock pipeline audit` and `report`: of stores and archives, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock import ManualClock, NewMessage
from penstock.backends.embedded import housekeeper, keys
from penstock.message import parse_id
from penstock.spark.jobs.archive import archive
from penstock.spark.jobs.auditing.run import Wanted, run
from penstock.spark.store import Store
from tests.check.stores import Raw, flipped
from tests.cli.calling import Cli
from tests.spark.jobs.histories import Told, opened

EVENTS, MESSAGES = 31, 8


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """A store in the folder that is worked in; closed, but its ids are known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    # Commands open it by the system's clock, long after all this: it stays as it is, however slow they are.
    monkeypatch.setattr(housekeeper, "SWEEP_EVERY_S", 3600.0)
    clock = ManualClock()
    with opened(tmp_path / "penstock-data", clock) as ps:
        told = Told(ps, clock)
        told.tell()
    return told


@pytest.fixture
def cli(tmp_path: Path, told: Told, spark: SparkSession) -> Cli:
    """In this process, so that it uses the session that runs."""
    return Cli(tmp_path)


@pytest.fixture
def plant(cli: Cli, told: Told) -> Callable[[str, str, Callable[[bytes], bytes | None]], None]:
    """Change or delete the row of a message behind the store's back."""

    def plant(space: str, name: str, change: Callable[[bytes], bytes | None]) -> None:
        with opened(cli.store, told.clock) as ps:
            raw, raw_id = Raw(ps), parse_id(told.ids[name])
            of_queue = keys.u32(raw.number("q"))
            key, value = raw.row(space, lambda key, _: key.startswith(of_queue) and key.endswith(raw_id))
            after = change(value)
            raw.delete(space, key) if after is None else raw.put(space, key, after)

    return plant


def _written(folder: str) -> list[dict[str, object]]:
    """What an audit has put into a folder."""
    files = Path(folder).glob("*.json")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_an_audit_of_a_sound_store(cli: Cli, spark: SparkSession) -> None:
    assert (
        cli("pipeline", "audit").out == f"3 queues, {EVENTS} events, {MESSAGES} messages: everything fits\n"
    )
    archive(spark, Store(str(cli.store)), "archive")
    told = cli("pipeline", "audit", "--archive", "archive", "--json").object
    assert told == {
        "ok": True, "queues": 3, "partly": 0, "events": EVENTS, "messages": 0, "counts": {}, "findings": [],
    }  # fmt: skip


def test_an_audit_says_what_it_is_at(cli: Cli, told: Told, spark: SparkSession) -> None:
    archive(spark, Store(str(cli.store)), "archive")
    seen: list[tuple[str, int, int]] = []
    run(spark, Wanted(archive="archive"), lambda *step: seen.append(step))
    assert seen == [("reading events", 0, 2), ("following messages", 1, 2)]


def test_an_audit_names_what_was_lost(cli: Cli, told: Told, plant: Callable[..., None]) -> None:
    plant("messages", "waits", lambda value: None)
    plant("ready", "waits", lambda value: None)
    answer = cli("pipeline", "audit", "--json", "--out", "findings", code=4).object
    lost = [one for one in answer["findings"] if one["kind"] == "lost"]
    assert [one["message_id"] for one in lost] == [told.ids["waits"]]
    written = _written("findings")
    assert len(written) == sum(answer["counts"].values())
    shown = cli("pipeline", "audit", "--queue", "q", "--limit", "1", code=4)
    assert "1 lost" in shown.lines[-1]


def test_an_audit_against_an_archive_finds_a_payload_that_was_changed(
    cli: Cli, told: Told, plant: Callable[..., None], spark: SparkSession
) -> None:
    archive(spark, Store(str(cli.store)), "archive")
    plant("messages", "waits", lambda value: flipped(value, -1))
    told.clock.advance(1)
    with opened(cli.store, told.clock) as ps:
        ps.queue("q").enqueue(b"since the archive")
    found = cli("pipeline", "audit", "--archive", "archive", "--against-store", code=4)
    assert told.ids["waits"] in found.out
    assert found.lines[-1] == f"3 queues, {EVENTS + 1} events, {MESSAGES + 1} messages: 1 findings: 1 payload"
    assert "still" not in found.out


def test_an_audit_against_a_store_leaves_out_queues_that_it_does_not_have_any_more(
    cli: Cli, told: Told, spark: SparkSession
) -> None:
    archive(spark, Store(str(cli.store)), "archive")
    with opened(cli.store, told.clock) as ps:
        ps.delete_queue("q")
        ps.create_queue("later").enqueue(b"never archived")
    for _ in range(2):
        found = cli("pipeline", "audit", "--archive", "archive", "--against-store", "--json").object
        assert (found["ok"], found["queues"]) == (True, 3), found["findings"]
        archive(spark, Store(str(cli.store)), "archive")
    with opened(cli.store, told.clock) as ps:
        ps.delete_queue("other")
        ps.create_queue("other").enqueue_many([NewMessage(b"x") for _ in range(EVENTS)])
    refused = cli("pipeline", "audit", "--archive", "archive", "--against-store", code=2)
    assert "queue 'other' was made anew since it was archived" in refused.err


def test_an_audit_counts_what_cannot_be_read(cli: Cli, told: Told, plant: Callable[..., None]) -> None:
    plant("messages", "waits", lambda value: value[:9])
    found = cli("pipeline", "audit", "--json", "--out", "findings", code=4).object
    written = _written("findings")
    for findings in (found["findings"], written):
        damaged = [one["message_id"] for one in findings if one["kind"] == "damaged"]
        assert damaged == [told.ids["waits"]]
    assert len(written) == sum(found["counts"].values())


def test_a_report_is_a_page_and_tables(cli: Cli, spark: SparkSession) -> None:
    said = cli("pipeline", "report")
    assert said.out == "3 queues, 30 events: penstock-report.html, penstock-report.json\n"
    assert "Fairness keys are not known" not in Path("penstock-report.html").read_text()
    archive(spark, Store(str(cli.store)), "archive")
    answer = cli(
        "pipeline", "report", "out/day.html", "--archive", "archive", "--queue", "q", "--json"
    ).object
    assert (answer["page"], answer["tables"], answer["queues"]) == ("out/day.html", "out/day.json", 1)
    tables = json.loads(Path("out/day.json").read_text())
    assert tables["deliveries"] == sum(one["delivered"] for one in tables["timeline"]) == 7
    assert list(Path("out").iterdir()) == [Path("out/day.html"), Path("out/day.json")]


def test_a_report_of_nothing_is_a_page_that_says_so(cli: Cli) -> None:
    cli("pipeline", "report", "none.html", "--since", "2030-01-01", code=1)
    assert "There is nothing to report" in Path("none.html").read_text()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["audit", "--queue", "nope"], 1, "queue 'nope' does not exist"),
        (["audit", "--store", "elsewhere"], 3, "elsewhere; create it: penstock init"),
        (["audit", "--archive", "elsewhere"], 2, "there is no archive in"),
        (["audit", "--against-store"], 2, "needs --archive"),
        (["audit", "--out", "penstock-data"], 2, "exists already"),
        (["report", "tables.json"], 2, "the tables go beside it"),
        (["report", "--since", "2030-01-01", "--until", "2029-01-01"], 2, "no time between them"),
        (["report", "penstock-data/CURRENT/page.html"], 3, "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], code: int, said: str, cli: Cli) -> None:
    answer = cli("pipeline", *words, code=code)
    assert said in answer.err
    assert "Traceback" not in answer.err
