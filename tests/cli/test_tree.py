"""Every command is there, explains itself, and takes what all of them take."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from penstock.cli.enqueue import FIELDS
from penstock.cli.main import COMMANDS, app, load
from penstock.cli.queues import SETTINGS
from penstock.message import NewMessage
from penstock.settings import QueueSettings
from tests.cli.calling import Cli


def leaves() -> Iterator[tuple[str, Any]]:
    """(words, command) of every command that does something."""
    for name in COMMANDS:
        built = load(name)
        if isinstance(built, TyperGroup):
            yield from ((f"{name} {below}", command) for below, command in built.commands.items())
        else:
            yield name, built


LEAVES = dict(leaves())

#: What an operator was promised.
PROMISED = """
init, queues list, queues create, queues update, queues delete, enqueue, lease, ack, nack, reject, extend,
peek, get, list, due, stats, health, redrive, move, purge, events, journal append, journal scan,
journal stats, journal configure, cursors list, cursors open, cursors read, cursors commit, cursors drop,
groups list, groups create, groups drop,
state put, state get, state delete, throttles set, throttles get, throttles list, throttles delete, check,
backends, config check, config show, hooks test, info, bench, demo, worker, metrics, rekey,
reindex, quarantine list, quarantine get, quarantine drop, metrics, pipeline audit, pipeline report
"""


def test_every_promised_command_is_there() -> None:
    promised = [" ".join(name.split()) for name in PROMISED.split(",")]
    assert [name for name in promised if name not in LEAVES] == []


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_argument_and_option_has_a_help_text(name: str) -> None:
    command = LEAVES[name]
    assert command.help, f"{name} has no help"
    missing = [param.name for param in command.params if not getattr(param, "help", None)]
    assert missing == []


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_takes_store_json_and_debug(name: str) -> None:
    taken = {option for param in LEAVES[name].params for option in param.opts}
    assert {"--store", "--json", "--debug"} <= taken


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_their_own_help_begins_with(name: str) -> None:
    text = inspect.cleandoc(load(name).help or "").split("\n")[0]
    assert text.startswith(COMMANDS[name].line.rstrip("."))


@pytest.mark.parametrize("name", LEAVES)
def test_the_help_of_every_command_can_be_shown(name: str, bare: Cli) -> None:
    shown = bare(*name.split(), "--help").out
    assert f"penstock {name}" in shown
    assert "<bool>" not in shown


def test_the_help_lists_every_command(bare: Cli) -> None:
    shown = bare("--help").out
    assert [name for name in COMMANDS if f" {name} " not in shown] == []


def test_a_group_without_a_command_shows_its_help(bare: Cli) -> None:
    answer = bare("cursors", code=2)
    assert "commit" in answer.out
    assert answer.err == ""


def test_queues_without_a_command_lists_them(cli: Cli) -> None:
    assert cli("queues").out == cli("queues", "list").out
    assert cli("queues", "--json").object["name"] == "emails"
    cli("queues", "--store", "elsewhere", "list", code=3)


@pytest.mark.parametrize("name", LEAVES)
def test_completion_is_installed_by_the_command_above_all(name: str) -> None:
    assert [param.name for param in LEAVES[name].params if "completion" in (param.name or "")] == []


def test_the_version_can_be_asked_for(bare: Cli) -> None:
    import penstock

    assert bare("--version").out == f"penstock {penstock.__version__}\n"


def test_every_setting_of_a_queue_has_an_option() -> None:
    assert {*SETTINGS, "name", "fifo"} == set(QueueSettings.__struct_fields__)


def test_every_field_of_a_message_has_an_option() -> None:
    assert {*FIELDS, "payload"} == set(NewMessage.__struct_fields__)


def test_completion_can_be_shown(bare: Cli) -> None:
    (option,) = [param for param in get_command(app).params if param.name == "show_completion"]
    assert "completion" in str(getattr(option, "help", ""))
