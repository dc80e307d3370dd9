"""penstock hooks test, and scripts as settings of queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import Cli

TENANTS = """
function on_enqueue(message)
  if not message.headers.tenant then return "refuse", "no tenant" end
  message.fairness_key = message.headers.tenant
  message.throttle_keys = {"a", "b"}
  message.headers.limit = penstock.get("limit")
end
"""
GIVES_UP = """
function on_failure(message, failure)
  if failure.kind == "lease_expired" then return "drop", "late" end
  if message.attempts > 3 then return "dead_letter", "gave up: " .. failure.reason end
  if message.payload == "wait" then return "retry", 20 end
end
"""


@pytest.fixture
def tenants(folder: Path) -> str:
    (folder / "tenants.lua").write_text(TENANTS)
    return "tenants.lua"


@pytest.fixture
def gives_up(folder: Path) -> str:
    (folder / "fail.lua").write_text(GIVES_UP)
    return "fail.lua"


def test_a_script_is_tried_without_a_store(bare: Cli, tenants: str) -> None:
    shown = bare("hooks", "test", tenants, "-m", '{"headers": {"tenant": "acme"}}', "--state", "limit=5")
    assert shown.lines == [
        "answer         accept",
        "fairness_key   acme",
        "throttle_keys  a, b",
        "headers        limit=5",
        "               tenant=acme",
    ]
    assert list(bare.folder.iterdir()) == [bare.folder / tenants]


def test_a_refusal_is_exit_code_1(bare: Cli, tenants: str) -> None:
    found = bare("hooks", "test", tenants, "--json", code=1).object
    assert (found["hook"], found["answer"]) == ("on_enqueue", "refuse")
    assert found["reason"] == "queue 'test' refuses the message: no tenant"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--attempts", "4", "--reason", "boom"], {"answer": "dead_letter", "reason": "gave up: boom"}),
        (["--failure", "lease_expired"], {"answer": "drop", "reason": "late"}),
        (["-m", '{"payload": "wait"}'], {"answer": "retry", "delay_s": 20.0}),
        ([], {"answer": "as the queue's settings say"}),
    ],
)
def test_failures_are_tried_too(
    arguments: list[str], shown: dict[str, object], bare: Cli, gives_up: str
) -> None:
    found = bare("hooks", "test", gives_up, *arguments, "--json").object
    assert {name: found[name] for name in shown} == shown


def test_a_queue_gives_the_message_and_the_state(cli: Cli, tenants: str) -> None:
    cli("state", "put", "limit", "7")
    cli("enqueue", "emails", "hello", "--header", "tenant=acme")
    found = cli("hooks", "test", tenants, "--queue", "emails", "--json").object
    assert found["changes"]["headers"] == {"limit": "7", "tenant": "acme"}
    assert cli("peek", "emails", "--json").object["fairness_key"] == ""


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("function on_enqueue(m)\n  x = = 1\nend", 2, "on_enqueue:2: unexpected symbol near '='"),
        ("x = 1", 2, "no global function on_enqueue is defined"),
        ("function on_enqueue(m)\n  m.x.y = 1\nend", 1, "on_enqueue:2: attempt to index a nil value"),
        ("function on_enqueue(m)\n  while true do end\nend", 1, "on_enqueue:2: stopped after 10 ms"),
        ("function on_failure(m)\n  error('here')\nend", 1, "on_failure:2: here"),
    ],
)
def test_a_script_that_fails_is_one_line_with_its_line(script: str, code: int, said: str, bare: Cli) -> None:
    (bare.folder / "bad.lua").write_text(script)
    answer = bare("hooks", "test", "bad.lua", code=code)
    assert said in answer.err.replace("  ", " ")
    assert answer.err.count("\n") == 1
    assert answer.out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone.lua"], "cannot read gone.lua: No such file or directory"),
        (["tenants.lua", "-m", "{"], "--message: not a JSON object"),
        (["tenants.lua", "-m", '{"weigth": 3}'], "weigth"),
        (["tenants.lua", "--state", "x"], "no '='"),
        (["tenants.lua", "--attempts", "0"], "--attempts"),
        (["binary.lua"], "binary.lua is not UTF-8 text"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(arguments: list[str], said: str, bare: Cli, tenants: str) -> None:
    (bare.folder / "binary.lua").write_bytes(b"\x1bLua\xff")
    assert said in bare("hooks", "test", *arguments, code=2).err


def test_queues_take_scripts_from_files_and_let_go_of_them(cli: Cli, tenants: str, gives_up: str) -> None:
    cli("queues", "create", "jobs", "--on-enqueue", tenants, "--on-failure", gives_up)
    assert "no tenant" in cli("enqueue", "jobs", "hello", code=2).err
    found = cli("queues", "update", "jobs", "--on-enqueue", "none", "--json").object
    assert (found["on_enqueue"], found["on_failure"]) == (None, GIVES_UP)
    cli("enqueue", "jobs", "hello")
    (cli.folder / "bad.lua").write_text("function on_enqueue(")
    answer = cli("queues", "update", "jobs", "--on-enqueue", "bad.lua", code=2)
    assert "queue 'jobs': on_enqueue:1:" in answer.err
