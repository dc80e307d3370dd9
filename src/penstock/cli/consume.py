"""penstock lease, ack, nack, reject, extend: one delivery at a time, by hand or in a script."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli import values
from penstock.cli.columns import MESSAGE, field
from penstock.cli.command import command
from penstock.cli.exits import Exit, wording
from penstock.cli.options import LeaseTime, QueueName, Raw
from penstock.cli.rows import Row, row
from penstock.cli.session import Session
from penstock.cli.tables import Column

if TYPE_CHECKING:
    from penstock import Outcome, Queue

app = typer.Typer(add_completion=False)

CONSUMER = "cli"
Receipts = Annotated[
    list[str],
    typer.Argument(
        metavar="RECEIPT...",
        help="Receipts that lease gave; - reads them, or lease's JSON lines, from standard input.",
    ),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the journal and with a dead message.")]

#: A receipt has 56 characters; what is longer is none, and its beginning is enough to find it.
RECEIPT_CHARS = 60


def _receipt(found: Row) -> str:
    text: str = found["receipt"]
    return text if len(text) <= RECEIPT_CHARS else text[: RECEIPT_CHARS - 1] + "…"


_OUTCOMES = (
    Column("receipt", _receipt),
    Column(
        "outcome",
        lambda found: "ok" if found["ok"] else "refused",
        style=lambda r: "green" if r["ok"] else "red",
    ),
    Column("why", field("error"), fold_chars=400),
)


@command(app, "lease")
def lease(
    session: Session,
    queue: QueueName,
    max_messages: Annotated[int, typer.Option("--max", "-n", min=1, help="At most so many messages.")] = 1,
    lease_s: LeaseTime = None,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait", metavar="DURATION", parser=values.duration, help="Wait so long for the first."
        ),
    ] = 0.0,
    consumer: Annotated[str, typer.Option("--consumer", help="The name that the journal shows.")] = CONSUMER,
    group: Annotated[str | None, typer.Option("--group", help="The consumer group to take them in.")] = None,
    raw: Raw = False,
) -> Exit:
    """Take messages under a lease, each with its receipt.

    Exit code 1: nothing to take. With --raw the receipts go to standard error.
    """
    with session.open() as ps:
        found = ps.queue(queue).lease(max_messages, lease_s, wait_s, consumer, group)
        for at, delivery in enumerate(found):
            if raw:
                session.out.raw([delivery.payload])
                session.out.note(delivery.receipt)
                continue
            if at and not session.out.as_json:
                session.out.say("")
            session.out.record(row(delivery), MESSAGE)
        session.out.flush()
    if not found:
        session.out.note(f"nothing to lease in queue {queue!r}")
    return Exit.DONE if found else Exit.NOTHING


@command(app, "ack")
def ack(session: Session, queue: QueueName, receipts: Receipts) -> Exit:
    """Say that leased messages are done; they are removed."""
    return _finish(session, queue, receipts, lambda q, batch: q.ack(batch))


@command(app, "nack")
def nack(
    session: Session,
    queue: QueueName,
    receipts: Receipts,
    delay_s: Annotated[
        float | None,
        typer.Option(
            "--delay",
            metavar="DURATION",
            parser=values.duration,
            help="Come back after this; else the queue's retry policy.",
        ),
    ] = None,
    reason: Reason = "",
) -> Exit:
    """Say that leased messages failed; they come back, or are dead after their last attempt."""
    return _finish(session, queue, receipts, lambda q, batch: q.nack(batch, delay_s=delay_s, reason=reason))


@command(app, "reject")
def reject(session: Session, queue: QueueName, receipts: Receipts, reason: Reason = "") -> Exit:
    """Say that leased messages must not be tried again; they are dead."""
    return _finish(session, queue, receipts, lambda q, batch: q.reject(batch, reason=reason))


@command(app, "extend")
def extend(
    session: Session,
    queue: QueueName,
    receipts: Receipts,
    lease_s: Annotated[
        float,
        typer.Option(
            "--lease", metavar="DURATION", parser=values.duration, help="From now, such as 30s or 5m."
        ),
    ] = 30.0,
) -> Exit:
    """Hold leased messages for longer, counted from now."""
    return _finish(session, queue, receipts, lambda q, batch: q.extend(batch, lease_s=lease_s))


def _finish(
    session: Session,
    queue: str,
    receipts: Sequence[str],
    call: Callable[[Queue, Sequence[str]], Sequence[Outcome]],
) -> Exit:
    """Answer each receipt; 1 if one of them was refused. Input is read before the store is opened."""
    batch = list(given(receipts, "receipt"))
    if not batch:
        session.out.note("no receipts were given")
        return Exit.NOTHING
    with session.open() as ps:
        outcomes = call(ps.queue(queue), batch)
    session.out.rows(
        (
            {
                "receipt": receipt,
                "ok": outcome.ok,
                "error": wording(outcome.error, session.given) if outcome.error else None,
            }
            for receipt, outcome in zip(batch, outcomes, strict=True)
        ),
        _OUTCOMES,
    )
    return Exit.DONE if all(outcome.ok for outcome in outcomes) else Exit.NOTHING


def given(items: Sequence[str], name: str) -> Iterator[str]:
    """The items; a `-` among them is standard input: one a line, or JSON objects that have `name`."""
    for item in items:
        if item != "-":
            yield item
            continue
        for number, line in enumerate(sys.stdin, start=1):
            line = line.strip()
            if line:
                yield _named(line, name, number) if line.startswith("{") else line


def _named(line: str, name: str, number: int) -> str:
    try:
        found = msgspec.json.decode(line, type=dict[str, object]).get(name)
    except msgspec.DecodeError:
        found = None
    if not isinstance(found, str):
        raise typer.BadParameter(f"line {number} of standard input is not a JSON object with {name!r} in it")
    return found
