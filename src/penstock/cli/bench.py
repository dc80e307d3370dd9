"""penstock bench: what this machine and this store do, measured in front of you."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import values
from penstock.cli.columns import field, number
from penstock.cli.command import command
from penstock.cli.exits import Exit
from penstock.cli.progress import Bar
from penstock.cli.rows import Row
from penstock.cli.session import Session
from penstock.cli.tables import Column

if TYPE_CHECKING:
    from penstock import Penstock, Queue

app = typer.Typer(add_completion=False)

_COLUMNS = (
    Column("operation", field("operation"), style="bold"),
    Column("messages/s", number("per_s"), right=True, style="green"),
    Column("calls", number("calls"), right=True),
    Column("ms a call", lambda found: f"{found['mean_call_ms']:.2f}", right=True),
    Column("slowest ms", lambda found: f"{found['slowest_call_ms']:.2f}", right=True),
    Column("durability", field("durability"), drop=1),
    Column("batch", number("batch"), right=True, drop=1),
    Column("bytes", number("payload_bytes"), right=True, drop=1),
)


@command(app, "bench")
def bench(
    session: Session,
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="How many.")] = 20_000,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Messages to a call.")] = 100,
    payload_bytes: Annotated[
        int, typer.Option("--size", metavar="SIZE", parser=values.size, help="Bytes of a payload.")
    ] = 200,
    durability: Annotated[
        str | None,
        typer.Option(
            "--durability", metavar="MODE", help="sync, interval or os; only for a temporary store."
        ),
    ] = None,
) -> Exit:
    """Measure a store: enqueue, lease and ack rates.

    It runs on a temporary store in the working folder, so that the disk is the one you mean; with
    --store on that one, in a queue of its own that is deleted afterwards.
    """
    if session.given is not None:
        if durability is not None:
            raise typer.BadParameter(
                "--durability goes without --store; a store has the one it was opened with"
            )
        with session.open() as ps:
            return _measured(session, ps, messages, batch, payload_bytes)
    folder = tempfile.mkdtemp(prefix=".penstock-bench-", dir=Path.cwd())
    try:
        import penstock

        mode = f"?durability={durability}" if durability else ""
        with penstock.open(f"rocksdb:{Path(folder).as_uri().removeprefix('file://')}{mode}") as ps:
            return _measured(session, ps, messages, batch, payload_bytes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(session: Session, ps: Penstock, messages: int, batch: int, payload_bytes: int) -> Exit:
    name = f"penstock-bench-{time.monotonic_ns()}"
    info = ps.info().default
    queue = ps.create_queue(name, lease_s=600)
    try:
        with Bar() as bar:
            results = _run(queue, messages, batch, payload_bytes, bar)
    finally:
        ps.delete_queue(name)
    shared: Row = {
        "durability": info.durability,
        "batch": batch,
        "payload_bytes": payload_bytes,
        "messages": messages,
        "engine": info.engine,
    }
    session.out.rows(({**found, **shared} for found in results), _COLUMNS)
    session.out.say(
        f"one caller, {messages:,} messages, journal on, engine {info.engine}, "
        f"{'in memory' if info.path is None else 'disk of ' + str(Path(info.path).parent)}"
    )
    return Exit.DONE


def _run(queue: Queue, messages: int, batch: int, payload_bytes: int, bar: Bar) -> list[Row]:
    from penstock import NewMessage

    payload = b"x" * payload_bytes
    receipts: list[str] = []

    def enqueue(count: int) -> None:
        for result in queue.enqueue_many([NewMessage(payload) for _ in range(count)]):
            if result.error is not None:
                raise result.error

    def lease(count: int) -> None:
        receipts.extend(delivery.receipt for delivery in queue.lease(count, consumer="bench"))

    def ack(count: int) -> None:
        queue.ack([receipts.pop() for _ in range(count)])

    return [_timed(call.__name__, call, messages, batch, bar) for call in (enqueue, lease, ack)]


def _timed(name: str, call: Callable[[int], Any], messages: int, batch: int, bar: Bar) -> Row:
    took: list[float] = []
    for done in range(0, messages, batch):
        began = time.perf_counter()
        call(min(batch, messages - done))
        took.append(time.perf_counter() - began)
        bar(name, done, messages)
    total_s = sum(took)
    return {
        "operation": name,
        "per_s": round(messages / total_s),
        "calls": len(took),
        "mean_call_ms": 1000 * total_s / len(took),
        "slowest_call_ms": 1000 * max(took),
        "total_s": total_s,
    }
