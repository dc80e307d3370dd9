"""The scripts that run on the server: one Lua file an operation, behind the parts that it names."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from penstock.backends.redis.connecting import Script

#: Scripts that only read, or whose changes happen again by themselves.
READING = frozenset(
    ("audit", "dead", "due", "events", "lanes", "list", "look", "stats", "sweep", "world_trim")
)

_PARTS = re.compile(r"^--:((?: [a-z]+)+)$", re.MULTILINE)


#: Parts that there are several of: one for each way to keep bodies.
OF_STORE = frozenset(("bodies", "scan", "views"))


@cache
def script(name: str, store: str = "hash") -> Script:
    """An operation by its file's name. `--: part …` in it says which parts besides the core go before it.

    `store` is where bodies are, `hash` or `stream`: no operation is written twice for it.
    """
    text = _file(f"{name}.lua")
    found = _PARTS.search(text)
    parts = ["core", *(found[1].split() if found else ())]
    files = [f"_{part}_{store}.lua" if part in OF_STORE else f"_{part}.lua" for part in parts]
    whole = "\n".join([*map(_file, files), text])
    return Script(name, whole.encode(), is_confirmed=name not in READING)


def _file(name: str) -> str:
    return (resources.files("penstock.backends.redis") / "lua" / name).read_text(encoding="utf-8")
