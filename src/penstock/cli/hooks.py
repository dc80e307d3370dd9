"""penstock hooks: try a queue's script on a sample message."""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from penstock.cli import values
from penstock.cli.columns import field
from penstock.cli.command import Group, command
from penstock.cli.exits import Exit
from penstock.cli.feed import MessageLine, unreadable
from penstock.cli.options import queue_names
from penstock.cli.rows import Row
from penstock.cli.session import Session
from penstock.cli.tables import Column
from penstock.message import NewMessage

if TYPE_CHECKING:
    from penstock.hooks.scripts import Script, Scripts

app = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, help="Try a queue's script.")

#: What a script may change of a message.
_CHANGED = ("fairness_key", "weight", "priority", "delay_s", "throttle_keys", "headers")
_COLUMNS = (
    Column("answer", field("answer")),
    Column("delay", field("delay_s")),
    Column("reason", field("reason")),
    *(
        Column(name, lambda row, name=name: _shown(row["changes"], name), style="cyan")  # type: ignore[misc]
        for name in _CHANGED
    ),
)


class FailureKind(enum.StrEnum):
    """How a delivery can fail."""

    nack = "nack"
    reject = "reject"
    lease_expired = "lease_expired"


class Hook(enum.StrEnum):
    """When a script is run."""

    on_enqueue = "on_enqueue"
    on_failure = "on_failure"


@app.callback()
def _group() -> None:
    """Try a queue's script."""  # With it, Typer makes a group of a single command.


@command(app, "test")
def try_out(
    session: Session,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", parser=values.script, help="The file that has the script.")
    ],
    hook: Annotated[
        Hook | None, typer.Option("--hook", help="Which function to call; else the one that it defines.")
    ] = None,
    message: Annotated[
        str,
        typer.Option("--message", "-m", metavar="JSON", help="The message, as a line of enqueue --jsonl."),
    ] = "",
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            metavar="QUEUE",
            help="Take its first ready message, unless --message gives one, and the state of its store.",
            autocompletion=queue_names,
        ),
    ] = None,
    failure: Annotated[
        FailureKind, typer.Option("--failure", help="How the delivery failed, for on_failure.")
    ] = FailureKind.nack,
    reason: Annotated[str, typer.Option("--reason", help="What was said about it.")] = "",
    attempts: Annotated[int, typer.Option("--attempts", min=1, help="Deliveries so far.")] = 1,
    last: Annotated[
        bool,
        typer.Option(
            "--last", help="No attempt is left; with --queue, its max_attempts and --attempts tell it too."
        ),
    ] = False,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="KEY=VALUE", help="What penstock.get finds; repeatable."),
    ] = None,
) -> Exit:
    """Run a script on a sample message, and show what it would do; nothing is stored.

    Exit code 1: the message would be refused, or the script fails.
    """
    pairs = values.by_name(state or [], "state value", "--state KEY=VALUE")
    with _scripts(session, queue, {key: value.encode() for key, value in pairs.items()}) as tried:
        sample = _sample(message) if message or tried.first is None else tried.first
        chosen = _chosen(tried.scripts, queue or "test", script, hook)
        if chosen.source.hook == Hook.on_enqueue:
            shown = _enqueue(tried.scripts, chosen, sample)
        else:
            last = last or failure is FailureKind.reject or attempts >= tried.max_attempts
            shown = _fail(tried.scripts, chosen, sample, failure, reason, attempts, last=last)
    session.out.record({"hook": chosen.source.hook, **shown}, _COLUMNS)
    return Exit.NOTHING if shown["answer"] == "refuse" else Exit.DONE


class _Tried(NamedTuple):
    """What runs scripts; of the queue that was named, its first message and how often it tries one."""

    scripts: Scripts
    first: NewMessage | None = None
    max_attempts: float = math.inf


@contextmanager
def _scripts(session: Session, queue: str | None, given: dict[str, bytes]) -> Iterator[_Tried]:
    from penstock.config import HookSettings, StorageSettings

    config = session.config()
    limits = config.default.hooks if isinstance(config.default, StorageSettings) else HookSettings()
    if queue is None:
        with _running(limits, given.get) as scripts:
            yield _Tried(scripts)
        return
    with session.open() as ps:
        first = next(iter(ps.queue(queue).peek(1)), None)
        (settings,) = (one for one in ps.queues() if one.name == queue)
        with _running(limits, lambda key: given[key] if key in given else ps.state.get(key)) as scripts:
            yield _Tried(scripts, None if first is None else _as_new(first), settings.max_attempts)


