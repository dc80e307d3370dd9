"""What is in the messages that a lease has taken: as they were kept with their rows, or their bodies."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.lanes import Lane, ReadyRow, WholeRow
from penstock.backends.embedded.queue_state import QueueState
from penstock.codec.body import FIXED, FIXED_BYTES, Variable, decode_variable

#: A body, or the row if that has the whole message.
Content = bytes | WholeRow


def contents(engine: Engine, q: QueueState, taken: list[tuple[Lane, ReadyRow]]) -> list[Content | None]:
    """What was taken: as it was kept, or its body from the store."""
    kept: list[Content | None] = [row[2] if row[3] is None else row for _, row in taken]
    if all(kept):
        return kept
    prefix = q.prefix
    if not any(kept):
        return [*engine.ahead.bodies(q, [prefix + row[0][-16:] for _, row in taken], len(taken))]
    sought = [prefix + row[0][-16:] for _, row in taken if row[2] is None]
    read = iter(engine.ahead.bodies(q, sought, len(taken)))
    return [next(read) if content is None else content for content in kept]


def throttle_keys(content: Content) -> Sequence[str]:
    if isinstance(content, tuple):
        return ()
    length = FIXED.unpack_from(content)[-1]
    variable: Variable = decode_variable(content[FIXED_BYTES : FIXED_BYTES + length])
    return variable[2]
