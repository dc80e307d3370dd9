"""Where answers go: tables for people, one JSON object a line for programs, bytes as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.rows import Row
from penstock.cli.tables import Column, Layout, terminal_table
from penstock.cli.text import neutral, neutral_block, neutral_json

if TYPE_CHECKING:
    from rich.console import Console

#: A table is laid out by so many rows at a time, so that a long one streams in bounded memory.
CHUNK_ROWS = 500


class PipeClosed(Exception):
    """Whoever read this output has stopped, as `head` does."""


class Output:
    """Standard output and standard error, as one command uses them."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.is_terminal = sys.stdout.isatty()

    # -- standard output

    def rows(self, rows: Iterable[Row], columns: Sequence[Column], empty: str = "") -> int:
        """All rows, as they come; how many there were. `empty` is said to people if there are none."""
        total = 0
        table = StreamedTable(self, columns)
        for row in rows:
            total += 1
            table.add(row)
        table.flush()
        if not total and empty and not self.as_json:
            self.note(empty)
        return total

    def record(self, row: Row, columns: Sequence[Column]) -> None:
        """One thing, with a line for each column that has something to show."""
        if self.as_json:
            self.object(row)
            return
        shown = [(column, text) for column in columns if (text := column.show(row))]
        width = max((len(column.title) for column, _ in shown), default=0)
        for column, text in shown:
            self._record_line(column.title.ljust(width), text, column.style_of(row))

    def _record_line(self, title: str, text: str, style: str) -> None:
        lines = neutral_block(text).expandtabs().split("\n")
        body = f"\n{' ' * (len(title) + 2)}".join(lines)
        if self.is_terminal:
            from rich.text import Text

            self.console().print(Text.assemble((title, "dim"), "  ", (body, style)), soft_wrap=True)
        else:
            self.write(f"{title}  {body}\n")

    def object(self, row: Row) -> None:
        """One JSON object on a line of its own."""
        line = neutral_json(msgspec.json.encode(row).decode())
        self.write(f"{line}\n")

    def say(self, text: str) -> None:
        """A sentence for people; programs read objects."""
        if not self.as_json:
            self.write(f"{neutral(text)}\n")

    def write(self, text: str) -> None:
        with _pipe():
            sys.stdout.write(text)

    def raw(self, contents: Iterable[bytes]) -> int:
        """Bytes as they are, with nothing between them; how many pieces there were."""
        pieces = 0
        with _pipe():
            sys.stdout.flush()
            for content in contents:
                sys.stdout.buffer.write(content)
                pieces += 1
            sys.stdout.buffer.flush()
        return pieces

    def flush(self) -> None:
        with _pipe():
            sys.stdout.flush()

    def console(self) -> Console:
        """Rich's view of standard output; nothing in a text counts as markup."""
        from rich.console import Console

        return Console(markup=False, emoji=False, highlight=False)

    # -- standard error

    def note(self, text: str) -> None:
        """Something to know that is not the answer."""
        sys.stdout.flush()
        print(neutral(text), file=sys.stderr)


class _pipe:  # noqa: N801  (reads as what it is at `with`)
    """A closed pipe ends the command without a word."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, BrokenPipeError):
            raise PipeClosed from None


class StreamedTable:
    """A table whose rows come one by one; its columns are as wide as its first rows need."""

    def __init__(self, out: Output, columns: Sequence[Column]) -> None:
        self._out = out
        self._rows: list[Row] = []
        self._layout = Layout(columns)
        self._headed: Sequence[int] | None = None
        """The columns that stand under a heading; None before the first rows."""

    def add(self, row: Row) -> None:
        if self._out.as_json:
            self._out.object(row)
            return
        self._rows.append(row)
        if len(self._rows) >= CHUNK_ROWS:
            self.flush()

    def flush(self) -> None:
        """Show what has come so far."""
        if self._rows:
            if self._out.is_terminal:
                self._print_rich()
            else:
                self._print_plain()
            self._rows = []
        self._out.flush()

    def _print_plain(self) -> None:
        from rich.cells import cell_len

        columns, lines = self._layout.columns, self._layout.cells(self._rows)
        if self._headed is None:
            self._headed = range(len(columns))
            lines.insert(0, [column.title.upper() for column in columns])
        for line in lines:
            cells = (
                " " * (width - cell_len(cell)) + cell
                if column.right
                else cell + " " * (width - cell_len(cell))
                for cell, width, column in zip(line, self._layout.widths, columns, strict=True)
            )
            self._out.write("  ".join(cells).rstrip() + "\n")

    def _print_rich(self) -> None:
        console = self._out.console()
        table, self._headed = terminal_table(self._rows, self._layout, self._headed or ())
        with _pipe():
            console.print(table, soft_wrap=not self._headed)
            if not self._headed:
                console.print()
