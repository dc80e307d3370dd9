"""Why a message failed, as text for its reason: a traceback, bounded, that does not repeat the payload."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from penstock.message import Delivery

#: Each failure writes its reason into the journal: enough for a traceback, little beside a payload.
MAX_REASON_BYTES = 4096
_HEAD_BYTES = 1024
#: Shorter values are words that a message may contain by chance.
_SHORTEST_HIDDEN = 6
#: What is compared of a long value: errors of the interpreter quote the first 200 characters.
_COMPARED = 32
_MOST_LINKS = 8
#: No more is written of groups of groups, however many errors they hold: most of it would be left out.
_MOST_CHARACTERS = 65_536

_HERE = str(Path(__file__).parent)
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def explained(error: BaseException, delivery: Delivery) -> str:
    """The traceback from the handler on, its causes included."""
    parts: list[str] = []
    room = _MOST_CHARACTERS
    for part in _chain(error, delivery, _MOST_LINKS):
        parts.append(part)
        room -= len(part)
        if room <= 0:
            break
    return bounded("".join(parts).rstrip())


def bounded(text: str) -> str:
    """Text that a reason can hold: the beginning and the end of what is too long, as UTF-8."""
    raw = text.encode(errors="backslashreplace")
    if len(raw) <= MAX_REASON_BYTES:
        return raw.decode()
    left_out = f"\n… {len(raw) - MAX_REASON_BYTES} bytes and more left out …\n"
    tail_bytes = MAX_REASON_BYTES - _HEAD_BYTES - len(left_out.encode())
    return raw[:_HEAD_BYTES].decode(errors="ignore") + left_out + raw[-tail_bytes:].decode(errors="ignore")


def _chain(error: BaseException, delivery: Delivery, links: int) -> Iterator[str]:
    if links == 0:
        yield "…\n"
        return
    if error.__cause__ is not None:
        yield from _chain(error.__cause__, delivery, links - 1)
        yield _CAUSE
    elif error.__context__ is not None and not error.__suppress_context__:
        yield from _chain(error.__context__, delivery, links - 1)
        yield _CONTEXT
    frames = _frames(error.__traceback__)
    if frames is not None:
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(frames)
    # Only what the error says can repeat the payload: frames show code.
    yield _hidden(_said(error), delivery)
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield "\nOne of them:\n\n"
            yield from _chain(part, delivery, links - 1)


def _said(error: BaseException) -> str:
    """Its last line and its notes. The library's own function looks at every error of a group of any size."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (of the user's own making)
        text = "<its text cannot be read>"
    notes = getattr(error, "__notes__", ())
    lines = [f"{name}: {text}" if text else name, *map(str, notes if isinstance(notes, list) else ())]
    return "\n".join(lines) + "\n"


def _frames(trace: TracebackType | None) -> TracebackType | None:
    """Without the worker's own, which are the same each time."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    return trace


def _hidden(said: str, delivery: Delivery) -> str:
    payload = delivery.payload
    said = _without(said, payload[: len(said)].decode(errors="replace"), "<payload>")
    said = _without(said, repr(payload[: len(said)])[2:-1], "<payload>")
    for name, value in delivery.headers.items():
        said = _without(said, value, f"<header {name}>")
    return said


def _without(said: str, secret: str, shown: str) -> str:
    if len(secret) < _SHORTEST_HIDDEN:
        return said
    said = said.replace(secret, shown)
    # A quotation that breaks off: the rest of its line goes with it.
    start = said.find(secret[:_COMPARED])
    while start >= 0:
        end = said.find("\n", start)
        said = said[:start] + shown + (said[end:] if end >= 0 else "")
        start = said.find(secret[:_COMPARED], start + len(shown))
    return said
