"""Which calls there are, how their arguments and answers travel, and which may be made twice."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from penstock.backends.base import GroupedBackend, QueueBackend
from penstock.backends.bulk import BulkBackend
from penstock.codec.answer import decoder, encode_answer, escaped
from penstock.errors import InvalidMessage

#: What may be asked again without a record of the first answer: it changes nothing, or twice is as once.
REPEATABLE = frozenset(
    {
        "queues",
        "queue",
        "get_many",
        "peek",
        "page",
        "stats",
        "key_stats",
        "due",
        "events",
        "read_cursor",
        "cursors",
        "scan_entries",
        "get_entries",
        "world_stats",
        "get_state",
        "get_throttle",
        "throttles",
        "info",
        "health",
        "check",
        "reindex",
        "quarantine",
        "quarantine_get",
        "metrics",
        "rekey",
        "sweep",
        "groups",
        "group_line",
        "create_group",
        "take_snapshot",
        "begin_write",
        "commit_write",
        "abort_write",
    }
)

#: Not forwarded: each process closes its own.
_OWN = {"close"}


class Unreadable(InvalidMessage):
    """The other side did not find in the arguments what the call takes."""


def _holds_struct(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return True
    return any(_holds_struct(part) for part in getattr(hint, "__args__", ()))


class Method:
    """How the arguments and the answer of one of the backend's calls are read again."""

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        # Structures become what they were. Anything else is taken as it comes: judging it is the backend's.
        kinds = tuple(
            hints[p.name] if _holds_struct(hints[p.name]) else Any
            for p in parameters
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "progress"
        )
        self.arguments = decoder(tuple[kinds] if kinds else tuple[()])  # type: ignore[valid-type]
        self.answer = decoder(hints["return"])

    def decode_arguments(self, raw: msgspec.Raw) -> tuple[Any, ...]:
        try:
            arguments: tuple[Any, ...] = self.arguments.decode(raw)
        except msgspec.ValidationError as error:
            raise Unreadable(f"arguments of another kind than the call takes: {error}") from error
        return arguments


METHODS = {
    name: Method(function)
    for name, function in {**vars(QueueBackend), **vars(GroupedBackend), **vars(BulkBackend)}.items()
    if inspect.isfunction(function) and not name.startswith("_") and name not in _OWN
}

decode_error = decoder(tuple[str, Any, dict[str, Any]]).decode
decode_receipts = decoder(list[str]).decode


def encoded(method: str, *parts: Any) -> bytes:
    """A call as it travels: its arguments, and what else goes with them."""
    try:
        return encode_answer(parts)
    except (UnicodeEncodeError, OverflowError):
        pass
    try:
        return encode_answer(escaped(parts))
    except (UnicodeEncodeError, OverflowError) as error:
        raise Unreadable(f"an argument of {method} cannot be sent: {error}") from error
