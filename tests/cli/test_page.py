"""Every command of docs/cli.md runs, in order, and answers what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.main import COMMANDS
from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "cli.md"

#: What differs from run to run -> what stands for it.
_CHANGING = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID"),
    (r"\b[0-9a-f]{50,}\b", "POSITION"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\b\d{19}\b", "TIME"),
    (r"\w{3} \w{3} +\d+ [\d:]+( [AP]M)? \w+ \d{4}", "TIME"),
    (r'"in_s":[-\d.]+', "IN"),
    (r"in [\d.]+ s \([\d,]+/s\)", "RATE"),
    (r"\b[\d.]+(ms|s|m)\b|\b[\d.,]+ (K|M)?i?B\b|\"journal_bytes\":\d+", "AMOUNT"),
    (r"(?m)^(enqueue|lease|ack) .*$", r"\1"),
    (r" +", " "),
)


def settled(text: str, folder: Path) -> str:
    text = text.replace(f"{folder}/", "").replace(str(folder), ".")
    for pattern, replacement in _CHANGING:
        text = re.sub(pattern, replacement, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def examples() -> list[tuple[str, int, str]]:
    """(command, exit code, what is shown) of every example."""
    found = []
    for block in blocks(PAGE, "console"):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            if "<<'END'" in command:
                document, _, shown = shown.partition("END\n")
                command = f"{command}\n{document}END"
            expected = re.search(r"  # exit (\d+)$", command)
            found.append((command, int(expected[1]) if expected else 0, shown))
    return found


def test_the_examples_run_and_answer_what_the_page_shows(tmp_path: Path) -> None:
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
    }
    for command, code, shown in examples():
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
        answer = done.stdout.decode()
        assert settled(answer, tmp_path) == settled(shown, tmp_path), command
        assert done.returncode == code, command


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_on_the_page(name: str) -> None:
    assert re.search(rf"`{name}[` ]|penstock {name}\b", PAGE.read_text())
