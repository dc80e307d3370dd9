"""penstock journal: append to, scan, and configure journals of your own (worlds)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli import values
from penstock.cli.columns import ENTRIES, content, field, listed, number, when
from penstock.cli.command import Group, command
from penstock.cli.consume import given
from penstock.cli.events import PAGE, stream
from penstock.cli.exits import Exit
from penstock.cli.feed import EntryLine, argument_bytes, unreadable
from penstock.cli.options import Every, Follow, Since, Until
from penstock.cli.output import StreamedTable
from penstock.cli.progress import Bar
from penstock.cli.rows import row
from penstock.cli.session import Session
from penstock.cli.tables import Column
from penstock.cli.text import size

if TYPE_CHECKING:
    from penstock import Entry

app = typer.Typer(
    cls=Group, no_args_is_help=True, add_completion=False, help="Append to and scan journals of your own."
)

_BATCH = 500
World = Annotated[
    str, typer.Argument(metavar="WORLD", help="The journal; it comes into being with its first entry.")
]
Labels = Annotated[
    list[str] | None, typer.Option("--label", "-l", help="A label; repeatable.", show_default=False)
]
Flags = Annotated[list[str] | None, typer.Option("--flag", help="A flag; repeatable.", show_default=False)]

_ENTRY = (
    Column("id", field("id"), style="bold"),
    Column("world", field("world")),
    Column("seq", field("seq")),
    Column("at", when("at_ns")),
    Column("kind", field("kind"), style="cyan"),
    Column("labels", listed("labels")),
    Column("flags", listed("flags")),
    Column("vector", listed("vector")),
    Column("body", content("body"), style="cyan"),
)
_STATS = (
    Column("world", field("world"), style="bold"),
    Column("entries", number("entries")),
    Column("vectors", number("vectors")),
    Column("first seq", number("first_seq")),
    Column("last seq", number("last_seq")),
    Column("size", lambda found: size(found["bytes"])),
)


@command(app, "append")
def append(
    session: Session,
    world: World,
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="What kind of entry it is.")] = None,
    body: Annotated[
        str | None, typer.Argument(metavar="[BODY]", help="Its body; - reads standard input.")
    ] = None,
    labels: Labels = None,
    flags: Flags = None,
    vector: Annotated[
        str | None, typer.Option("--vector", metavar="X,Y,…", help="Numbers that go with it.")
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl",
            help="Read objects from standard input: kind, body or body_base64, labels, flags, vector.",
        ),
    ] = False,
) -> Exit:
    """Append an entry, or with --jsonl many; each batch of 500 is stored whole or not at all."""
    from penstock import Entry

    if jsonl == (kind is not None):
        raise typer.BadParameter("give a KIND, or --jsonl and the entries on standard input")
    if kind is not None:
        content_ = b"" if body is None else argument_bytes(body)
        entries: Iterator[Entry] = iter([Entry(kind, content_, labels or [], flags or [], _vector(vector))])
    else:
        entries = _entries()
    written = 0
    with session.open() as ps, Bar() as bar:
        journal = ps.journal(world)
        while batch := [entry for _, entry in zip(range(_BATCH), entries, strict=False)]:
            for entry_id in journal.append(batch):
                written += 1
                session.out.object({"id": entry_id}) if session.out.as_json else session.out.say(entry_id)
            bar("append", written, 0)
    if not written:
        session.out.note("nothing was read, nothing appended")
    return Exit.DONE if written else Exit.NOTHING


def _vector(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter("--vector takes numbers with commas between them, such as 0.1,0.9") from None


def _entries() -> Iterator[Entry]:
    for at, line in enumerate(sys.stdin.buffer, start=1):
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(line, type=EntryLine).entry()
        except (msgspec.DecodeError, ValueError) as error:
            raise typer.BadParameter(
                f"line {at} of standard input: {unreadable(error)}; what precedes its batch is stored"
            ) from None


@command(app, "scan")
def scan(
    session: Session,
    world: World,
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", help="Any of these; repeatable.", show_default=False)
    ] = None,
    labels: Labels = None,
    flags: Flags = None,
    since: Since = None,
    until: Until = None,
    after: Annotated[int, typer.Option("--after", min=0, metavar="SEQ", help="Only after this number.")] = 0,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="At most so many; else all.")
    ] = None,
    follow: Follow = False,
    every_s: Every = 0.5,
) -> Exit:
    """Show entries in the order of their appending: any of the kinds, all of the labels and flags."""
    with session.open() as ps:
        journal = ps.journal(world)

        def page(after: int) -> tuple[Sequence[Entry], int]:
            last_seq = journal.stats()["last_seq"]
            found = journal.scan(
                kinds or (), labels or (), flags or (), since=since, until=until, limit=PAGE, after=after
            )
            return found, last_seq

        table = StreamedTable(session.out, ENTRIES)
        shown = stream(table, page, after, limit, again_s=every_s if follow else None)
    if not shown:
        session.out.note(f"no such entries in world {world!r}")
    return Exit.DONE if shown else Exit.NOTHING


@command(app, "get")
def get(
    session: Session,
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Entry ids; - reads them from standard input.")
    ],
) -> Exit:
    """Show entries by id, whichever world they are in."""
    wanted = list(given(ids, "id"))
    with session.open() as ps:
        found = ps.get_entries(wanted)
    for entry_id, entry in zip(wanted, found, strict=True):
        if entry is None:
            session.out.note(f"entry {entry_id} is not there: never appended, or removed since")
        else:
            session.out.record(row(entry), _ENTRY)
    return Exit.DONE if found and all(found) else Exit.NOTHING


@command(app, "stats")
def stats(session: Session, world: World) -> None:
    """Show how many entries a world has, and their size."""
    with session.open() as ps:
        session.out.record({"world": world, **ps.journal(world).stats()}, _STATS)


@command(app, "configure")
def configure(
    session: Session,
    world: World,
    retention_s: Annotated[
        Any,
        typer.Option(
            "--retention",
            metavar="DURATION",
            parser=values.or_none(values.duration),
            help="How long entries are kept; none: for ever.",
            show_default=False,
        ),
    ] = None,
    max_bytes: Annotated[
        Any,
        typer.Option(
            "--max-bytes",
            metavar="SIZE",
            parser=values.or_none(values.size),
            help="The most that they take up; none: no limit.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Set how much of a world is kept; what is not named has no limit. The world may be yet to come."""
    named = values.settled({"retention_s": retention_s, "max_bytes": max_bytes})
    if not named:
        raise typer.BadParameter("nothing to set; name --retention or --max-bytes, none for no limit")
    retention_s, max_bytes = named.get("retention_s"), named.get("max_bytes")
    with session.open() as ps:
        ps.journal(world).configure(retention_s, max_bytes)
    if session.out.as_json:
        session.out.object({"world": world, "retention_s": retention_s, "max_bytes": max_bytes})
    session.out.say(f"world {world!r} configured")
