"""Events, cursors, worlds and state by command."""

from __future__ import annotations

import pytest

from tests.cli.calling import Cli


def test_events_in_order_filtered_and_limited(cli: Cli) -> None:
    cli("enqueue", "emails", "--lines", input="a\nb\n")
    receipt = cli("lease", "emails", "--json").object["receipt"]
    cli("ack", "emails", receipt)
    found = cli("events", "emails", "--json").objects
    assert [(item["seq"], item["kind"]) for item in found] == [
        (1, "enqueued"), (2, "enqueued"), (3, "leased"), (4, "acked"),
    ]  # fmt: skip
    assert all(item["at"].endswith("Z") and item["at_ns"] > 0 for item in found)
    header, *lines = cli("events", "emails").lines
    assert header.split()[:4] == ["SEQ", "AT", "KIND", "MESSAGE"]
    assert len(lines) == 4

    def seqs(*arguments: str) -> list[int]:
        return [item["seq"] for item in cli("events", "emails", "--json", *arguments).objects]

    assert seqs("--kind", "leased", "--kind", "acked") == [3, 4]
    assert seqs("--after", "1", "-n", "2") == [2, 3]
    assert seqs("--tail", "1") == [4]
    assert seqs("--message", found[2]["message_id"]) == [1, 3, 4]
    assert seqs("--since", "1h", "--until", "now") == [1, 2, 3, 4]
    assert cli("events", "emails", "--until", "1h", code=1).err == "no such events in queue 'emails'\n"
    assert "'slept'" in cli("events", "emails", "--kind", "slept", code=2).err


def test_long_histories_come_page_by_page(cli: Cli) -> None:
    cli("enqueue", "emails", "--lines", input="x\n" * 2500)
    assert [item["seq"] for item in cli("events", "emails", "--json").objects] == list(range(1, 2501))
    assert len(cli("events", "emails", "--json", "-n", "1001").objects) == 1001


def test_cursors_are_opened_read_committed_and_dropped(cli: Cli) -> None:
    cli("enqueue", "emails", "--lines", input="a\nb\nc\n")
    opened = cli("cursors", "open", "emails", "archive", "--required", "--json").object
    assert opened == {"queue": "emails", "name": "archive", "position": 0, "required": True, "unread": 3}
    assert len(cli("cursors", "read", "emails", "archive", "-n", "2", "--json", "--commit").objects) == 2
    assert cli("cursors", "list", "emails").lines[1].split() == ["archive", "2", "1", "yes"]
    assert cli("cursors", "read", "emails", "archive", "--json").object["seq"] == 3
    assert cli("cursors", "commit", "emails", "archive", "3", "--json").object["unread"] == 0
    assert cli("cursors", "read", "emails", "archive", code=1).err == "cursor 'archive' has read everything\n"
    assert "position  3" in cli("cursors", "open", "emails", "archive").out
    assert cli("cursors", "drop", "emails", "archive").out == "cursor 'archive' of queue 'emails' dropped\n"
    assert cli("cursors", "list", "emails", code=1).err == "queue 'emails' has no cursors\n"


@pytest.mark.parametrize("words", [["read"], ["commit", "1"], ["drop"]])
def test_a_mistyped_cursor_is_not_made(words: list[str], cli: Cli) -> None:
    verb, *rest = words
    answer = cli("cursors", verb, "emails", "archiv", *rest, code=1)
    assert "has no cursor 'archiv'" in answer.err
    assert answer.err.endswith("create it: penstock cursors open emails archiv\n")
    assert cli("cursors", "list", "emails", "--json", code=1).raw == b""


def test_a_cursor_that_history_has_left_behind_says_how_to_go_on(cli: Cli) -> None:
    cli("queues", "update", "emails", "--journal-retention", "1ms")
    cli("cursors", "open", "emails", "slow")
    cli("enqueue", "emails", "a")
    cli.through_api(lambda ps: [ps.sweep() for _ in range(5)])
    answer = cli("cursors", "read", "emails", "slow", code=1)
    assert "accept the gap: penstock cursors commit QUEUE NAME 1" in answer.err