@contextmanager
def _running(limits: Any, read_state: Callable[[str], bytes | None]) -> Iterator[Scripts]:
    from penstock.clock import SystemClock
    from penstock.hooks.scripts import Scripts

    # What a script fails with is the answer, and is not logged besides.
    logger, silence = logging.getLogger("penstock"), logging.NullHandler()
    logger.addHandler(silence)
    scripts = Scripts(limits, SystemClock(), read_state)
    try:
        yield scripts
    finally:
        scripts.close()
        logger.removeHandler(silence)


def _as_new(stored: Any) -> NewMessage:
    return NewMessage(
        stored.payload,
        stored.headers,
        stored.fairness_key,
        stored.weight,
        stored.throttle_keys,
        stored.priority,
        dedup_id=stored.dedup_id,
        id=stored.id,
    )


def _sample(text: str) -> NewMessage:
    if not text:
        return NewMessage()
    try:
        line = msgspec.json.decode(text, type=MessageLine)
        if line.payload is line.payload_base64 is msgspec.UNSET:
            line.payload = ""
        return line.message(NewMessage())
    except (msgspec.DecodeError, ValueError) as error:
        raise typer.BadParameter(f"--message: {unreadable(error)}") from None


def _chosen(scripts: Scripts, queue: str, text: str, hook: Hook | None) -> Script:
    """The script as the hook that it was asked for, or whose function it defines."""
    from penstock.errors import InvalidConfig
    from penstock.hooks.scripts import Script

    problem: InvalidConfig | None = None
    for one in Hook if hook is None else (hook,):
        script = Script(queue, one, text)
        try:
            scripts.check(script)
        except InvalidConfig as error:
            problem = problem or error
        else:
            return script
    assert problem is not None
    raise problem


def _enqueue(scripts: Scripts, script: Script, sample: NewMessage) -> Row:
    from penstock.codec.body import check_message
    from penstock.errors import InvalidMessage
    from penstock.hooks.scripts import Refused

    check_message(sample)
    (answer,) = scripts.enqueue(script, [sample])
    if isinstance(answer, Refused):
        if not isinstance(answer.error, InvalidMessage):
            raise answer.error
        return {"answer": "refuse", "reason": str(answer.error), "changes": {}}
    changes = {
        name: getattr(answer, name) for name in _CHANGED if getattr(answer, name) != getattr(sample, name)
    }
    return {"answer": "accept", "changes": changes}


def _fail(
    scripts: Scripts,
    script: Script,
    sample: NewMessage,
    kind: FailureKind,
    reason: str,
    attempts: int,
    *,
    last: bool,
) -> Row:
    from penstock.clock import SystemClock
    from penstock.codec.body import Body, check_message
    from penstock.errors import HookError
    from penstock.hooks.wire import Failure

    check_message(sample)
    body = Body(
        sample.priority,
        sample.weight,
        SystemClock().now_ns(),
        0,
        0,
        sample.fairness_key,
        sample.headers,
        tuple(sample.throttle_keys),
        sample.dedup_id,
        sample.payload,
    )
    case = Failure(kind, reason, None, "", attempts, last, bytes(16), body)
    (verdict,) = scripts.fail(script, [case])
    if script.failures:
        raise HookError(script.last_failure)
    if verdict is None:
        return {"answer": "as the queue's settings say", "changes": {}}
    if verdict.action == "retry" and last:
        said = "the script says retry, but no attempt is left"
        return {"answer": "dead_letter", "reason": said, "changes": {}}
    if verdict.action == "retry":
        return {"answer": "retry", "delay_s": verdict.delay_ns / 1e9, "changes": {}}
    return {"answer": verdict.action, "reason": verdict.reason, "changes": {}}


def _shown(changes: Row, name: str) -> str:
    value = changes.get(name)
    if name == "headers" and value is not None:
        return "\n".join(f"{key}={content}" for key, content in value.items()) or "none"
    return "" if value is None else str(value) if not isinstance(value, (list, tuple)) else ", ".join(value)
