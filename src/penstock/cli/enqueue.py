"""penstock enqueue: one message, or as many as lines, JSON lines, CSV or files hold."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import feed, values
from penstock.cli.command import command
from penstock.cli.exits import Exit
from penstock.cli.feed import Item, Source, argument_bytes
from penstock.cli.intake import Intake, reject_to
from penstock.cli.options import QueueName
from penstock.cli.progress import Bar
from penstock.cli.session import Session
from penstock.message import DEFAULT_PRIORITY, NewMessage

app = typer.Typer(add_completion=False)

BATCH = 500
Reader = Callable[[Source, NewMessage], Iterator[Item]]


def _of_message(annotation: Any, default: Any, *flags: str, **more: Any) -> tuple[Any, Any]:
    return Annotated[annotation, typer.Option(*flags, rich_help_panel="The message", **more)], default


_DURATION: dict[str, Any] = {"metavar": "DURATION", "parser": values.duration}
#: field of a message -> its option. With --jsonl and --csv it holds for rows that do not say otherwise.
FIELDS: dict[str, tuple[Any, Any]] = {
    "headers": _of_message(
        list[str] | None, None, "--header", "-H", metavar="NAME=VALUE", help="A header; repeatable."
    ),
    "fairness_key": _of_message(str, "", "--key", "-k", metavar="KEY", help="Fairness key."),
    "weight": _of_message(int, 1, "--weight", help="Messages a turn for its key."),
    "throttle_keys": _of_message(
        list[str] | None, None, "--throttle", metavar="KEY", help="A throttle key; repeatable."
    ),
    "priority": _of_message(int, DEFAULT_PRIORITY, "--priority", "-p", help="0 to 9; 9 comes first."),
    "delay_s": _of_message(float, 0.0, "--delay", help="Ready only after this.", **_DURATION),
    "ttl_s": _of_message(float | None, None, "--ttl", help="Removed if it waits longer.", **_DURATION),
    "dedup_id": _of_message(str | None, None, "--dedup-id", help="Stored once in the queue's dedup window."),
    "id": _of_message(
        str | None, None, "--id", metavar="UUID", help="Its id; a message that has it is left as it is."
    ),
}


@command(app, "enqueue", options=FIELDS)
def enqueue(
    session: Session,
    queue: QueueName,
    payload: Annotated[
        str | None, typer.Argument(metavar="[PAYLOAD]", help="The payload; without it, or -: standard input.")
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--file", "-f", metavar="PATH", help="Read a file; repeatable. Whole, it is one payload."
        ),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line is a payload.")] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Each line is an object: payload or payload_base64, and fields.")
    ] = False,
    by_csv: Annotated[
        bool,
        typer.Option("--csv", help="Each row is a message: columns named like fields; others are headers."),
    ] = False,
    payload_column: Annotated[
        str | None,
        typer.Option(
            "--payload-column", metavar="NAME", help="The column of --csv that holds payloads; else payload."
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, max=10_000, help="Messages to a write; else 500.")
    ] = None,
    rejects: Annotated[
        str | None,
        typer.Option(
            "--rejects", metavar="PATH", help="Add refused rows to this file, as JSON lines, with the reason."
        ),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Write the id of every message.")] = False,
    **fields: Any,
) -> Exit:
    """Store messages: a payload, standard input, or files.

    Rows that cannot be used are reported with their line; the rest is stored. Exit code 1: some were
    refused, or there was nothing.
    """
    csv = functools.partial(feed.from_csv, payload_column=payload_column or "payload")
    chosen: list[Reader] = [
        reader
        for reader, wanted in ((feed.from_lines, lines), (feed.from_jsonl, jsonl), (csv, by_csv))
        if wanted
    ]
    if len(chosen) > 1:
        raise typer.BadParameter("--lines, --jsonl and --csv exclude each other; choose one")
    defaults = _defaults(fields)
    if payload is not None and payload != "-" and (files or chosen):
        raise typer.BadParameter("a PAYLOAD goes without --file, --lines, --jsonl and --csv")
    if payload_column is not None and not by_csv:
        raise typer.BadParameter("--payload-column is for --csv")
    if chosen or files:
        reader = (chosen or [feed.whole_file])[0]
        return _many(session, queue, files or ["-"], reader, defaults, batch or BATCH, rejects, ids)
    if batch is not None or rejects is not None:
        raise typer.BadParameter("--batch and --rejects are for --file, --lines, --jsonl and --csv")
    message = msgspec.structs.replace(defaults, payload=_one_payload(session, payload or "-"))
    return _one(session, queue, message)


def _defaults(fields: dict[str, Any]) -> NewMessage:
    fields["headers"] = values.headers(fields["headers"] or [])
    fields["throttle_keys"] = tuple(fields["throttle_keys"] or ())
    return NewMessage(b"", **fields)


def _one_payload(session: Session, argument: str) -> bytes:
    if argument == "-":
        _say_if_typed(session)
    return argument_bytes(argument)


def _say_if_typed(session: Session) -> None:
    if sys.stdin.isatty():
        session.out.note("reading from the terminal; Ctrl-D ends it")


def _one(session: Session, queue: str, message: NewMessage) -> Exit:
    with session.open() as ps:
        (result,) = ps.queue(queue).enqueue_many([message])
    if result.error is not None:
        raise result.error
    if session.out.as_json:
        session.out.object({"id": result.id, "duplicate": result.duplicate})
    session.out.say(f"{result.id}{' (there already)' if result.duplicate else ''}")
    return Exit.DONE


def _many(
    session: Session,
    queue: str,
    names: list[str],
    reader: Reader,
    defaults: NewMessage,
    batch: int,
    rejects: str | None,
    ids: bool,
) -> Exit:
    if (defaults.dedup_id or defaults.id) and (reader is not feed.whole_file or len(names) > 1):
        raise typer.BadParameter(
            "--id and --dedup-id are for one message; --jsonl and --csv have fields for them"
        )
    with ExitStack() as closing:
        sources = [Source(name) for name in names]
        for source in sources:
            closing.callback(source.close)
        if "-" in names:
            _say_if_typed(session)
        reject = reject_to(session, rejects, sources, closing)
        ps = closing.enter_context(session.open())
        intake = Intake(session, ps.queue(queue), reject, ids)
        bar = closing.enter_context(Bar(counts=False))
        try:
            _run(intake, sources, reader, defaults, batch, bar)
        except BaseException:
            session.out.note(intake.tally.stopped())
            raise
    tally = intake.tally
    if session.out.as_json:
        session.out.object(tally.row())
    else:
        (session.out.note if ids else session.out.say)(tally.text())
    return Exit.NOTHING if tally.refused or not tally.accepted + tally.duplicates else Exit.DONE


def _run(
    intake: Intake, sources: list[Source], reader: Reader, defaults: NewMessage, batch: int, bar: Bar
) -> None:
    total_bytes = sum(source.size_bytes() for source in sources)
    for source in sources:
        for item in reader(source, defaults):
            intake.take(item, batch)
            read_bytes = sum(each.read_bytes for each in sources)
            bar(
                f"{intake.tally.accepted:,} enqueued",
                read_bytes,
                max(total_bytes, read_bytes) if total_bytes else 0,
            )
    intake.store()
