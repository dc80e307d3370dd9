"""Tables on a terminal: which columns fit, how wide each is, and what stands in for a table that does not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli.rows import Row
from penstock.cli.text import neutral

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

GAP_CHARS = 2
FLEXIBLE_MIN_CHARS = 12
FOLDED_MIN_CHARS = 20
#: A word that is longer than this may be broken: a path, but never an id.
WORD_CHARS = 40


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, and what it shows of a row.

    Numbers, ids and kinds are never cut. On a narrow terminal whole columns go, then the table itself.
    """

    title: str
    show: Callable[[Row], str]
    right: bool = False
    style: str | Callable[[Row], str] = ""
    flexible: bool = False
    """May be cut to make the table fit on the screen."""
    fold_chars: int = 0
    """Has several lines instead, for so many characters: sentences that must be read to their end."""
    drop: int = 0
    """Left out where the table does not fit, the highest number first; 0: never."""

    def style_of(self, row: Row) -> str:
        return self.style if isinstance(self.style, str) else self.style(row)

    def least_chars(self, width: int, word: int) -> int:
        """What it needs at least, of what its widest cell and its longest word would take."""
        if self.fold_chars:
            return min(width, max(FOLDED_MIN_CHARS, min(word, WORD_CHARS)))
        return min(width, FLEXIBLE_MIN_CHARS) if self.flexible else width


class Layout:
    """How much room the columns of one table need; it grows with the rows that come."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns
        self.widths = [len(column.title) for column in columns]
        self._words = list(self.widths)

    def cells(self, rows: Sequence[Row]) -> list[list[str]]:
        """What the rows show; from now on there is room for it."""
        from rich.cells import cell_len

        found = [[neutral(column.show(row)) for column in self.columns] for row in rows]
        for line in found:
            for at, text in enumerate(line):
                self.widths[at] = max(self.widths[at], cell_len(text))
                if self.columns[at].fold_chars:
                    self._words[at] = max([self._words[at], *map(cell_len, text.split())])
        return found

    def fitted(self, screen_chars: int) -> dict[int, int]:
        """Column -> width of those that fit on the screen; nothing if the rest does not fit either."""
        least = {
            at: column.least_chars(self.widths[at], self._words[at]) for at, column in enumerate(self.columns)
        }
        while (spare := screen_chars - sum(least.values()) - GAP_CHARS * (len(least) - 1)) < 0:
            highest = max(self.columns[at].drop for at in least)
            if not highest:
                return {}
            least = {at: width for at, width in least.items() if self.columns[at].drop != highest}
        return least | self._shared(least, spare)

    def _shared(self, least: dict[int, int], spare: int) -> dict[int, int]:
        """Who can use more gets it, those that need little first."""
        wanting = sorted((self.widths[at] - width, at) for at, width in least.items())
        found = {}
        for done, (wanted, at) in enumerate(wanting):
            more = min(wanted, spare // (len(wanting) - done))
            found[at] = least[at] + more
            spare -= more
        return found


def terminal_table(
    rows: Sequence[Row], layout: Layout, headed: Sequence[int] = ()
) -> tuple[RenderableType, Sequence[int]]:
    """Rows for a terminal, and the columns that are shown: none, if each row is a list of its fields.

    `headed` are the columns that stand above already: the same ones need no new heading.
    """
    from rich.table import Table
    from rich.text import Text

    cells = layout.cells(rows)
    widths = layout.fitted(shutil.get_terminal_size().columns)
    if not widths:
        return Text("\n\n").join(stacked(row, layout.columns) for row in rows), ()
    shown = tuple(widths)
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, GAP_CHARS, 0, 0),
        header_style="bold",
        show_header=shown != tuple(headed),
    )
    for at, width in widths.items():
        column = layout.columns[at]
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.fold_chars,
            overflow="fold" if column.fold_chars else "ellipsis",
            width=width,
        )
    for row, line in zip(rows, cells, strict=True):
        table.add_row(*(_cell(line[at], layout.columns[at], row) for at in shown))
    return table, shown


def rich_table(rows: Sequence[Row], columns: Sequence[Column]) -> RenderableType:
    """All rows at once."""
    return terminal_table(rows, Layout(columns))[0]


def _cell(text: str, column: Column, row: Row) -> Text:
    from rich.text import Text

    if column.fold_chars and len(text) > column.fold_chars:
        text = text[: column.fold_chars - 1] + "…"
    return Text(text, column.style_of(row))


def stacked(row: Row, columns: Sequence[Column]) -> Text:
    """One row where a table has no room: a line for each column that has something to show."""
    from rich.text import Text

    filled = [(column, text) for column in columns if (text := neutral(column.show(row)))]
    width = max((len(column.title) for column, _ in filled), default=0)
    return Text("\n").join(
        Text.assemble((column.title.ljust(width + GAP_CHARS), "dim"), _cell(text, column, row))
        for column, text in filled
    )
