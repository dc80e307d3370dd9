"""The worker by command: a function in the working folder, signals, a screen, numbers."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.calling import Cli, command
from tests.cli.terminal import Terminal

TASKS = """
import sys, time, pathlib

def note(delivery):
    with open("done.txt", "a") as file:
        file.write(delivery.payload.decode() + "\\n")

async def later(delivery):
    note(delivery)

def fail(delivery):
    raise ValueError("disk full")

def slow(delivery):
    pathlib.Path("started").touch()
    time.sleep(60)

def many(deliveries):
    for delivery in deliveries:
        note(delivery)

number = 5
"""


@pytest.fixture
def tasks(cli: Cli) -> Path:
    (cli.folder / "tasks.py").write_text(TASKS)
    return cli.folder


def done(folder: Path) -> list[str]:
    return sorted((folder / "done.txt").read_text().split())


@pytest.mark.parametrize(
    "options",
    [
        ["tasks:note"],
        ["tasks:note", "--concurrency", "3"],
        ["tasks:note", "--mode", "processes", "-c", "2"],
        ["tasks:later"],
        ["tasks:many", "--batch", "2"],
    ],
)
def test_a_worker_works_until_nothing_is_ready(options: list[str], cli: Cli, tasks: Path) -> None:
    cli.process("enqueue", "emails", "--lines", input=b"a\nb\nc\n")
    answer = cli.process("worker", *options, "--queue", "emails", "--until-empty")
    assert answer.out.startswith("3 started: 3 succeeded, 0 failed, in ")
    assert done(tasks) == ["a", "b", "c"]
    assert cli.process("stats", "emails", "--json").object["acked_total"] == 3


def test_nothing_to_do_is_1(cli: Cli, tasks: Path) -> None:
    cli.process("worker", "tasks:note", "-q", "emails", "--until-empty", code=1)


def test_failures_are_logged_without_their_reason_and_kept_with_it(cli: Cli, tasks: Path) -> None:
    cli.process("queues", "update", "emails", "--max-attempts", "1")
    message_id = cli.process("enqueue", "emails", "secret").out.strip()
    answer = cli.process("worker", "tasks:fail", "-q", "emails", "--until-empty", "--json")
    last = answer.objects[-1]
    assert (last["failed"], last["dead"], last["state"]) == (1, 1, "stopped")
    assert f"message {message_id} of queue 'emails': failed, attempt 1" in answer.err
    assert "disk full" not in answer.err
    assert "ValueError: disk full" in cli.process("get", "emails", message_id).out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_gives_back_what_is_not_done_and_ends_with_0(
    number: signal.Signals, cli: Cli, tasks: Path
) -> None:
    cli.process("enqueue", "emails", "--lines", input=b"a\nb\n")
    running = subprocess.Popen(
        command(
            "worker", "tasks:slow", "-q", "emails", "--json", "--every", "50ms", "--stop-timeout", "0.1s"
        ),
        cwd=cli.folder,
        stdout=subprocess.PIPE,
    )
    assert running.stdout is not None
    while json.loads(running.stdout.readline())["running"] != 1:
        pass
    running.send_signal(number)
    *_, last = running.stdout.read().splitlines()
    running.stdout.close()
    assert running.wait(60) == 0
    assert json.loads(last)["returned"] >= 1
    assert cli.process("stats", "emails", "--json").object["ready"] == 2


def test_a_worker_whose_numbers_nobody_reads_any_more_ends(cli: Cli, tasks: Path) -> None:
    running = subprocess.Popen(
        command("worker", "tasks:note", "-q", "emails", "--json", "--every", "20ms"),
        cwd=cli.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdout is not None
    assert running.stdout.readline()
    running.stdout.close()
    assert running.stderr is not None
    assert b"Traceback" not in running.stderr.read()
    running.stderr.close()
    assert running.wait(60) == 141


def test_a_terminal_shows_what_each_slot_does(cli: Cli, tasks: Path) -> None:
    cli.process("enqueue", "emails", "hello")
    with Terminal(
        cli.folder, "worker", "tasks:slow", "-q", "emails", "-c", "2", "--stop-timeout", "0s"
    ) as terminal:
        terminal.until("running")
        terminal.until("idle")
        assert terminal.interrupt() == 0
    assert "1 started: 0 succeeded, 0 failed, " in terminal.shown
    assert cli.process("stats", "emails", "--json").object["ready"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["tasks:gone", "-q", "emails"], 2, "cannot be imported"),
        (["nowhere:gone", "-q", "emails"], 2, "cannot be imported: No module named 'nowhere'"),
        (["tasks", "-q", "emails"], 2, "not of the form 'module:function'"),
        (["tasks:number", "-q", "emails"], 2, "not a function"),
        (["tasks:note"], 2, "--queue"),
        (["tasks:note", "-q", "gone"], 1, "queue 'gone' does not exist"),
        (["tasks:note", "-q", "emails", "--mode", "magic"], 2, "accepted: threads, processes, asyncio"),
        (["tasks:note", "-q", "emails", "-c", "0"], 2, "concurrency is 0"),
    ],
)
def test_what_a_worker_cannot_use_is_named(
    arguments: list[str], code: int, said: str, cli: Cli, tasks: Path
) -> None:
    answer = cli.process("worker", *arguments, code=code)
    assert said in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise RuntimeError('db down')", "RuntimeError: db down"),
        ("import sys; sys.exit(5)", "SystemExit: 5"),
        ("import nowhere", "No module named 'nowhere'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_the_users_to_mend(
    content: str, said: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{abs(hash(content))}"
    (cli.folder / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(cli.folder)
    answer = cli("worker", f"{name}:f", "-q", "emails", code=2)
    assert f"handler '{name}:f' cannot be imported: {said}" in answer.err
    assert answer.err.count("\n") == 1
