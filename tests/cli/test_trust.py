"""check, reindex and quarantine by command, on stores with planted faults."""

from __future__ import annotations

import penstock
from tests.check.store_faults import FAULTS
from tests.check.stores import Raw, fill
from tests.cli.calling import Cli


def broken(cli: Cli, *names: str) -> Cli:
    """A store with something of everything, in which these invariants do not hold."""
    with penstock.open(cli.store) as ps:
        fill(ps)
        for name in names:
            FAULTS[name].plant(Raw(ps))
    return cli


def test_a_sound_store_is_0(cli: Cli) -> None:
    cli("enqueue", "emails", "hello")
    assert cli("check").out == "1 queues, 1 messages, 2 events: everything fits\n"
    found = cli("check", "--json").object
    assert (found["ok"], found["messages"], found["problems"]) == (True, 1, [])
    assert cli("check", "--repair").out.endswith("everything fits\n")
    assert cli("reindex").out.endswith("everything fits\n")
    assert cli("reindex", "--json").object["ok"] is True


def test_check_says_what_and_where_and_a_repair_what_it_did(bare: Cli) -> None:
    broken(bare, "a ready row is missing")
    answer = bare("check", code=4)
    header, first, *_, last = answer.lines
    assert header.split() == ["HOW", "BAD", "QUEUE", "WHERE", "WHAT"]
    assert first.split()[:2] == ["index", "jobs"]
    assert last.endswith("; to mend what can be mended: penstock check --repair")
    assert bare("check", "--json", code=4).object["counts"] == {"ready_missing": 1}
    mended = bare("check", "--repair")
    assert "WHAT WAS DONE" in mended.lines[0]
    assert mended.lines[-1].endswith("1 problems, 0 left")
    assert bare("check").out.endswith("everything fits\n")


def test_what_cannot_be_mended_is_in_quarantine(bare: Cli) -> None:
    broken(bare, "a body is cut short")
    found = bare("check", "--repair", "--json").object
    assert found["remaining"] == 0
    assert all(problem["action"] for problem in found["problems"])
    items = bare("quarantine", "list", "--json").objects
    assert items
    header, *rows = bare("quarantine", "list").lines
    assert header.split()[:2] == ["ID", "AT"]
    assert len(rows) == len(items)
    raw = bare("quarantine", "get", items[0]["id"], "--raw").raw
    assert len(raw) == items[0]["size_bytes"]
    assert items[0]["id"] in bare("quarantine", "get", items[0]["id"]).out
    listing = bare("quarantine", "list", "--json").raw
    assert "add --yes" in bare("quarantine", "drop", "-", input=listing, code=2).err
    dropped = bare("quarantine", "drop", "-", "--yes", "--json", input=listing).object
    assert dropped == {"dropped": len(items)}
    assert bare("quarantine", "list", code=1).err == "nothing is in quarantine\n"


def test_quarantine_of_what_is_not_there_is_1(cli: Cli) -> None:
    assert cli("quarantine", "list", "--json", code=1).raw == b""
    some = "01a1e314-7a5c-72f1-8a4d-3868221002be"
    assert cli("quarantine", "get", some, code=1).err.count("\n") == 1
    assert cli("quarantine", "drop", some, "-y", code=1).out == "0 dropped\n"


def test_reindex_mends_every_index(bare: Cli) -> None:
    broken(bare, "a ready row is missing", "a message has two ready rows")
    bare("check", code=4)
    bare("reindex", code=None)
    assert bare("check").out.endswith("everything fits\n")


def test_repair_through_another_process_shows_the_same(bare: Cli) -> None:
    broken(bare, "a ready row is missing")
    with penstock.open(bare.store):
        assert bare.process("check", code=4).lines[-1].endswith("penstock check --repair")
        assert bare.process("check", "--repair").lines[-1].endswith("1 problems, 0 left")
