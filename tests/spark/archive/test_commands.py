"""The jobs by command: what they say, their exit codes, and what they refuse before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import NewMessage
from tests.cli.calling import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """In a folder whose store has the queue `orders`, with messages and a dead one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    cli = Cli(tmp_path)
    with penstock.open(f"rocksdb:{cli.store}?durability=os") as ps:
        orders = ps.create_queue("orders")
        orders.cursor("archive", required=True)
        orders.enqueue_many([NewMessage(b"%d" % n, headers={"type": "order"}) for n in range(10)])
        first, second = orders.lease(max_messages=2)
        orders.ack([first.receipt])
        orders.reject([second.receipt], reason="no")
    return cli


def test_a_queue_goes_through_all_of_them(spark: SparkSession, cli: Cli, tmp_path: Path) -> None:
    told = cli("pipeline", "archive", "archive")
    assert told.out.startswith("14 events, 10 bodies, 1 entries: 1 commits, ")
    assert cli("pipeline", "archive", "archive", "--json", code=1).object["commits"] == 0

    done = cli("pipeline", "rebuild", "archive", "rebuilt", "--json").object
    assert (done["restored"], done["bodies_missing"]) == ({"ready": 8, "dead": 1}, 0)
    assert cli("pipeline", "rebuild", "archive", "rebuilt").out == (
        "rebuilt was rebuilt from the same before; nothing was done\n"
    )
    early = cli("pipeline", "rebuild", "archive", "early", "--queue", "orders", "--until-seq", "5")
    assert early.out == "1 queues: 5 ready; 0 were there; 0 leases ended\n"

    same = cli("pipeline", "verify", str(cli.store), "rebuilt")
    assert same.out == "9 messages: no difference\n"
    found = cli("pipeline", "verify", "archive", "early", "--json", code=4).object
    assert (found["same"], found["missing_right"], found["differing"]) == (False, 5, 1)
    listed = cli("pipeline", "verify", "archive", "early", code=4)
    assert listed.lines[-1] == "9 and 5 messages: 5 only left, 1 only right, 1 differ"

    copied = cli("pipeline", "copy", "copy", "--verify")
    assert copied.lines == [
        "1 queues: 8 ready, 1 dead; 0 were there; 0 leases ended",
        "9 messages: no difference",
    ]

    args = ("pipeline", "replay", "again", "orders", "--archive", "archive", "--kind", "acked")
    assert cli(*args, "--header", "type=order").out == "1 messages enqueued into orders\n"
    assert cli(*args).out == "replay 'again' was done before: 1 messages; nothing was done now\n"
    assert cli("pipeline", "replay", "none", "orders", "--id", "x", "--json", code=1).object["enqueued"] == 0

    with penstock.open(cli.store) as ps:
        ps.sweep()  # What is archived need not be kept.
    unknown = cli(
        "pipeline", "replay", "live", "orders", "--kind", "acked", "--header", "type=no", code=1
    ).err
    assert "1 messages with such an event have no body any more" in unknown
    assert "nobody knows, for those are gone with it" in unknown

    cli("pipeline", "archive", "archive")
    assert cli("pipeline", "compact", "archive").out.endswith("; 0 deleted\n")
    assert cli("pipeline", "compact", "archive", "--json", "--keep", "0").object["deleted"] > 0


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("compact", "none"), 2, "there is no archive in none"),
        (("rebuild", "none", "new"), 2, "there is no archive in none"),
        (("rebuild", "none", "new", "--until-seq", "3"), 2, "name it with --queue"),
        (("replay", "r", "nowhere"), 1, "queue 'nowhere' does not exist"),
        (("copy", "new", "--queue", "nowhere"), 1, "queue 'nowhere' does not exist"),
        (("copy", "memory:"), 1, "each of them in a process of its own, needs the capability 'persistence'"),
        (("archive", "s3a://bucket/x"), 2, "created at most once"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_said(
    cli: Cli, words: tuple[str, ...], code: int, expected: str, spark: SparkSession
) -> None:
    assert expected in cli("pipeline", *words, code=code).err