def test_worlds_are_appended_to_scanned_and_configured(cli: Cli) -> None:
    entry_id = cli(
        "journal",
        "append",
        "audit",
        "login",
        "ada",
        "--label",
        "web",
        "--flag",
        "admin",
        "--vector",
        "0.5,-1",
    ).out.strip()
    lines = '{"kind":"export","body":"r.csv","labels":["web"]}\n\n{"kind":"blob","body_base64":"/w=="}\n'
    assert len(cli("journal", "append", "audit", "--jsonl", "--json", input=lines).objects) == 2
    found = cli("journal", "scan", "audit", "--json").objects
    assert [(item["seq"], item["kind"]) for item in found] == [(1, "login"), (2, "export"), (3, "blob")]
    assert (found[0]["id"], found[0]["vector"]) == (entry_id, [0.5, -1.0])
    assert (found[1]["body"], found[2]["body_base64"]) == ("r.csv", "/w==")
    assert [item["seq"] for item in cli("journal", "scan", "audit", "-l", "web", "--json").objects] == [1, 2]
    assert cli("journal", "scan", "audit", "--flag", "admin", "--kind", "login", "--json").object["seq"] == 1
    header, *rows = cli("journal", "scan", "audit", "--after", "1", "-n", "1").lines
    assert header.split()[:4] == ["SEQ", "AT", "ID", "KIND"]
    assert rows[0].split()[-1] == "r.csv"
    assert "base64:/w==" in cli("journal", "scan", "audit", "--kind", "blob").out
    assert cli("journal", "get", entry_id, "--json").object["kind"] == "login"
    assert "ada" in cli("journal", "get", entry_id).out
    assert cli("journal", "stats", "audit", "--json").object["entries"] == 3
    assert "entries    3" in cli("journal", "stats", "audit").out
    configured = cli(
        "journal", "configure", "audit", "--retention", "30d", "--max-bytes", "1MiB", "--json"
    ).object
    assert configured == {"world": "audit", "retention_s": 30 * 86_400.0, "max_bytes": 2**20}
    assert cli("journal", "configure", "audit", "--max-bytes", "none").out == "world 'audit' configured\n"


def test_what_a_world_does_not_have_is_1(cli: Cli) -> None:
    assert cli("journal", "scan", "none", code=1).err == "no such entries in world 'none'\n"
    missing = cli("journal", "get", "01a1e314-7a5c-72f1-8a4d-3868221002be", code=1)
    assert "never appended, or removed since" in missing.err


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (["w"], "", "give a KIND, or --jsonl"),
        (["w", "k", "--jsonl"], "", "give a KIND, or --jsonl"),
        (["w", "k", "--vector", "a,b"], "", "--vector takes numbers"),
        (["_penstock", "k"], "", "Penstock's own"),
        (["w", "--jsonl"], '{"kind":"a"}\n{"knd":"b"}\n', "line 2 of standard input"),
        (["w", "--jsonl"], '{"kind":"a","body":"x","body_base64":"eA=="}\n', "only one of them"),
    ],
)
def test_entries_that_cannot_be_used_are_refused(
    arguments: list[str], given: str, said: str, cli: Cli
) -> None:
    answer = cli("journal", "append", *arguments, input=given, code=2)
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_nothing_appended_is_1(cli: Cli) -> None:
    assert (
        cli("journal", "append", "w", "--jsonl", input="", code=1).err
        == "nothing was read, nothing appended\n"
    )


def test_state_keeps_bytes(cli: Cli) -> None:
    assert cli("state", "put", "last", "2026-11-16").out == "'last': 10 bytes stored\n"
    assert cli("state", "get", "last", "--json").object == {"key": "last", "value": "2026-11-16"}
    cli("state", "put", "blob", input=b"\xff\x00")
    assert cli("state", "get", "blob", "--raw").raw == b"\xff\x00"
    assert cli("state", "get", "blob", "--json").object == {"key": "blob", "value_base64": "/wA="}
    assert "base64:/wA=" in cli("state", "get", "blob").out
    assert cli("state", "delete", "blob", "--json").object == {"key": "blob", "deleted": True}
    assert cli("state", "delete", "blob", code=1).out == "nothing is stored under 'blob'\n"
    assert cli("state", "get", "blob", code=1).err.startswith("nothing is stored under 'blob'")


def test_a_world_is_not_configured_to_nothing_by_mistake(cli: Cli) -> None:
    cli("journal", "append", "audit", "login")
    cli("journal", "configure", "audit", "--retention", "1d")
    assert "name --retention or --max-bytes" in cli("journal", "configure", "audit", code=2).err
    answer = cli("journal", "configure", "audit", "--retention", "none", "--json").object
    assert (answer["retention_s"], answer["max_bytes"]) == (None, None)
