"""Limits by throttle key: each that the system journal says is set must have its row."""

from __future__ import annotations

from penstock.backends.embedded.buckets import throttle_key
from penstock.backends.embedded.checking.catalogue import Catalogue
from penstock.backends.embedded.checking.findings import Findings
from penstock.backends.embedded.checking.journals import Walk
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.throttles import THROTTLE_DELETED, THROTTLE_SET
from penstock.backends.embedded.worlds import SYSTEM_WORLD


def check_throttles(view: View, catalogue: Catalogue, findings: Findings) -> None:
    """A row that is lost is a limit that holds nothing back, and nothing else would say so."""
    world = catalogue.worlds.get(SYSTEM_WORLD)
    if world is None:
        return
    last: dict[str, str] = {}
    for entries, _ in Walk(view, SYSTEM_WORLD, world.number, world.base_seq, None).entries():
        for entry in entries:
            if entry.kind in (THROTTLE_SET, THROTTLE_DELETED) and len(entry.labels) == 1:
                last[entry.labels[0]] = entry.kind
    for key, kind in last.items():
        row_key = throttle_key(key)
        if kind == THROTTLE_SET and view.get("meta", row_key) is None:
            findings.row("throttle_missing", f"the limit of {key!r} is not there", "", 0, "meta", row_key)
