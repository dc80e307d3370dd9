"""What enqueue reads: lines, JSON lines, CSV, whole files. Bad rows are named, the rest is stored."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import feed, main
from tests.cli.calling import Cli, command


def stored(cli: Cli) -> list[dict[str, Any]]:
    return cli("list", "emails", "--all", "--json", code=None).objects


def payloads(cli: Cli) -> list[str]:
    return [message["payload"] for message in stored(cli)]


def test_standard_input_is_one_payload(cli: Cli) -> None:
    cli("enqueue", "emails", input=b"a\nb\xff")
    assert base64.b64decode(stored(cli)[0]["payload_base64"]) == b"a\nb\xff"
    cli("enqueue", "emails", "-", input=b"x")
    assert len(stored(cli)) == 2


def test_an_argument_keeps_its_bytes(cli: Cli) -> None:
    cli("enqueue", "emails", "h\u00e9llo")
    cli("enqueue", "emails", "\udcff")  # What Python makes of the byte ff in an argument.
    assert {message.get("payload_base64", message.get("payload")) for message in stored(cli)} == {
        "h\u00e9llo",
        "/w==",
    }


def test_lines_are_payloads_and_empty_ones_are_passed_over(cli: Cli) -> None:
    shown = cli("enqueue", "emails", "--lines", "--key", "k", input=b"one\r\n\ntwo\n  three").out
    assert shown.startswith("3 accepted, 0 duplicate, 0 refused in ")
    assert payloads(cli) == ["one", "two", "  three"]
    assert {message["fairness_key"] for message in stored(cli)} == {"k"}


def test_files_are_payloads(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"first\n")
    (tmp_path / "b").write_bytes(b"")
    answer = cli("enqueue", "emails", "--file", "a", "-f", "b", "--json").object
    assert answer == {"accepted": 2, "duplicates": 0, "refused": 0}
    assert payloads(cli) == ["first\n", ""]


def test_formats_read_files_too(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("3")
    cli("enqueue", "emails", "--lines", "--file", "a", "--file", "-", "-f", "b", input="0\n")
    assert payloads(cli) == ["1", "2", "0", "3"]


def test_batches_are_as_large_as_asked(cli: Cli) -> None:
    cli("enqueue", "emails", "--lines", "--batch", "7", input="x\n" * 20)
    assert len(stored(cli)) == 20


def test_large_payloads_end_a_batch(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.cli import intake
    from penstock.queue import Queue

    sizes: list[int] = []
    whole = Queue.enqueue_many
    monkeypatch.setattr(intake, "BATCH_BYTES", 100)

    def noting(self: Queue, batch: Any) -> Any:
        sizes.append(len(batch))
        return whole(self, batch)

    monkeypatch.setattr(Queue, "enqueue_many", noting)
    cli("enqueue", "emails", "--lines", input=f"{'x' * 60}\n" * 5)
    assert sizes == [2, 2, 1]


def test_ids_are_written_for_whoever_wants_them(cli: Cli) -> None:
    answer = cli("enqueue", "emails", "--lines", "--ids", input="a\nb\n")
    assert answer.lines == [message["id"] for message in stored(cli)]
    assert "2 accepted" in answer.err
    first, second, summary = cli("enqueue", "emails", "--lines", "--ids", "--json", input="a\n\nb\n").objects
    assert (first["line"], second["line"], second["source"]) == (1, 3, "standard input")
    assert summary["accepted"] == 2


# -- JSON lines


def test_jsonl_takes_every_field_and_options_for_the_rest(cli: Cli) -> None:
    rows = [
        {"payload": "text", "headers": {"b": "2"}, "fairness_key": "own", "priority": 7, "weight": 2},
        {"payload_base64": "/wA=", "dedup_id": "once", "delay_s": 1.5, "ttl_s": 60},
        {"payload": "again", "dedup_id": "once"},
    ]
    lines = "\n".join(json.dumps(row) for row in rows)
    answer = cli("enqueue", "emails", "--jsonl", "-H", "a=1", "--key", "shared", "--json", input=lines).object
    assert answer == {"accepted": 2, "duplicates": 1, "refused": 0}
    first = stored(cli)[0]
    assert (first["headers"], first["fairness_key"], first["priority"]) == ({"a": "1", "b": "2"}, "own", 7)
    (second,) = cli("list", "emails", "-s", "delayed", "--json").objects
    assert (second["payload_base64"], second["fairness_key"], second["headers"]) == (
        "/wA=",
        "shared",
        {"a": "1"},
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "not a JSON object: Input data was truncated"),
        (b"[1]", "Expected `object`"),
        (b"hello", "not a JSON object: JSON is malformed"),
        (b"{}", "needs payload or payload_base64, and only one of them"),
        (b'{"payload":"x","payload_base64":"eA=="}', "only one of them"),
        (b'{"payload_base64":"?"}', "payload_base64 is not base64"),
        (b'{"payload":5}', "$.payload"),
        (b'{"payload":"secret","state":"ready"}', "unknown field `state`"),
        (b'{"payload":"secret","priority":"high"}', "$.priority"),
        (b'{"payload":"secret","priority":10}', "priority"),
        (b'{"payload":"secret","id":"7"}', "not a UUID"),
        (b'{"payload":"secret","delay_s":-1}', "delay_s"),
        (b'{"payload":"secret","headers":{"a":1}}', "$.headers"),
        (b'{"payload":"secret","headers":{"penstock-origin":"secret"}}', "penstock-"),
        (b'{"payload":"secret","throttle_keys":[""]}', "throttle key"),
        (b'{"payload":"\xff"}', "UTF-8"),
    ],
)
def test_a_bad_line_is_named_and_its_neighbours_are_stored(line: bytes, reason: str, cli: Cli) -> None:
    content = b'{"payload":"before"}\n' + line + b'\n{"payload":"after"}\n'
    answer = cli("enqueue", "emails", "--jsonl", input=content, code=1)
    assert answer.err.startswith("standard input, line 2: ")
    assert reason in answer.err
    assert "secret" not in answer.err
    assert answer.err.count("\n") == 1
    assert "2 accepted, 0 duplicate, 1 refused" in answer.out
    assert payloads(cli) == ["before", "after"]


def test_rejects_go_to_a_file_with_what_was_read(cli: Cli, tmp_path: Path) -> None:
    content = b'{"payload":"good"}\n{"payload":5}\n\xff\n'
    answer = cli("enqueue", "emails", "--jsonl", "--rejects", "bad.jsonl", input=content, code=1)
    assert answer.err == ""
    first, second = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert (first["source"], first["line"], first["row"]) == ("standard input", 2, '{"payload":5}\n')
    assert "$.payload" in first["reason"]
    assert base64.b64decode(second["row_base64"]) == b"\xff\n"


def test_rejects_are_added_to_those_of_an_earlier_run(cli: Cli, tmp_path: Path) -> None:
    for number in (1, 2):
        cli("enqueue", "emails", "--jsonl", "--rejects", "bad", input=f'{{"payload":{number}}}\n', code=1)
    kept = [json.loads(line)["row"] for line in (tmp_path / "bad").read_text().splitlines()]
    assert kept == ['{"payload":1}\n', '{"payload":2}\n']


def test_rejects_never_go_to_a_file_that_is_read(cli: Cli, tmp_path: Path) -> None:
    content = '{"payload":"a"}\nbad\n'
    (tmp_path / "a").write_text(content)
    (tmp_path / "b").symlink_to("a")
    answer = cli("enqueue", "emails", "--jsonl", "--file", "a", "--rejects", "b", code=2)
    assert "b is being read; name another file for --rejects" in answer.err
    with open(tmp_path / "a", "rb") as given:
        piped = subprocess.run(
            command("enqueue", "emails", "--jsonl", "--rejects", "a"),
            cwd=tmp_path,
            stdin=given,
            capture_output=True,
            check=False,
        )
    assert (piped.returncode, b"is being read" in piped.stderr) == (2, True)
    assert (tmp_path / "a").read_text() == content
    assert stored(cli) == []


def test_what_list_writes_enqueue_can_read_after_choosing_fields(cli: Cli) -> None:
    cli("enqueue", "emails", "--file", "-", input=bytes(range(256)))
    chosen = ("payload", "payload_base64", "headers", "fairness_key", "priority")
    line = json.dumps({name: value for name, value in stored(cli)[0].items() if name in chosen})
    cli("enqueue", "emails", "--jsonl", input=line)
    first, second = cli("peek", "emails", "--json").objects
    assert first["payload_base64"] == second["payload_base64"]


# -- CSV


def test_csv_columns_are_fields_and_headers(cli: Cli) -> None:
    content = (
        "\ufeffpayload,priority,delay_s,type,fairness_key,throttle_keys\r\n"
        'hello,7,,greeting,"a,b",\r\n'
        '"two\nlines",,0,,,\r\n'
        "\r\n"
    )
    assert cli("enqueue", "emails", "--csv", input=content.encode()).out.startswith("2 accepted")
    first, second = sorted(stored(cli), key=lambda message: -int(message["priority"]))
    assert (first["payload"], first["headers"], first["fairness_key"]) == (
        "hello",
        {"type": "greeting"},
        "a,b",
    )
    assert (second["payload"], second["headers"], second["priority"]) == ("two\nlines", {}, 4)


def test_csv_takes_its_payload_from_any_column(cli: Cli) -> None:
    cli("enqueue", "emails", "--csv", "--payload-column", "body", input="body,type\nhello,x\n")
    assert stored(cli)[0]["payload"] == "hello"
    cli("enqueue", "emails", "--csv", input="payload_base64,type\n/w==,x\n")
    assert {message.get("payload_base64") for message in stored(cli)} == {None, "/w=="}


def test_csv_payloads_keep_their_bytes(cli: Cli) -> None:
    cli("enqueue", "emails", "--csv", input=b"payload\n\xff\xfe\n")
    assert base64.b64decode(stored(cli)[0]["payload_base64"]) == b"\xff\xfe"


def test_bad_csv_rows_are_named_by_their_first_line(cli: Cli) -> None:
    content = b'payload,priority,type\n"a\nb",1,t\nc\nd,high,t\ne,1,t,more\nf,1,\xff\n"g"x,1,t\nh,1,t\n'
    answer = cli("enqueue", "emails", "--csv", input=content, code=1)
    said = answer.err.splitlines()
    assert [line.split(":")[0] for line in said] == [f"standard input, line {n}" for n in (4, 5, 6, 8, 7)]
    assert "has 1 cells, but the heading has 3" in said[0]
    assert "$.priority" in said[1]
    assert sorted(payloads(cli)) == ["a\nb", "h"]


def test_a_quote_that_is_never_closed_is_one_bad_row(cli: Cli) -> None:
    answer = cli("enqueue", "emails", "--csv", input='payload\ngood\n"open\nmore\n', code=1)
    assert answer.err.startswith("standard input, line 3: unexpected end of data")
    assert payloads(cli) == ["good"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no column 'payload', only nothing"),
        ("a,b\n1,2\n", "has no column 'payload', only a, b; name the one that holds the payload"),
        ("payload,payload\n", "is empty or there twice"),
        ("payload,\n", "is empty or there twice"),
        ('"payload\n', "the heading is not CSV"),
    ],
)
def test_a_heading_that_cannot_be_used_stores_nothing(content: str, said: str, cli: Cli) -> None:
    assert said in cli("enqueue", "emails", "--csv", input=content, code=2).err


# -- limits and mistakes


@pytest.mark.parametrize("form", ["--lines", "--jsonl", "--csv"])
def test_a_line_that_is_too_long_is_passed_over(form: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MAX_LINE_BYTES", 64)
    rows = {"--lines": "{}", "--jsonl": '{{"payload":"{}"}}', "--csv": "{}"}
    lines = [rows[form].format(text) for text in ("a", "x" * 500, "b")]
    heading = ["payload"] if form == "--csv" else []
    answer = cli("enqueue", "emails", form, input="\n".join([*heading, *lines]) + "\n", code=1)
    assert f"line {2 + len(heading)}: the line is longer than 64 bytes" in answer.err
    assert payloads(cli) == ["a", "b"]


def test_a_payload_over_the_limit_is_refused_by_name(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import penstock.codec.body as body

    monkeypatch.setattr(feed, "MAX_PAYLOAD_BYTES", 10)
    monkeypatch.setattr(body, "MAX_PAYLOAD_BYTES", 10)
    answer = cli("enqueue", "emails", "--file", "-", input="x" * 11, code=1)
    assert "payload" in answer.err
    assert "limit" in answer.err


def test_nothing_to_read_is_1(cli: Cli) -> None:
    assert cli("enqueue", "emails", "--lines", input="", code=1).out.startswith("0 accepted")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lines", "--jsonl"], "exclude each other"),
        (["hello", "--lines"], "a PAYLOAD goes without"),
        (["--file", "missing"], "cannot read missing: No such file or directory"),
        (["--lines", "--dedup-id", "x"], "for one message"),
        (["--lines", "--rejects", "no/where"], "cannot write no/where: No such file or directory"),
        (["--lines", "--batch", "0"], "--batch"),
        (["hello", "--batch", "3"], "--batch and --rejects are for --file"),
        (["hello", "--rejects", "r"], "--batch and --rejects are for --file"),
        (["--jsonl", "--payload-column", "body"], "--payload-column is for --csv"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], said: str, cli: Cli) -> None:
    answer = cli("enqueue", "emails", *arguments, input="x\n", code=2)
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert stored(cli) == []


def test_a_store_that_fails_halfway_says_how_far_it_got(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock import StorageFull
    from penstock.queue import Queue

    whole, calls = Queue.enqueue_many, iter(range(10))

    def failing(self: Queue, batch: Any) -> Any:
        if next(calls) == 2:
            raise StorageFull("no room to write: free some space")
        return whole(self, batch)

    monkeypatch.setattr(Queue, "enqueue_many", failing)
    answer = cli("enqueue", "emails", "--lines", "--batch", "5", input="x\n" * 20, code=3)
    said = answer.err.splitlines()
    assert said[0].startswith("stopped after standard input, line 10: 10 accepted")
    assert said[1] == "penstock: no room to write: free some space"
    assert len(stored(cli)) == 10


def test_where_it_stopped_is_the_end_of_a_batch_whoever_stops_reading(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.cli.output import Output, PipeClosed

    def closed(self: Output, text: str) -> None:
        raise PipeClosed

    monkeypatch.setattr(Output, "say", closed)
    monkeypatch.setattr(main, "_close_pipe", lambda: 141)
    answer = cli("enqueue", "emails", "--lines", "--ids", "--batch", "5", input="x\n" * 20, code=141)
    assert answer.err.startswith("stopped after standard input, line 5: 5 accepted")
    assert len(stored(cli)) == 5


def test_an_interrupted_write_is_said_to_be_unsure(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.queue import Queue

    whole, calls = Queue.enqueue_many, iter(range(10))

    def interrupted(self: Queue, batch: Any) -> Any:
        found = whole(self, batch)
        if next(calls) == 1:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Queue, "enqueue_many", interrupted)
    answer = cli("enqueue", "emails", "--lines", "--batch", "5", input="x\n" * 20, code=130)
    assert answer.err.startswith(
        "stopped after standard input, line 5 (what follows up to standard input, line 10 may be stored "
        "too): 5 accepted"
    )
