"""What the tests read out of the documentation: fenced blocks, tables, links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
_TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line that it starts on."""

    language: str
    text: str
    line: int


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text()
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start(2)))
        for match in _FENCE.finditer(text)
        if match[1] == language
    ]


def section(page: Path, heading: str) -> str:
    """The text under a heading, up to the next heading of any level."""
    text = _without_fences(page.read_text())
    match = re.search(rf"^#+ {re.escape(heading)}$\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"{page.name} has no heading {heading!r}"
    return match[1]


def table(page: Path, heading: str, which: int = 0) -> list[dict[str, str]]:
    """The rows of a table under a heading, the first if not said, without the backquotes of their cells."""
    header, _, *rows = _TABLE.findall(section(page, heading))[which].splitlines()
    return [dict(zip(_cells(header), _cells(row), strict=True)) for row in rows]


def links(page: Path) -> list[str]:
    return _LINK.findall(_without_fences(page.read_text()))


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]


def _without_fences(text: str) -> str:
    return _FENCE.sub("", text)
