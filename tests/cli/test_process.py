"""As a process: exit codes, pipes, signals, terminals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from penstock.cli.progress import Bar
from tests.cli.calling import Cli, command
from tests.cli.terminal import Terminal

ESCAPE = "\x1b["


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["stats"], 0),
        (["lease", "emails"], 1),
        (["get", "emails", "01a1e314-7a5c-72f1-8a4d-3868221002be"], 1),
        (["nonsense"], 2),
        (["stats", "--store", "nowhere"], 3),
    ],
)
def test_exit_codes(arguments: list[str], code: int, cli: Cli) -> None:
    answer = cli.process(*arguments, code=code)
    assert "Traceback" not in answer.err
    assert ESCAPE not in answer.out + answer.err


def test_the_script_and_the_module_are_the_same(cli: Cli) -> None:
    script = Path(sys.executable).parent / "penstock"
    done = subprocess.run(
        [script, "queues", "list", "--json"], cwd=cli.folder, capture_output=True, check=True
    )
    assert done.stdout == cli.process("queues", "list", "--json").raw


def test_piping_from_command_to_command(cli: Cli) -> None:
    cli.process("enqueue", "emails", "--lines", input=b"a\nb\n")
    lease = subprocess.Popen(
        command("lease", "emails", "-n", "10", "--json"), cwd=cli.folder, stdout=subprocess.PIPE
    )
    ack = subprocess.run(
        command("ack", "emails", "-", "--json"),
        cwd=cli.folder,
        stdin=lease.stdout,
        capture_output=True,
        check=True,
    )
    assert lease.stdout is not None
    lease.stdout.close()
    assert lease.wait(60) == 0
    assert [json.loads(line)["ok"] for line in ack.stdout.splitlines()] == [True, True]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_closed_pipe_is_silent(form: list[str], cli: Cli) -> None:
    cli.process("enqueue", "emails", "--lines", input=b"x\n" * 20_000)
    events = subprocess.Popen(
        command("events", "emails", *form), cwd=cli.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert events.stdout is not None
    assert events.stderr is not None
    assert events.stdout.readline()
    events.stdout.close()
    assert events.stderr.read() == b""
    events.stderr.close()
    assert events.wait(60) == 141
    assert cli.process("check").code == 0


def test_help_that_nobody_reads_to_its_end_is_a_closed_pipe_too(cli: Cli) -> None:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", '"$@" | true', "-", *command("--help")],
        cwd=cli.folder,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("words", "closed", "code"),
    [
        (["stats"], ">&-", 0),
        (["stats", "nope"], "2>&-", 1),
        (["queues", "delete", "emails"], "<&-", 2),
        (["enqueue", "emails"], "<&- >&- 2>&-", 0),
    ],
)
def test_closed_streams_are_read_as_empty_and_written_to_nowhere(
    words: list[str], closed: str, code: int, cli: Cli
) -> None:
    done = subprocess.run(
        ["bash", "-c", f'"$@" {closed}', "-", *command(*words)],
        cwd=cli.folder,
        capture_output=True,
        check=False,
    )
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    if words[0] == "enqueue":
        assert cli("stats", "emails", "--json").object["ready"] == 1


def test_a_full_disk_behind_standard_output_is_an_error_of_one_line(cli: Cli) -> None:
    cli.process("enqueue", "emails", "hello")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("stats", "--json"), cwd=cli.folder, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 3
    assert done.stderr.startswith(b"penstock: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "arguments", [["lease", "emails", "--wait", "1h"], ["events", "emails", "--follow"], ["stats", "--watch"]]
)
def test_ctrl_c_ends_with_130_and_without_a_traceback(arguments: list[str], cli: Cli) -> None:
    cli.process("enqueue", "emails", "later", "--delay", "1h")
    with Terminal(cli.folder, *arguments) as terminal:
        if arguments[0] != "lease":
            terminal.until("emails" if arguments[0] == "stats" else "enqueued")
        else:
            wait_until_owned(cli, terminal.process.pid)
        assert terminal.interrupt() == 130
    assert "Traceback" not in terminal.shown
    assert cli.process("check").code == 0


def wait_until_owned(cli: Cli, pid: int) -> None:
    """Until that process has the store."""
    pause = threading.Event()
    for _ in range(600):
        if cli.process("info", "--json").object["backends"][0]["attached_to"] == pid:
            return
        pause.wait(0.1)
    raise AssertionError("it did not open the store")


def test_a_store_that_a_program_has_open_is_used_through_it(cli: Cli) -> None:
    with penstock.open(cli.store) as ps:
        message_id = cli.process("enqueue", "emails", "hello").out.strip()
        assert ps.queue("emails").get(message_id).payload == b"hello"
        assert re.search(rf"attached to +process {os.getpid()}\n", cli.process("info").out)
        follow = subprocess.Popen(
            command("events", "emails", "--follow", "--every", "20ms", "--json", "-n", "2"),
            cwd=cli.folder,
            stdout=subprocess.PIPE,
        )
        assert follow.stdout is not None
        assert json.loads(follow.stdout.readline())["seq"] == 1
        ps.queue("emails").enqueue(b"second")
        assert json.loads(follow.stdout.readline())["seq"] == 2
        assert follow.wait(60) == 0
        follow.stdout.close()


def test_ctrl_c_in_the_middle_of_reading_says_how_far_it_got(cli: Cli) -> None:
    feeding = subprocess.Popen(
        command("enqueue", "emails", "--lines", "--batch", "10", "--ids"),
        cwd=cli.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert feeding.stdin is not None
    assert feeding.stdout is not None
    feeding.stdin.write(b"x\n" * 15)
    feeding.stdin.flush()
    ids = [feeding.stdout.readline() for _ in range(10)]
    feeding.send_signal(signal.SIGINT)
    _, said = feeding.communicate(timeout=60)
    assert feeding.returncode == 130
    assert said.startswith(b"stopped after standard input, line 10: 10 accepted")
    assert b"Traceback" not in said
    assert len(set(ids)) == 10
    assert cli.process("stats", "emails", "--json").object["ready"] == 10


# -- on a terminal


def test_a_terminal_gets_colour_and_a_table_that_fits(cli: Cli) -> None:
    cli.process("enqueue", "emails", "x" * 500, "--key", "tenant" * 20)
    with Terminal(cli.folder, "list", "emails") as terminal:
        assert terminal.end() == 0
    assert ESCAPE in terminal.shown
    plain = without_escapes(terminal.shown)
    assert max(len(line) for line in plain.splitlines()) <= 120
    assert "…" in plain


def test_json_on_a_terminal_has_no_colour(cli: Cli) -> None:
    with Terminal(cli.folder, "stats", "--json") as terminal:
        assert terminal.end() == 0
    assert json.loads(terminal.shown)["queue"] == "emails"


def test_no_color_is_honoured(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with Terminal(cli.folder, "stats") as terminal:
        assert terminal.end() == 0
    assert "[3" not in terminal.shown


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 1), ("\n", 1, 1)])
def test_a_person_is_asked_before_data_goes(answer: str, code: int, left: int, cli: Cli) -> None:
    cli.process("enqueue", "emails", "hello")
    with Terminal(cli.folder, "purge", "emails") as terminal:
        terminal.until("Remove 1 waiting messages of queue 'emails' for good? [y/N]")
        terminal.type(answer)
        assert terminal.end() == code
    assert cli.process("stats", "emails", "--json").object["ready"] == left


def test_ctrl_c_at_a_question_removes_nothing(cli: Cli) -> None:
    cli.process("enqueue", "emails", "hello")
    with Terminal(cli.folder, "queues", "delete", "emails") as terminal:
        terminal.until("[y/N]")
        assert terminal.interrupt() == 130
    assert cli.process("stats", "emails", "--json").object["ready"] == 1


def test_hostile_names_do_not_reach_a_terminal(cli: Cli) -> None:
    with penstock.open(cli.store) as ps:
        ps.create_queue("evil\x1b[2J\x1b]0;x\x07")
    with Terminal(cli.folder, "queues", "list") as terminal:
        assert terminal.end() == 0
    assert "\x1b[2J" not in terminal.shown
    assert "\x07" not in terminal.shown
    assert "evil\\x1b[2J" in terminal.shown


def test_watching_shows_the_numbers_again(cli: Cli) -> None:
    with Terminal(cli.folder, "stats", "--watch", "--every", "50ms") as terminal:
        for _ in range(3):
            terminal.until("Ctrl-C ends")
            terminal.shown = ""
        assert terminal.interrupt() == 130


def test_watching_without_a_terminal_writes_objects(cli: Cli) -> None:
    watching = subprocess.Popen(
        command("stats", "--watch", "--every", "10ms", "--json"), cwd=cli.folder, stdout=subprocess.PIPE
    )
    assert watching.stdout is not None
    found = [json.loads(watching.stdout.readline()) for _ in range(3)]
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 130
    watching.stdout.close()
    assert {item["queue"] for item in found} == {"emails"}
    assert found[0]["at_ns"] < found[2]["at_ns"]


# -- progress


def test_a_bar_is_shown_only_for_what_takes_over_a_second() -> None:
    with Bar(shown=True) as bar:
        bar("check", 1, 10)
        assert not bar.is_begun
        bar._began -= 1
        bar("check", 5, 10)
        assert bar.is_begun


def test_a_slow_feed_shows_a_bar_on_a_terminal(cli: Cli) -> None:
    reading, writing = os.pipe()
    with Terminal(cli.folder, "enqueue", "emails", "--lines", "--batch", "1", stdin=reading) as terminal:
        os.close(reading)
        pause = threading.Event()
        for _ in range(600):
            os.write(writing, b"x\n")
            if terminal.process.poll() is None and "enqueued" in terminal.shown:
                break
            terminal.read_some()
            pause.wait(0.1)
        os.close(writing)
        assert terminal.end() == 0
    assert "enqueued" in terminal.shown
    assert " accepted, " in without_escapes(terminal.shown)


def test_a_bar_is_not_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as bar:
        bar._began -= 100
        bar("check", 1, 10)
        assert not bar.is_begun
    assert capsys.readouterr().err == ""


def test_a_call_that_nobody_hears_from_shows_that_it_is_alive(cli: Cli) -> None:
    code = (
        "import sys, threading; from penstock.cli.progress import waiting\n"
        "with waiting('purging'): threading.Event().wait(1.5)\n"
        "with waiting('quick'): pass\n"
    )
    with Terminal(cli.folder, program=["-c", code]) as terminal:
        assert terminal.end() == 0
    assert "purging" in terminal.shown
    assert "quick" not in terminal.shown


def test_typing_a_payload_is_announced(cli: Cli) -> None:
    with Terminal(cli.folder, "enqueue", "emails", "--lines") as terminal:
        terminal.until("reading from the terminal; Ctrl-D ends it")
        terminal.type("hello\n\x04")
        terminal.until("1 accepted")
        assert terminal.end() == 0


# -- completion


def completions(cli: Cli, line: str, **environ: str) -> list[str]:
    words = line.split(" ")
    done = subprocess.run(
        [Path(sys.executable).parent / "penstock"],
        cwd=cli.folder,
        env={
            **os.environ,
            "_PENSTOCK_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            **environ,
        },
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.stdout.decode().split()


def test_commands_options_and_queue_names_complete(cli: Cli) -> None:
    assert completions(cli, "penstock rei") == [
        name for name in completions(cli, "penstock ") if name.startswith("rei")
    ]
    assert "enqueue" in completions(cli, "penstock en")
    assert "--watch" in completions(cli, "penstock stats --w")
    assert completions(cli, "penstock stats em") == ["emails"]
    assert completions(cli, "penstock stats zz") == []
    assert completions(cli, "penstock stats e", PENSTOCK_STORE="nowhere") == []


def without_escapes(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
