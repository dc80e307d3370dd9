"""The required cursors of an archive: opened before anything is read, moved when what was read is durable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from penstock.errors import QueueNotFound
from penstock.penstock import Penstock


def cursor_positions(ps: Penstock, names: Iterable[str], cursor: str) -> dict[str, int]:
    """Of the queues that have the required cursor, how far it is."""
    found = {}
    for name in names:
        with suppress(QueueNotFound):  # Deleted just now.
            for one in ps.queue(name).cursors():
                if one.name == cursor and one.required:
                    found[name] = one.position
    return found


def open_cursors(ps: Penstock, names: Iterable[str], cursor: str) -> None:
    for name in names:
        with suppress(QueueNotFound):
            ps.queue(name).cursor(cursor, required=True)


def move_cursors(ps: Penstock, positions: Mapping[str, int], cursor: str) -> None:
    """Everything up to there is archived and on disk.

    Cursors that a queue does not have are not made: it is another queue, deleted and made anew since.
    """
    for name, at in cursor_positions(ps, positions, cursor).items():
        if at != positions[name]:
            with suppress(QueueNotFound):
                ps.queue(name).cursor(cursor, required=True).commit(positions[name])
