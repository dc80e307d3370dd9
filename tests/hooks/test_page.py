"""What docs/hooks.md says of scripts, and of the limits on them, is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from penstock.config import HookSettings
from penstock.hooks import child, scripts, wire
from penstock.hooks.breaker import MOST_STOPS, REST_NS, WITHIN_NS
from penstock.hooks.pool import MOST_MESSAGES
from penstock.settings import MAX_SCRIPT_BYTES
from tests.docs.pages import DOCS, blocks, section
from tests.hooks.hostile import CHANGES, STOPPED
from tests.hooks.running import enqueued, on_enqueue, running
from tests.hooks.test_scripts import REACHABLE

PAGE = DOCS / "hooks.md"
SANDBOX = Path(wire.__file__).parent / "sandbox.lua"


def rows(heading: str) -> dict[str, str]:
    """First cell -> second cell, of the first table under a heading."""
    found = re.findall(r"^\| ([^|]+) \| ([^|]*) \|$", section(PAGE, heading), re.MULTILINE)
    return {first.strip(): second.strip() for first, second in found}


def test_the_page_lists_exactly_what_scripts_can_reach() -> None:
    listed = rows("What scripts can reach")
    names = {name: set(re.findall(r"`(\w+)`", listed[cell])) for name, cell in CELLS.items()}
    libraries = {"string", "table", "math", "utf8", "penstock"}
    assert names[""] == set(REACHABLE[""].split()) - libraries
    for library in libraries - {"penstock"}:
        assert names[library] == set(REACHABLE[library].split())
    assert {name for cell in listed for name in re.findall(r"penstock\.(\w+)\(", cell)} == set(
        REACHABLE["penstock"].split()
    )


CELLS = {"": "functions", "string": "`string`", "table": "`table`", "math": "`math`", "utf8": "`utf8`"}


def test_the_page_lists_every_field_that_can_be_set_and_no_other() -> None:
    settable = {
        name
        for cell, what in rows("on_enqueue").items()
        if "can be set" in what
        for name in re.findall(r"`(\w+)`", cell)
    }
    (names,) = re.findall(r'message_type\("(\w[^"]*)"', SANDBOX.read_text())
    assert settable == set(names.split(", "))


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    text = PAGE.read_text()
    defaults = HookSettings()
    for number in (
        f"{defaults.time_limit_ms} ms of processor time",
        f"{defaults.memory_limit // 2**20} MiB of memory",
        f"stopped {MOST_STOPS} times within a minute",
        f"not run for {REST_NS // 10**9} seconds",
        f"more than {wire.MOST_PAYLOAD_BYTES // 1024} KiB of them",
        f"a value may have {scripts.MOST_STATE_BYTES // 1024} KiB",
        f"up to {MOST_MESSAGES} at a time",
        f"the {child.MOST_SCRIPTS} scripts that were run last",
        f"cut after {re.findall('MOST_TEXT_BYTES = (.*)', SANDBOX.read_text())[0]} bytes",
    ):
        assert number in text, number
    assert WITHIN_NS == 60 * 10**9
    assert "at most 64 KiB" in (DOCS / "configuration.md").read_text()
    assert MAX_SCRIPT_BYTES == 64 * 1024


def test_there_are_more_hostile_scripts_than_were_asked_for() -> None:
    assert len(STOPPED) >= 60
    assert len(CHANGES) >= 30


def test_the_example_of_the_command_line_answers_what_the_page_shows(tmp_path: Path) -> None:
    (example,) = blocks(PAGE, "console")
    command, _, shown = example.text.removeprefix("$ ").partition("\n")
    text = re.search(r"function on_enqueue.*?\n      end\n", blocks(PAGE, "yaml")[0].text, re.DOTALL)
    assert text is not None
    (tmp_path / "tenants.lua").write_text(text[0])
    done = subprocess.run(
        ["bash", "-c", command.replace("penstock", f"{sys.executable} -m penstock", 1)],
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.decode() == shown


def test_the_code_has_the_same_answers_on_both_sides() -> None:
    """What Lua writes as numbers, Python reads by name."""
    from penstock.hooks import child

    text = SANDBOX.read_text()
    names, numbers = re.search(r"local (REFUSED.*?) = ([\d, ]+)", text).groups()  # type: ignore[union-attr]
    pairs = zip(names.split(", "), map(int, numbers.split(", ")), strict=True)
    for name, number in pairs:
        assert getattr(child, name) == number
    assert f"\\x96\\x{child.RETRY:02x}" in text
    assert f"\\x98\\x{child.CHANGED:02x}" in text
    assert f"{child.LENGTH.format}" == "<I"


def test_pairs_of_headers_are_all_of_them() -> None:
    from penstock import NewMessage

    with running() as opened:
        script = on_enqueue("local n = 0 for _ in pairs(message.headers) do n = n + 1 end message.weight = n")
        (found,) = enqueued(opened, script, NewMessage(headers={str(n): "x" for n in range(40)}))
        assert found.weight == 40
