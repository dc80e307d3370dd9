"""The tree of commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from penstock.cli.command import Debug, Group, Json, Store
from penstock.cli.exits import Exit, exit_of, wording
from penstock.cli.output import PipeClosed
from penstock.cli.text import neutral
from penstock.version import __version__


class Place(NamedTuple):
    """Where a command is: its panel of the help, its module, and its line in the list of commands."""

    panel: str
    module: str
    line: str


_STORE, _MESSAGES, _HISTORY, _TRUST, _RUN = "The store", "Messages", "History", "Trust", "Run"

#: A module is imported when its command is called: a short command should not wait for the others.
COMMANDS: dict[str, Place] = {
    "init": Place(_STORE, "store", "Create a store; one that is there already is left as it is."),
    "queues": Place(_STORE, "queues", "List, create, update and delete queues."),
    "hooks": Place(_STORE, "hooks", "Try a queue's script."),
    "stats": Place(_STORE, "stats", "Show the numbers of the queues: depth by state, ages, rates."),
    "health": Place(_STORE, "store", "Say whether the store is well."),
    "info": Place(_STORE, "store", "Show what is open: version, place, engine, durability, capabilities."),
    "backends": Place(_STORE, "backends", "List the backends that there are; ask those configured."),
    "config": Place(_STORE, "config", "Check and show the configuration."),
    "enqueue": Place(_MESSAGES, "enqueue", "Store messages: a payload, standard input, or files."),
    "lease": Place(_MESSAGES, "consume", "Take messages under a lease, each with its receipt."),
    "ack": Place(_MESSAGES, "consume", "Say that leased messages are done; they are removed."),
    "nack": Place(_MESSAGES, "consume", "Say that leased messages failed; they come back, or are dead."),
    "reject": Place(_MESSAGES, "consume", "Say that leased messages must not be tried again."),
    "extend": Place(_MESSAGES, "consume", "Hold leased messages for longer, counted from now."),
    "peek": Place(_MESSAGES, "look", "Show ready messages, without leasing them."),
    "get": Place(_MESSAGES, "look", "Show messages by id, in full."),
    "list": Place(_MESSAGES, "look", "List the messages of one state."),
    "due": Place(_MESSAGES, "look", "Show what falls due across all queues, earliest first."),
    "redrive": Place(_MESSAGES, "bulk", "Send dead messages back to where they came from."),
    "move": Place(_MESSAGES, "bulk", "Move waiting and dead messages to another queue."),
    "purge": Place(_MESSAGES, "bulk", "Remove messages for good."),
    "groups": Place(
        _MESSAGES, "groups", "Consumer groups of a queue: who sees every message, and how far it is."
    ),
    "throttles": Place(_MESSAGES, "throttles", "Limits by throttle key."),
    "events": Place(_HISTORY, "events", "Show what happened in a queue, in order."),
    "cursors": Place(_HISTORY, "cursors", "Named positions in a queue's journal."),
    "journal": Place(_HISTORY, "journal", "Append to and scan journals of your own."),
    "state": Place(_HISTORY, "state", "Small values by key, beside the queues."),
    "pipeline": Place(_HISTORY, "pipeline", "Jobs on Spark over whole stores and archives."),
    "check": Place(_TRUST, "check", "Read the whole store and prove every invariant."),
    "reindex": Place(_TRUST, "check", "Rebuild every index from bodies and journals."),
    "quarantine": Place(_TRUST, "quarantine", "What repairs took out of the store."),
    "rekey": Place(_TRUST, "rekey", "Encrypt what is stored with the key that is set, or decrypt it."),
    "worker": Place(
        _RUN, "worker", "Run a function on the messages of queues: returning acks, raising fails."
    ),
    "serve": Place(_RUN, "serve", "Serve a store over HTTP: queues, SQS's protocol, health and metrics."),
    "keys": Place(_RUN, "keys", "Who may use a server: its file of keys."),
    "metrics": Place(_RUN, "run", "Show the metrics in the form of Prometheus, or serve them over HTTP."),
    "bench": Place(_RUN, "bench", "Measure a store: enqueue, lease and ack rates."),
    "demo": Place(_RUN, "run", "Show what Penstock does, on a store of its own."),
}


class Root(Group):
    """The command `penstock`: ends with an exit code, whatever happened below."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            self.commands[cmd_name] = load(cmd_name)
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of commands needs their lines, not their modules."""
        self.commands = {
            name: TyperCommand(name, help=place.line, rich_help_panel=place.panel)
            for name, place in COMMANDS.items()
        }
        super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS:
            self.commands = {name: TyperCommand(name) for name in COMMANDS}  # Their names are compared.
        return super().resolve_command(ctx, args)

    def main(self, *positional: Any, **named: Any) -> Any:
        named["standalone_mode"] = False
        try:
            code = super().main(*positional, **named)
            sys.stdout.flush()
        except (PipeClosed, BrokenPipeError):
            code = _close_pipe()
        except SystemExit as end:
            # How Rich and Typer end where nobody reads their help any more.
            code = _close_pipe() if isinstance(end.__context__, BrokenPipeError) else end.code
        except typer.Abort:
            code = Exit.INTERRUPTED
        except typer.TyperException as error:
            code = _usage(error)
        except Exception as error:  # noqa: BLE001  (whatever it is, it ends in a line and a code)
            arguments = positional[0] if positional else named.get("args")
            code = _failed(error, sys.argv[1:] if arguments is None else arguments)
        if code == Exit.INTERRUPTED and sys.stderr.isatty():
            print(file=sys.stderr)  # The shell's prompt should not follow the ^C.
        try:
            sys.stdout.flush()
        except OSError:
            _close_pipe()  # That it cannot be written was said; the interpreter would say it again.
        sys.exit(int(code or Exit.DONE))


def load(name: str) -> Any:
    """A command, or a group of them, built from its module."""
    built = get_command(import_module(f"penstock.cli.{COMMANDS[name].module}").app)
    if isinstance(built, TyperGroup) and name in built.commands:
        return built.commands[name]
    built.name = name
    return built


def _usage(error: typer.TyperException) -> int:
    """One line that names the command and where its help is."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "penstock"
    text = error.format_message().removeprefix("Invalid value: ")
    text = re.sub(r"a valid int(eger)?( range)?\b", "a whole number", text)
    text = re.sub(r"a valid float( range)?\b", "a number", text)
    text = re.sub(
        r"^No such option: (-\d).*", r"\1… is read as an option; no number below 0 is accepted", text
    )
    if text:  # A group that was called without a command has shown its help instead.
        print(f"{path}: {neutral(text.rstrip('.'))} (see {path} --help)", file=sys.stderr)
    return Exit.USAGE


