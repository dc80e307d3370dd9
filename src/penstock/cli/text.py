"""How bytes, times, spans and sizes read on a screen; nothing that is stored can steer a terminal."""

from __future__ import annotations

import base64
import unicodedata
from datetime import UTC, datetime

from penstock.clock import NS_PER_S

#: Joiners that ordinary writing needs, though Unicode counts them among the invisible.
_JOINERS = "\u200c\u200d"
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LAYOUT = "\n\t"


def _harmless(char: str) -> bool:
    return char in _JOINERS or unicodedata.category(char) not in _UNSEEN


def neutral(text: str) -> str:
    """The text with whatever could move a cursor, set a colour or turn the writing around made visible."""
    if text.isprintable():
        return text
    return "".join(char if _harmless(char) else _escaped(char) for char in text)


def neutral_block(text: str) -> str:
    """The same for text of several lines, which keeps its line ends and tabs."""
    return "".join(char if char in _LAYOUT or _harmless(char) else _escaped(char) for char in text)


def neutral_json(line: str) -> str:
    """JSON whose strings are escaped likewise, which it remains: outside strings no such character is."""
    if line.isprintable():
        return line
    return "".join(char if _harmless(char) else _json_escaped(char) for char in line)


def _escaped(char: str) -> str:
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escaped(char: str) -> str:
    return "".join(
        f"\\u{unit:04x}" for unit in memoryview(char.encode("utf-16-le", "surrogatepass")).cast("H")
    )


def as_text(raw: bytes) -> str | None:
    """The text that the bytes are, if a person can read all of it."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if all(char in _LAYOUT or _harmless(char) for char in text) else None


def shown_bytes(raw: bytes) -> str:
    """Readable text as it is, anything else in base64, marked."""
    text = as_text(raw)
    return f"base64:{base64.b64encode(raw).decode()}" if text is None else text


def iso(at_ns: int | None) -> str | None:
    """A time as ISO 8601 in UTC, to the millisecond; None for no time."""
    if not at_ns:
        return None
    try:
        moment = datetime.fromtimestamp(at_ns // NS_PER_S, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ns % NS_PER_S // 1_000_000:03d}Z"


def span(seconds: float | None) -> str:
    """A duration in at most two units: 850ms, 12.5s, 3m 20s, 4h 5m, 2d 3h."""
    if seconds is None:
        return ""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms" if seconds else "0s"
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = round(seconds)
    for unit_s, unit, next_s, next_unit in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= unit_s:
            rest = whole % unit_s // next_s
            return f"{whole // unit_s}{unit}" + (f" {rest}{next_unit}" if rest else "")
    return f"{whole}s"


def size(count_bytes: int | None) -> str:
    """Bytes in the unit that leaves one to four digits."""
    if count_bytes is None:
        return ""
    amount = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.1f} {unit}".replace(".0 ", " ")
        amount /= 1024
    return f"{amount:.1f} TiB".replace(".0 ", " ")


def count(number: int) -> str:
    return f"{number:,}"


def rate(per_s: float) -> str:
    """Per second; nothing at all for nothing, so that what moves stands out."""
    return "" if not per_s else f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"
