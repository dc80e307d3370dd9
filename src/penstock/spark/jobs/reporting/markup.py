"""Pieces of a page: texts that cannot be anything but texts, tables with bars in them, legends, sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Generic, NamedTuple, TypeVar

from penstock.cli.text import neutral

R = TypeVar("R")

#: Of a name or reason, so much is shown; all of it where the pointer is.
SHOWN_CHARS = 80


def text(value: str) -> str:
    """Harmless in HTML, and unable to turn around or hide what stands beside it."""
    return escape(neutral(value))


def named(name: str, nameless: str = "(none)") -> str:
    """A name, cut if it is long."""
    if not name:
        return f'<span class="faint">{escape(nameless)}</span>'
    full = text(name)
    if len(name) <= SHOWN_CHARS:
        return f"<bdi>{full}</bdi>"
    return f'<bdi title="{full}">{text(name[:SHOWN_CHARS])}…</bdi>'


class Column(NamedTuple, Generic[R]):
    """One column of a table: what a row has in it, as HTML."""

    title: str
    cell: Callable[[R], str]
    is_number: bool = True


def table(rows: Sequence[R], columns: Sequence[Column[R]]) -> str:
    head = "".join(f"<th{_align(column)}>{escape(column.title)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{_align(column)}>{column.cell(row)}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _align(column: Column[R]) -> str:
    return ' class="number"' if column.is_number else ""


def bar(part: float, mark: float | None = None) -> str:
    """A part of a whole as a bar; `mark` is where it should end."""
    tick = "" if mark is None else f'<i class="tick" style="left:{_percent(mark)}"></i>'
    return f'<span class="bar"><i style="width:{_percent(part)}"></i>{tick}</span>'


def _percent(part: float) -> str:
    return f"{100 * min(1.0, max(0.0, part)):.1f}%"


def legend(names: Iterable[tuple[str, int]]) -> str:
    """What the colours stand for; names are users', too."""
    items = "".join(f'<li class="s{colour}">{named(name)}</li>' for name, colour in names)
    return f'<ul class="legend">{items}</ul>'


def section(anchor: str, title: str, reading: str, *content: str) -> str:
    """`reading` says how to read what follows."""
    return (
        f'<section id="{anchor}"><h2>{escape(title)}</h2><p class="reading">{escape(reading)}</p>'
        + "".join(content)
        + "</section>"
    )


def nothing(why: str) -> str:
    return f'<p class="nothing">{escape(why)}</p>'


def card(title: str, value: str, note: str = "") -> str:
    small = f"<small>{escape(note)}</small>" if note else ""
    return f"<div><dt>{escape(title)}</dt><dd>{escape(value)}{small}</dd></div>"
