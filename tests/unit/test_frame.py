"""Rules of the source tree that no linter knows."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MAX_LINES = 500
DRAWERS = {"utils", "helpers", "common", "manager"}


def relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def opens_with_docstring(path: Path) -> bool:
    body = ast.parse(path.read_bytes()).body
    return bool(body) and body[0].lineno == 1 and isinstance(ast.get_docstring(ast.Module(body, [])), str)


def test_there_are_sources_to_judge() -> None:
    assert ROOT / "src" / "penstock" / "__init__.py" in SOURCES


def test_no_source_file_is_longer_than_the_limit() -> None:
    assert relative([path for path in SOURCES if len(path.read_bytes().splitlines()) > MAX_LINES]) == []


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    assert relative([path for path in SOURCES if DRAWERS & {path.stem, path.parent.name}]) == []


def test_every_source_file_opens_with_a_line_that_says_what_it_owns() -> None:
    assert relative([path for path in SOURCES if not opens_with_docstring(path)]) == []


def test_the_lock_names_no_host_and_no_place_on_a_machine() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert [line for line in lines if "://" in line or " /" in line] == []


def test_every_locked_package_is_pinned_and_hashed() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [number for number, line in enumerate(lines) if line and line[0] not in "# "]
    assert pins
    assert [lines[n] for n in pins if "==" not in lines[n] or "--hash=" not in lines[n + 1]] == []
