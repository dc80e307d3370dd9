"""What people type for a duration, a rate, a moment, a size, a header or a retry policy."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.clock import NS_PER_S, SystemClock, to_ns
from penstock.settings import DAY_S, MAX_DURATION_S

if TYPE_CHECKING:
    from penstock import Retry

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_NUMBER = r"(\d+(?:\.\d+)?)"
_PART = re.compile(_NUMBER + " ?(ms|[smhdw])")
_UNITS_BYTES = {
    "": 1,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
_SIZE = re.compile(r"(\d+) ?([KMG]i?B|B|)")
#: Whole numbers from here on are nanoseconds since 1970; nobody means a duration of 30 years.
_NANOSECONDS = 10**15
INTERVAL_MIN_S = 0.01


class _Nothing:
    """What `none` on the command line stands for: the setting is switched off."""


NONE = _Nothing()


def or_none(parser: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: NONE if text.lower() == "none" else parser(text)


def settled(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were named; `none` is None."""
    return {name: None if value is NONE else value for name, value in given.items() if value is not None}


def duration(text: str | float) -> float:
    """Seconds from 30, 1.5s, 250ms, 10m, 2h, 7d. Typer passes a default through here too: a number."""
    if not isinstance(text, str):
        return text
    if re.fullmatch(_NUMBER, text.strip()):
        found = float(text)
    elif re.fullmatch(f"(?:{_PART.pattern} *)+", text.strip()):
        found = sum(float(part[1]) * _UNITS_S[part[2]] for part in _PART.finditer(text))
    else:
        raise typer.BadParameter(f"{text!r} is not a duration; accepted: 30, 1.5s, 250ms, 10m, 2h, 7d, 2w")
    if found > MAX_DURATION_S:
        raise typer.BadParameter(f"{text!r:.40} is too long; accepted: up to {MAX_DURATION_S / DAY_S:.0f}d")
    return found


def interval(text: str | float) -> float:
    """Seconds between one look and the next: a pause that is one, and an end that somebody lives to see."""
    found = duration(text)
    if not INTERVAL_MIN_S <= found <= DAY_S:
        raise typer.BadParameter(
            f"{text!r:.40} is no interval; accepted: {INTERVAL_MIN_S * 1000:.0f}ms to 1d"
        )
    return found


def rate(text: str | float) -> float:
    """Times a second from 5, 0.5, 100/m, 5000/h, 10/d."""
    if not isinstance(text, str):
        return text
    times, slash, unit = text.strip().partition("/")
    if re.fullmatch(_NUMBER, times.strip()) and (not slash or unit.strip() in _UNITS_S):
        return float(times) / (_UNITS_S[unit.strip()] if slash else 1)
    raise typer.BadParameter(f"{text!r} is not a rate; accepted: 5 (a second), 0.5, 100/m, 5000/h, 10/d")


def size(text: str | int) -> int:
    """Bytes from 1048576, 64KiB, 1MiB, 10MB."""
    if not isinstance(text, str):
        return text
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise typer.BadParameter(
            f"{text!r} is not a size; accepted: bytes, or with KiB, MiB, GiB, KB, MB, GB"
        )
    return int(match[1]) * _UNITS_BYTES[match[2]]


def moment(text: str) -> int:
    """Nanoseconds since 1970 from ISO 8601 (UTC unless it says otherwise), `now`, or a duration ago."""
    return _moment(text, -1, "ago")


def moment_ahead(text: str) -> int:
    """The same for what is still to come: a duration counts from now on."""
    return _moment(text, 1, "from now")


def _moment(text: str, direction: int, word: str) -> int:
    text = text.strip()
    if text.isdecimal() and int(text) >= _NANOSECONDS:
        return int(text)
    if text == "now":
        return SystemClock().now_ns()
    if re.match(_NUMBER, text) and not re.match(r"\d{4}-", text):
        return SystemClock().now_ns() + direction * to_ns(duration(text))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time; accepted: 2026-11-16, 2026-11-16T08:30:00Z, 15m ({word}), now, "
            "nanoseconds"
        ) from None
    at = at.replace(tzinfo=at.tzinfo or UTC)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * (NS_PER_S // 1_000_000)


def script(path: str) -> str:
    """What is in a file that holds a script."""
    try:
        return Path(path).read_text("utf-8-sig")  # Some editors put a mark before the text.
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text") from None


def texts(text: str) -> dict[str, str]:
    """Texts by name, from a JSON object."""
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeEncodeError):
        # The text may hold a secret: it is not repeated.
        raise typer.BadParameter('not a JSON object of texts; accepted: {"name": "text"}') from None


def headers(pairs: list[str]) -> dict[str, str]:
    """Headers from NAME=VALUE."""
    return by_name(pairs, "header", "--header NAME=VALUE")


def by_name(pairs: list[str], what: str, accepted: str) -> dict[str, str]:
    """Texts by name, from NAME=VALUE."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            # The text may hold a secret: it is not repeated.
            raise typer.BadParameter(f"a {what} has no '='; accepted: {accepted}")
        if name in found:
            raise typer.BadParameter(f"{what} {name!r} is given twice")
        found[name] = value
    return found


def retry(text: str) -> Retry:
    """A policy from fixed:5s, exponential:1s:10m, exponential:1s:10m:exact, list:5s,1m,1h."""
    from penstock import Retry

    policy, _, rest = text.partition(":")
    parts = rest.split(":") if rest else []
    if policy == "fixed" and len(parts) <= 1:
        return Retry(policy="fixed", delay_s=duration(parts[0]) if parts else 0.0)
    if policy == "list" and len(parts) == 1:
        return Retry(policy="list", delays_s=tuple(duration(part) for part in parts[0].split(",")))
    if policy == "exponential" and 1 <= len(parts) <= 3 and parts[2:] in ([], ["exact"]):
        longest_s = duration(parts[1]) if len(parts) > 1 else Retry().max_delay_s
        return Retry(
            policy="exponential", delay_s=duration(parts[0]), max_delay_s=longest_s, jitter=len(parts) < 3
        )
    raise typer.BadParameter(
        f"{text!r} is not a retry policy; accepted: fixed:5s, exponential:1s:10m, "
        "exponential:1s:10m:exact, list:5s,1m,1h"
    )
