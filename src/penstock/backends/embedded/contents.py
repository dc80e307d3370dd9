"""What is in the messages that a lease has taken: as they were kept with their rows, or their bodies."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.lanes import Lane, ReadyRow, WholeRow
from penstock.backends.embedded.queue_state import QueueState
from penstock.codec.body import FIXED, FIXED_BYTES, Variable, decode_variable

#: A body, or the row if that has the whole message.
Content = bytes | WholeRow

#: From so many bodies on, neighbours are read by one scan instead of one look-up each.
SCAN_FROM = 8
#: Bodies of others that such a scan passes over before the first that it seeks, and how large one may be.
PASSED_OVER_AT_MOST = 8
PASSED_OVER_BYTES = 4096


def contents(engine: Engine, q: QueueState, taken: list[tuple[Lane, ReadyRow]]) -> list[Content | None]:
    """What was taken: as it was kept, or its body from the store."""
    kept: list[Content | None] = [row[2] if row[3] is None else row for _, row in taken]
    if all(kept):
        return kept
    if not any(kept):
        return [*_read_bodies(engine, q, [row[0][-16:] for _, row in taken])]
    read = iter(_read_bodies(engine, q, [row[0][-16:] for _, row in taken if row[2] is None]))
    return [next(read) if content is None else content for content in kept]


def throttle_keys(content: Content) -> Sequence[str]:
    if isinstance(content, tuple):
        return ()
    length = FIXED.unpack_from(content)[-1]
    variable: Variable = decode_variable(content[FIXED_BYTES : FIXED_BYTES + length])
    return variable[2]


def _read_bodies(engine: Engine, q: QueueState, ids: list[bytes]) -> list[bytes | None]:
    """Bodies in order: by one scan as far as the ids are neighbours, by look-ups where they are not."""
    sought = [q.prefix + raw_id for raw_id in ids]
    if len(ids) < SCAN_FROM:
        return engine.kv.get_many(sought, engine.messages)
    found = _neighbours(engine, sought)
    if len(found) < len(sought):
        missing = sorted([key for key in sought if key not in found])
        found.update(zip(missing, engine.kv.get_many(missing, engine.messages), strict=True))
    return [found[key] for key in sought]


def _neighbours(engine: Engine, sought: list[bytes]) -> dict[bytes, bytes | None]:
    """Bodies by a walk from the first of these keys, for as long as most of what it meets is sought.

    Keys take turns, so that what is leased together was mostly enqueued together, if not in this order.
    """
    found: dict[bytes, bytes | None] = {}
    wanted = set(sought)
    allowance = PASSED_OVER_AT_MOST
    for key, body in engine.kv.scan(engine.messages, min(sought), max(sought) + b"\0"):
        if key in wanted:
            found[key] = body
            allowance += 1
        elif not allowance or len(body) > PASSED_OVER_BYTES:
            break
        else:
            allowance -= 1
    return found
