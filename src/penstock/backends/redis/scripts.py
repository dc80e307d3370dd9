"""The scripts that run on the server: one Lua file an operation, behind the parts that it names."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from importlib import resources

from penstock.backends.redis.connecting import Script

#: Scripts that only read, or whose changes happen again by themselves.
READING = frozenset(
    ("audit", "dead", "due", "events", "keeper", "lanes", "list", "look", "stats", "sweep", "world_trim")
)

_PARTS = re.compile(r"^--:((?: [a-z]+)+)$", re.MULTILINE)


#: Parts that there are several of: one for each way to keep bodies.
OF_STORE = frozenset(("bodies", "lines", "redriving", "renewing", "scan", "views"))


@cache
def script(name: str, store: str = "hash") -> Script:
    """An operation by its file's name. `store` is where bodies are, `hash` or `stream`."""
    return Script(name, lean(written(name, store)).encode(), is_confirmed=name not in READING)


def written(name: str, store: str) -> str:
    """An operation as we write it. `--: part …` in it says which parts besides the core go before it.

    No operation is written twice for where bodies are.
    """
    text = _file(f"{name}.lua")
    found = _PARTS.search(text)
    parts = ["core", *(found[1].split() if found else ())]
    files = [f"_{part}_{store}.lua" if part in OF_STORE else f"_{part}.lua" for part in parts]
    return "\n".join([*map(_file, files), text])


#: Names of numbers, on a line of their own: `local DELAYED, LEASED = 5, 6`. Of others, `OF_QUEUE + 1` too.
_CONSTANTS = re.compile(
    r"^local ([A-Z][A-Z0-9_]*(?:, [A-Z][A-Z0-9_]*)*) =\s+([-+A-Z0-9_a-z, ]+)$", re.MULTILINE
)
_VALUE = re.compile(r"true|false|-?\d+|([A-Z][A-Z0-9_]*)(?: \+ (\d+))?")
#: A text or a comment, in which nothing is a name; or a name.
_NAME = re.compile(r"'(?:\\.|[^'\\])*'|--[^\n]*|\b[A-Z][A-Z0-9_]*\b")
#: A function as all of ours are written: on one line, or until the first `end` that begins one.
_FUNCTION = re.compile(r"^local function (\w+)\((?:[^\n]* end|[^\n]*\n(?:[^\n]*\n)*?end)\n", re.MULTILINE)


def lean(text: str) -> str:
    """The same script without what makes each call of it dearer; its lines keep their numbers.

    A server runs the whole text each time: every function in it is made anew, with a search for each name
    outside of it that it uses. So names of numbers become the numbers, and functions that nobody calls go.
    """
    values: dict[str, str] = {}

    def take(found: re.Match[str]) -> str:
        names = found[1].split(", ")
        given = [_value(one, values) for one in found[2].split(", ")]
        if len(names) != len(given) or None in given:
            return found[0]
        for name, value in zip(names, given, strict=True):
            if values.setdefault(name, value or "") != value:
                raise ValueError(f"{name} is {values[name]} and {value} in one script; give one another name")
        return "\n" * found[0].count("\n")

    text = _CONSTANTS.sub(take, text)
    text = _NAME.sub(lambda found: "" if found[0][:2] == "--" else values.get(found[0], found[0]), text)
    return _without_unused(text)


def _value(text: str, values: dict[str, str]) -> str | None:
    found = _VALUE.fullmatch(text)
    if found is None or (found[1] and found[1] not in values):
        return None
    return str(int(values[found[1]]) + int(found[2] or 0)) if found[1] else text


def _without_unused(text: str) -> str:
    while True:
        used = Counter(re.findall(r"\w+", text))
        unused = {
            found[0]
            for found in _FUNCTION.finditer(text)
            if used[found[1]] == len(re.findall(rf"\b{found[1]}\b", found[0]))
        }
        if not unused:
            return text
        for one in unused:
            text = text.replace(one, "\n" * one.count("\n"))


def _file(name: str) -> str:
    return (resources.files("penstock.backends.redis") / "lua" / name).read_text(encoding="utf-8")
