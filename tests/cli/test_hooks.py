"""penstock hooks test, and scripts as settings of queues."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
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
        (["-m", '{"payload": "wait"}', "--last"], {"answer": "dead_letter"}),
        (["-m", '{"payload": "wait"}', "--failure", "reject"], {"answer": "dead_letter"}),
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
        (["tenants.lua", "--state", "x"], "a state value has no '='; accepted: --state KEY=VALUE"),
        (["tenants.lua", "-m", '{"weight": 5000}'], "weight is 5000; accepted"),
        (["slow.lua", "-m", '{"weight": 5000}'], "weight is 5000; accepted"),
        (["tenants.lua", "--attempts", "0"], "--attempts"),
        (["binary.lua"], "binary.lua is not UTF-8 text"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(arguments: list[str], said: str, bare: Cli, tenants: str) -> None:
    (bare.folder / "binary.lua").write_bytes(b"\x1bLua\xff")
    (bare.folder / "slow.lua").write_text("function on_enqueue() while true do end end")
    assert said in bare("hooks", "test", *arguments, code=2).err


def test_the_limits_are_those_of_the_configuration(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare.folder / "slow.lua").write_text("function on_enqueue() for n = 1, 12000000 do end end")
    assert "stopped after 10 ms" in bare("hooks", "test", "slow.lua", code=1).err
    monkeypatch.setenv("PENSTOCK_STORAGE_HOOKS_TIME_LIMIT_MS", "900")
    assert bare("hooks", "test", "slow.lua").lines == ["answer  accept"]
    monkeypatch.delenv("PENSTOCK_STORAGE_HOOKS_TIME_LIMIT_MS")
    (bare.folder / "penstock.yaml").write_text("storage: {path: ./data, hooks: {time_limit_ms: 900}}")
    assert bare("hooks", "test", "slow.lua").lines == ["answer  accept"]
    assert not (bare.folder / "data").exists()


def test_a_queue_tells_when_no_attempt_is_left(cli: Cli) -> None:
    (cli.folder / "tell.lua").write_text(
        "function on_failure(m, failure) if not failure.last then return 'retry', 6 end end"
    )
    (cli.folder / "retry.lua").write_text("function on_failure() return 'retry', 6 end")
    cli("queues", "create", "jobs", "--max-attempts", "3")
    for name, at_the_end in (("tell.lua", "as the queue's settings say"), ("retry.lua", "dead_letter")):
        for attempts, answer in ((2, "retry"), (3, at_the_end)):
            call = ("hooks", "test", name, "--queue", "jobs", "--attempts", str(attempts), "--json")
            assert cli(*call).object["answer"] == answer


def test_a_failure_is_said_once(bare: Cli) -> None:
    (bare.folder / "bad.lua").write_text("function on_failure(m)\n  error('here')\nend")
    found = subprocess.run(
        [sys.executable, "-m", "penstock", "hooks", "test", "bad.lua"],
        cwd=bare.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr.count("here"), found.stderr.count("\n")) == (1, 1, 1)


def test_a_mark_before_the_text_of_a_file_is_none_of_its_text(bare: Cli) -> None:
    (bare.folder / "marked.lua").write_text("function on_enqueue() end", "utf-8-sig")
    assert bare("hooks", "test", "marked.lua").lines == ["answer  accept"]


DECLARES = """
storage: {path: ./data}
queues:
  good: {}
  emails: {SETTING: "SCRIPT"}
"""


@pytest.mark.parametrize(
    ("setting", "script", "said"),
    [
        (
            "on_enqueue",
            r"function on_enqueue(m)\n  if then\nend",
            "on_enqueue:2: unexpected symbol near 'then'",
        ),
        ("on_failure", "fail.lua", "on_failure:1:"),
        ("on_failure", "function on_enqueue() end", "on_failure:1: no global function on_failure is defined"),
        ("on_enqueue", "while true do end", "on_enqueue:1: stopped after 10 ms"),
    ],
)
def test_a_configuration_with_a_script_that_no_store_takes_cannot_be_used(
    setting: str, script: str, said: str, bare: Cli
) -> None:
    text = DECLARES.replace("SETTING", setting).replace("SCRIPT", script)
    (bare.folder / "penstock.yaml").write_text(text)
    for command in (("config", "check"), ("init",)):
        answer = bare(*command, code=2)
        assert f"queues.emails: queue 'emails': {said}" in answer.err
    assert not (bare.folder / "data").exists()


def test_without_the_package_scripts_of_a_new_store_are_refused_and_others_left_unchecked(
    bare: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = DECLARES.replace("SETTING", "on_enqueue").replace("SCRIPT", "function on_enqueue() end")
    (bare.folder / "penstock.yaml").write_text(text)
    find = importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None if name == "lupa" else find(name))
        for command in (("config", "check"), ("init",)):
            assert "lupa is not installed" in bare(*command, code=3).err
    assert not (bare.folder / "data").exists()
    bare("init")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lupa" else find(name))
    answer = bare("config", "check").out
    assert "scripts of queues were not checked: lupa is not installed" in answer
    assert "can be used" in answer


def test_queues_take_scripts_from_files_and_let_go_of_them(cli: Cli, tenants: str, gives_up: str) -> None:
    cli("queues", "create", "jobs", "--on-enqueue", tenants, "--on-failure", gives_up)
    assert "no tenant" in cli("enqueue", "jobs", "hello", code=2).err
    found = cli("queues", "update", "jobs", "--on-enqueue", "none", "--json").object
    assert (found["on_enqueue"], found["on_failure"]) == (None, GIVES_UP)
    cli("enqueue", "jobs", "hello")
    (cli.folder / "bad.lua").write_text("function on_enqueue(")
    answer = cli("queues", "update", "jobs", "--on-enqueue", "bad.lua", code=2)
    assert "queue 'jobs': on_enqueue:1:" in answer.err
