"""The life of a message by hand: enqueue, lease, finish, look, move, redrive, purge."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from penstock import NewMessage
from tests.cli.calling import Cli


def leased(cli: Cli, payload: str = "hello", **_: object) -> str:
    """The receipt of a message that was just enqueued and leased."""
    cli("enqueue", "emails", payload)
    return str(cli("lease", "emails", "--json").object["receipt"])


def test_enqueue_answers_with_the_id(cli: Cli) -> None:
    message_id = cli("enqueue", "emails", "hello").out.strip()
    found = cli("get", "emails", message_id, "--json").object
    assert (found["id"], found["payload"], found["state"]) == (message_id, "hello", "ready")
    assert cli("enqueue", "emails", "x", "--json").object["duplicate"] is False


def test_enqueue_takes_every_field(cli: Cli) -> None:
    own = str(uuid.uuid4())
    cli(
        "enqueue", "emails", "hello", "-H", "type=greeting", "--header", "lang=en=x", "--key", "tenant",
        "--weight", "3", "--priority", "9", "--delay", "1h", "--ttl", "2h", "--dedup-id", "once", "--id", own,
    )  # fmt: skip
    found = cli("get", "emails", own, "--json").object
    assert found["headers"] == {"type": "greeting", "lang": "en=x"}
    assert (found["fairness_key"], found["weight"], found["priority"]) == ("tenant", 3, 9)
    assert found["visible_at_ns"] == found["enqueued_at_ns"] + 3600 * 10**9
    assert found["expires_at_ns"] == found["enqueued_at_ns"] + 7200 * 10**9
    assert found["dedup_id"] == "once"
    again = cli("enqueue", "emails", "other", "--dedup-id", "once", "--json").object
    assert again == {"id": own, "duplicate": True}
    assert "there already" in cli("enqueue", "emails", "other", "--dedup-id", "once").out


def test_lease_shows_the_receipt_that_ack_takes(cli: Cli) -> None:
    cli("enqueue", "emails", "hello")
    shown = cli("lease", "emails", "--lease", "1m", "--consumer", "me").out
    fields = dict(line.split(maxsplit=1) for line in shown.splitlines() if "  " in line)
    assert (fields["payload"], fields["consumer"], fields["attempts"]) == ("hello", "me", "1")
    assert cli("ack", "emails", fields["receipt"]).lines[1].split() == [fields["receipt"], "ok"]
    assert cli("stats", "emails", "--json").object["acked_total"] == 1


def test_lease_of_nothing_is_1(cli: Cli) -> None:
    answer = cli("lease", "emails", code=1)
    assert (answer.out, answer.err) == ("", "nothing to lease in queue 'emails'\n")
    assert cli("lease", "emails", "--wait", "10ms", "--json", code=1).raw == b""


def test_lease_takes_several_as_one_object_a_line(cli: Cli) -> None:
    cli("enqueue", "emails", "--lines", input="a\nb\nc\n")
    found = cli("lease", "emails", "-n", "2", "--json").objects
    assert [item["payload"] for item in found] == ["a", "b"]
    assert all(item["lease_expires_at"].endswith("Z") for item in found)


def test_receipts_are_read_from_the_output_of_lease(cli: Cli) -> None:
    cli("enqueue", "emails", "--lines", input="a\nb\nc\n")
    leases = cli("lease", "emails", "-n", "2", "--json").raw
    answer = cli("ack", "emails", "-", "--json", input=leases)
    assert [item["ok"] for item in answer.objects] == [True, True]
    receipt = cli("lease", "emails", "--json").object["receipt"]
    assert cli("ack", "emails", "-", input=f"{receipt}\n\n").lines[1].endswith("ok")


def test_a_stale_receipt_is_1_and_the_others_are_done(cli: Cli) -> None:
    receipt = leased(cli)
    answer = cli("ack", "emails", receipt, receipt, "--json", code=1)
    assert [item["ok"] for item in answer.objects] == [True, False]
    assert "lease again" in answer.objects[1]["error"]
    assert "refused" in cli("ack", "emails", "nonsense", code=1).out


def test_no_receipts_at_all_is_1(cli: Cli) -> None:
    assert cli("ack", "emails", "-", input="", code=1).err == "no receipts were given\n"


@pytest.mark.parametrize("line", ['{"id": "x"}', "{not json", '{"receipt": 5}'])
def test_lines_without_a_receipt_are_refused_with_their_number(line: str, cli: Cli) -> None:
    assert "line 2 of standard input" in cli("ack", "emails", "-", input=f"abc\n{line}\n", code=2).err


def test_nack_brings_it_back_and_reject_kills(cli: Cli) -> None:
    receipt = leased(cli)
    assert cli("nack", "emails", receipt, "--delay", "1h", "--reason", "disk full").code == 0
    (delayed,) = cli("list", "emails", "--state", "delayed", "--json").objects
    assert delayed["attempts"] == 1
    receipt = leased(cli, "bad")
    cli("reject", "emails", receipt, "--reason", "no such address")
    (dead,) = cli("list", "emails", "-s", "dead", "--json").objects
    assert (dead["state"], dead["reason"]) == ("dead", "no such address")
    assert "no such address" in cli("list", "emails", "-s", "dead").out


def test_extend_counts_from_now(cli: Cli) -> None:
    receipt = leased(cli)
    before = cli("list", "emails", "-s", "leased", "--json").object["lease_expires_at_ns"]
    cli("extend", "emails", receipt, "--lease", "10m")
    assert cli("list", "emails", "-s", "leased", "--json").object["lease_expires_at_ns"] > before


def test_peek_and_list_show_a_table(cli: Cli) -> None:
    cli("enqueue", "emails", "hello", "--key", "tenant-1")
    for words in (["peek", "emails"], ["list", "emails"]):
        header, line = cli(*words).lines
        assert header.split()[0] == "ID"
        assert line.split()[-1] == "hello"
        assert "tenant-1" in line
    assert cli("peek", "emails", "--offset", "1", code=1).err == "nothing is ready in queue 'emails'\n"
    assert cli("list", "emails", "--state", "dead", code=1).err == "nothing is dead in queue 'emails'\n"


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "done", "dead"])
def test_every_state_has_a_table(state: str, cli: Cli) -> None:
    def fill(ps):  # type: ignore[no-untyped-def]
        ps.update_queue("emails", retention_s=600)
        queue = ps.queue("emails")
        for _ in range(3):
            queue.enqueue(b"x")
        ack, reject, _ = queue.lease(3, consumer="me")
        queue.ack([ack.receipt])
        queue.reject([reject.receipt], reason="why")
        queue.enqueue(b"x")
        queue.enqueue(b"x", delay_s=60)

    cli.through_api(fill)
    header, line = cli("list", "emails", "--state", state).lines
    assert header.split()[0] == "ID"
    assert line.rstrip().endswith("x")


def test_list_says_how_to_go_on_and_all_lists_everything(cli: Cli) -> None:
    cli("enqueue", "emails", "--lines", input="".join(f"{n}\n" for n in range(1200)))
    first = cli("list", "emails", "-n", "3", "--json")
    assert [item["payload"] for item in first.objects] == ["0", "1", "2"]
    position = first.err.split("--after ")[1].split(",")[0]
    rest = cli("list", "emails", "-n", "2", "--after", position, "--json").objects
    assert [item["payload"] for item in rest] == ["3", "4"]
    assert len(cli("list", "emails", "--all", "--json").objects) == 1200
    assert len(cli("list", "emails", "--all").lines) == 1201
    assert cli("list", "emails", "-n", "1200").err == ""


def test_list_takes_one_fairness_key(cli: Cli) -> None:
    cli("enqueue", "emails", "a", "--key", "one")
    cli("enqueue", "emails", "b", "--key", "two")
    assert cli("list", "emails", "--key", "two", "--json").object["payload"] == "b"


def test_get_of_what_is_not_there_is_1_and_shows_the_others(cli: Cli) -> None:
    there = cli("enqueue", "emails", "hello").out.strip()
    gone = str(uuid.uuid4())
    answer = cli("get", "emails", gone, there, "--json", code=1)
    assert answer.object["id"] == there
    assert f"message {gone} is not in queue 'emails'" in answer.err
    answer = cli("get", "emails", "nonsense", there, "--json", code=1)
    assert answer.object["id"] == there
    assert "'nonsense' is not a UUID in its usual lower-case form, as lists show them" in answer.err


def test_raw_writes_the_bytes_and_nothing_else(cli: Cli, tmp_path: Path) -> None:
    content = bytes(range(256)) + b"\xff\x00\r\n"
    (tmp_path / "blob").write_bytes(content)
    cli("enqueue", "emails", "--file", "blob")
    assert cli("peek", "emails", "--raw").raw == content
    assert cli("list", "emails", "--raw").raw == content
    (message,) = cli("list", "emails", "--json").objects
    assert cli("get", "emails", message["id"], "--raw").raw == content
    answer = cli("lease", "emails", "--raw")
    assert answer.raw == content
    assert cli("ack", "emails", answer.err.strip()).code == 0


def test_due_shows_what_comes_next(cli: Cli) -> None:
    cli("enqueue", "emails", "later", "--delay", "1h")
    header, line = cli("due").lines
    assert header.split() == ["AT", "IN", "WHAT", "QUEUE", "MESSAGE"]
    assert line.split()[-3:-1] == ["delay", "emails"]
    (item,) = cli("due", "--json", "--since", "now").objects
    assert item["what"] == "delay"
    assert 3590 < item["in_s"] <= 3600
    assert cli("due", "--after", item["position"], code=1).err == "nothing falls due\n"
    assert cli("due", "--until", "2001-01-01", code=1).out == ""


def test_move_answers_for_each_id(cli: Cli) -> None:
    cli("queues", "create", "other")
    cli("enqueue", "emails", "--lines", input="a\nb\n")
    gone = str(uuid.uuid4())
    listing = cli("list", "emails", "--json").raw + json.dumps({"id": gone}).encode()
    answer = cli("move", "emails", "other", "-", "--json", input=listing, code=1)
    assert [item["ok"] for item in answer.objects] == [True, True, False]
    assert cli("stats", "other", "--json").object["ready"] == 2
    cli("enqueue", "emails", "c")
    cli("move", "emails", "other", cli("peek", "emails", "--json").object["id"])
    assert cli("move", "emails", "other", "-", input="", code=1).err == "no ids were given\n"


def test_redrive_sends_the_dead_back(cli: Cli) -> None:
    def kill(ps):  # type: ignore[no-untyped-def]
        queue = ps.queue("emails")
        queue.enqueue_many([NewMessage(b"x") for _ in range(5)])
        queue.reject([delivery.receipt for delivery in queue.lease(5)])
        ps.create_queue("other")

    cli.through_api(kill)
    assert cli("redrive", "emails", "-n", "2").out == "2 redriven, queue 'emails'\n"
    assert cli("redrive", "emails", "--to", "other", "-n", "1", "--json").object == {
        "queue": "emails",
        "redriven": 1,
    }
    assert cli("redrive", "emails", "--all", "--json").object["redriven"] == 2
    assert cli("redrive", "emails", code=1).out == "0 redriven, queue 'emails'\n"


def test_purge_asks_and_is_refused_without_a_terminal(cli: Cli) -> None:
    cli("enqueue", "emails", "--lines", input="a\nb\n")
    assert "add --yes" in cli("purge", "emails", code=2).err
    assert cli("stats", "emails", "--json").object["ready"] == 2
    assert cli("purge", "emails", "--yes").out == "2 purged, queue 'emails'\n"
    assert cli("purge", "emails", "--yes", "--json", code=1).object == {"queue": "emails", "purged": 0}


def test_purge_of_one_state_leaves_the_others(cli: Cli) -> None:
    leased(cli)
    cli("enqueue", "emails", "b")
    assert cli("purge", "emails", "--state", "leased", "-y", "--json").object["purged"] == 1
    assert cli("stats", "emails", "--json").object["ready"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["enqueue", "gone", "x"], 1, "queue 'gone' does not exist"),
        (["enqueue", "emails", "x", "--priority", "10"], 2, "priority"),
        (["enqueue", "emails", "x", "--priority", "high"], 2, "'high' is not a whole number"),
        (["enqueue", "emails", "x", "--id", "7"], 2, "not a UUID"),
        (["enqueue", "emails", "x", "--header", "oops"], 2, "has no '='; accepted: --header NAME=VALUE"),
        (["enqueue", "emails", "x", "-H", "a=1", "-H", "a=2"], 2, "header 'a' is given twice"),
        (["enqueue", "emails", "x", "--throttle", ""], 2, "throttle key"),
        (["enqueue", "emails", "x", "--ttl", "-5"], 2, "not a duration"),
        (["lease", "emails", "--lease", "0"], 2, "lease_s"),
        (["list", "emails", "--state", "asleep"], 2, "asleep"),
        (["list", "emails", "--after", "zz"], 2, "not a position"),
        (["due", "--since", "yesterday"], 2, "'yesterday' is not a time; accepted: 2026-11-16"),
        (["move", "emails", "gone", str(uuid.UUID(int=1))], 1, "queue 'gone' does not exist"),
        (["redrive", "emails", "--to", "gone"], 1, "queue 'gone' does not exist"),
        (["lease", "emails", "--raw", "--json"], 2, "--raw and --json exclude each other"),
        (["--json", "peek", "emails", "--raw"], 2, "--raw and --json exclude each other"),
        (["peek", "emails", "-n", "x"], 2, "'x' is not a whole number"),
        (["events", "emails", "--after", "-3"], 2, "-3 is not in the range"),
        (["cursors", "commit", "emails", "archive", "-3"], 2, "no number below 0 is accepted"),
        (["events", "emails", "--follow", "--every", "0"], 2, "'0' is no interval; accepted: 10ms to 1d"),
        (["stats", "--watch", "--every", "9" * 30 + "d"], 2, "is too long; accepted: up to 3650d"),
        (["throttles", "set", "api", "--rate", "often"], 2, "'often' is not a rate; accepted: 5 (a second)"),
        (["throttles", "set", "api", "--rate", "5/y"], 2, "'5/y' is not a rate"),
        (["throttles", "set", "api", "--rate", "99999999"], 2, "rate_per_s"),
        (["throttles", "set", "api", "--rate", "5", "--burst", "-1"], 2, "burst"),
        (["throttles", "get", "api"], 1, "throttle 'api' is not set; set it: penstock throttles set"),
        (["throttles", "list"], 1, "no throttles"),
    ],
)
def test_errors_are_one_line(arguments: list[str], code: int, said: str, cli: Cli) -> None:
    answer = cli(*arguments, code=code)
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert answer.out == ""


def test_what_falls_due_within_the_hour_is_asked_for_by_a_duration(cli: Cli) -> None:
    cli("enqueue", "emails", "soon", "--delay", "10m")
    cli("enqueue", "emails", "late", "--delay", "2h")
    (found,) = cli("due", "--until", "1h", "--json").objects
    assert 0 < found["in_s"] <= 600
    (found,) = cli("due", "--since", "1h", "--json").objects
    assert found["in_s"] > 3600


def test_what_was_never_a_receipt_is_shown_by_its_beginning(cli: Cli) -> None:
    answer = cli("ack", "emails", "-", input="z" * 5000, code=1)
    assert max(len(line) for line in answer.lines) < 400
    assert f"{'z' * 59}…  refused" in answer.out


def test_throttles_are_set_shown_and_deleted(cli: Cli) -> None:
    assert cli("throttles", "set", "api", "--rate", "90/m", "--burst", "3").out == "throttle 'api' set\n"
    assert cli("throttles", "set", "slow", "--rate", "0.5", "--json").object == {
        "key": "slow",
        "rate_per_s": 0.5,
        "burst": 1,
        "tokens": 1,
    }
    assert cli("throttles", "get", "api", "--json").object["rate_per_s"] == 1.5
    assert [row["key"] for row in cli("throttles", "list", "--json").objects] == ["api", "slow"]
    assert "1.5" in cli("throttles", "list").out
    cli("enqueue", "emails", "--lines", "--throttle", "slow", input="a\nb\n")
    assert len(cli("lease", "emails", "-n", "5", "--json").objects) == 1
    assert cli("throttles", "delete", "api").out == "throttle 'api' deleted\n"
    assert cli("throttles", "delete", "api", "--json", code=1).object == {"key": "api", "deleted": False}
