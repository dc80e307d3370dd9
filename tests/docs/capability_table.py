"""The README's table of backends and capabilities, from the code: `python -m tests.docs.capability_table`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import penstock
from penstock.backends.redis.capabilities import LISTS, LISTS_CLUSTER, STREAMS, STREAMS_CLUSTER
from penstock.backends.registry import BUILT_IN
from penstock.capabilities import MEANING, Capabilities
from tests.docs.pages import README

START, END = "<!-- capabilities: start -->", "<!-- capabilities: end -->"


def capabilities() -> dict[str, Capabilities]:
    """What each built-in engine says of itself, once it is open."""
    # On servers that keep a log.
    found = {
        "redis+lists": LISTS,
        "redis+lists on a cluster": LISTS_CLUSTER,
        "redis+streams": STREAMS,
        "redis+streams on a cluster": STREAMS_CLUSTER,
    }
    with tempfile.TemporaryDirectory() as folder:
        for engine in BUILT_IN.keys() - found.keys():
            url = f"{engine}:{Path(folder, engine)}" if engine != "memory" else "memory:"
            with penstock.open(url, clock=penstock.ManualClock()) as ps:
                found[engine] = ps.info().default.capabilities
    return dict(sorted(found.items()))


def table() -> str:
    engines = capabilities()
    lines = [
        f"| capability | {' | '.join(engines)} | what it promises |",
        f"| --- |{' :-: |' * len(engines)} --- |",
    ]
    for flag, (promise, _) in MEANING.items():
        marks = ["✓" if getattr(flags, flag) else "–" for flags in engines.values()]
        lines.append(f"| `{flag}` | {' | '.join(marks)} | {promise} |")
    return "\n".join(lines)


def stored() -> str:
    """The table as the README has it."""
    return README.read_text().partition(START)[2].partition(END)[0].strip("\n")


def rewrite() -> None:
    before, _, rest = README.read_text().partition(START)
    after = rest.partition(END)[2]
    README.write_text(f"{before}{START}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    rewrite()