def _failed(error: Exception, arguments: Sequence[str]) -> int:
    if "--debug" in arguments:
        traceback.print_exception(error)
    print(f"penstock: {neutral(wording(error, _store_in(arguments)))}", file=sys.stderr)
    return exit_of(error)


def _store_in(arguments: Sequence[str]) -> str | None:
    """What --store was given, if it was."""
    for word, following in pairwise([*arguments, ""]):
        if word == "--store" or word.startswith("--store="):
            return word.partition("=")[2] or following
    return None


def _close_pipe() -> int:
    """Nobody reads any more: what is still in the buffer goes nowhere, without a complaint at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return Exit.PIPE_CLOSED


def _version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {__version__}")
        raise typer.Exit


def _root(
    store: Store = None,
    as_json: Json = False,
    debug: Debug = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Durable work queues: look into a store, feed it, work on it, and prove that it is right."""


app = typer.Typer(cls=Root, no_args_is_help=True, pretty_exceptions_enable=False)
app.callback()(_root)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process with its exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Closed by whoever started this: a file of the store must not take its number.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for as long as the process)
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding lacks is shown by its number: no failure.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        app(arguments, prog_name="penstock")
    except SystemExit as end:
        if end.code == Exit.INTERRUPTED:
            # What was interrupted may have left a store half open in native code: nobody takes it apart.
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(Exit.INTERRUPTED)
        raise
