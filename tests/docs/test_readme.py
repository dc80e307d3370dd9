"""The README is short, its table comes from the code, and every link of every page leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock import __version__
from tests.docs import capability_table
from tests.docs.pages import DOCS, PAGES, README, ROOT, links

DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))


def anchors(page: Path) -> set[str]:
    """The names that headings can be linked by."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_table_of_capabilities_is_what_the_code_says() -> None:
    assert capability_table.stored() == capability_table.table(), (
        "write it anew: python -m tests.docs.capability_table"
    )


def test_the_readme_starts_with_a_sentence_and_two_commands() -> None:
    text = README.read_text()
    assert text.index("make demo") < text.index("make test") < text.index("import penstock")


def test_the_figures_of_the_readme_are_those_of_the_performance_page() -> None:
    readme, page = README.read_text(), (ROOT / "docs/performance.md").read_text()
    figures = re.findall(r"\| (?:enqueue|lease|ack) \| ([\d,]+) \| ([\d.]+) \|", readme)
    assert len(figures) == 3
    assert all(f"{rate} | {ratio}" in page for rate, ratio in figures)
    assert "<!-- figures" not in readme


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_its_four_parts_and_is_listed(page: Path) -> None:
    parts = re.findall(r"^\*\*(\w+)\.\*\*", page.read_text(), re.MULTILINE)
    assert parts == ["Context", "Decision", "Reason", "Consequence"]
    assert page.name in links(DOCS / "decisions" / "README.md")


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))


def test_the_changelog_has_this_version() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
