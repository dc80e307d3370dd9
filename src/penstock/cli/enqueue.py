"""penstock enqueue: one message, or as many as lines, JSON lines, CSV or files hold."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli import feed, values
from penstock.cli.command import command
from penstock.cli.exits import Exit, wording
from penstock.cli.feed import Item, Source, argument_bytes
from penstock.cli.options import QueueName
from penstock.cli.progress import Bar
from penstock.cli.rows import Row, bytes_field
from penstock.cli.session import Session
from penstock.message import DEFAULT_PRIORITY, NewMessage

if TYPE_CHECKING:
    from penstock import EnqueueResult, Queue

app = typer.Typer()

#: A batch ends here too, so that large payloads do not pile up in memory.
BATCH_BYTES = 8 * 1024 * 1024

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
        str, typer.Option("--payload-column", metavar="NAME", help="The column of --csv that holds payloads.")
    ] = "payload",
    batch: Annotated[int, typer.Option("--batch", min=1, max=10_000, help="Messages to a write.")] = 500,
    rejects: Annotated[
        str | None,
        typer.Option(
            "--rejects", metavar="PATH", help="Write refused rows here, as JSON lines, with the reason."
        ),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Write the id of every message.")] = False,
    **fields: Any,
) -> Exit:
    """Store messages: a payload, standard input, or files.

    Rows that cannot be used are reported with their line; the rest is stored. Exit code 1: some were
    refused, or there was nothing.
    """
    csv = functools.partial(feed.from_csv, payload_column=payload_column)
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
    if chosen or files:
        return _many(
            session, queue, files or ["-"], (chosen or [feed.whole_file])[0], defaults, batch, rejects, ids
        )
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


@dataclass
class Tally:
    """What became of the rows so far."""

    began: float
    accepted: int = 0
    duplicates: int = 0
    refused: int = 0
    last: str = ""

    def row(self) -> Row:
        return {"accepted": self.accepted, "duplicates": self.duplicates, "refused": self.refused}

    def text(self) -> str:
        took_s = time.perf_counter() - self.began
        per_s = (self.accepted + self.duplicates) / took_s if took_s else 0
        return (
            f"{self.accepted:,} accepted, {self.duplicates:,} duplicate, {self.refused:,} refused "
            f"in {took_s:.1f} s ({per_s:,.0f}/s)"
        )


class Intake:
    """Puts items into a queue by batches, and says what became of each."""

    def __init__(self, session: Session, queue: Queue, rejects: Callable[[Item], None], ids: bool) -> None:
        self._session = session
        self._queue = queue
        self._reject = rejects
        self._ids = ids
        self._waiting: list[Item] = []
        self._waiting_bytes = 0
        self.tally = Tally(time.perf_counter())

    def take(self, item: Item, batch: int) -> None:
        if item.message is None:
            self._refuse(item)
            return
        self._waiting.append(item)
        self._waiting_bytes += len(item.message.payload)
        if len(self._waiting) >= batch or self._waiting_bytes >= BATCH_BYTES:
            self.store()

    def store(self) -> None:
        """Write what has been taken. If it fails, all before this batch is stored and nothing of it."""
        items, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not items:
            return
        results = self._queue.enqueue_many([item.message for item in items if item.message is not None])
        for item, result in zip(items, results, strict=True):
            self._note(item, result)

    def _note(self, item: Item, result: EnqueueResult) -> None:
        self.tally.last = place(item)
        if result.error is not None:
            self._refuse(replace(item, reason=wording(result.error)))
            return
        if result.duplicate:
            self.tally.duplicates += 1
        else:
            self.tally.accepted += 1
        if self._ids and self._session.out.as_json:
            found = {"id": result.id, "duplicate": result.duplicate}
            self._session.out.object({**found, "source": item.source, "line": item.line})
        elif self._ids:
            self._session.out.say(str(result.id))

    def _refuse(self, item: Item) -> None:
        self.tally.refused += 1
        self._reject(item)


def place(item: Item) -> str:
    return f"{item.source}, line {item.line}" if item.line else item.source


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
        reject = _reject_to(session, rejects, closing)
        ps = closing.enter_context(session.open())
        intake = Intake(session, ps.queue(queue), reject, ids)
        bar = closing.enter_context(Bar(counts=False))
        try:
            _run(intake, sources, reader, defaults, batch, bar)
        except BaseException:
            # What is stored is stored: say how far it got, so that the rest can be given again.
            session.out.note(f"stopped after {intake.tally.last or 'nothing'}: {intake.tally.text()}")
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


def _reject_to(session: Session, path: str | None, closing: ExitStack) -> Callable[[Item], None]:
    """Refused rows go to standard error without their content, or to a file with it."""
    if path is None:
        return lambda item: session.out.note(f"{place(item)}: {item.reason}")
    try:
        file = closing.enter_context(open(path, "w", encoding="utf-8"))  # noqa: SIM115  (closed by the stack)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror or error}") from None

    def write(item: Item) -> None:
        found: Row = {"source": item.source, "line": item.line, "reason": item.reason}
        found.update(bytes_field("row", item.row))
        file.write(msgspec.json.encode(found).decode() + "\n")

    return write
