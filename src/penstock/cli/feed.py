"""What `enqueue` and `journal append` read: lines, JSON lines, CSV, whole files; and what is wrong where."""

from __future__ import annotations

import base64
import binascii
import csv
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import typer

from penstock.message import MAX_PAYLOAD_BYTES, NewMessage

if TYPE_CHECKING:
    from penstock import Entry

#: The longest line that is read: a payload of the largest size in base64, with room for its fields.
MAX_LINE_BYTES = MAX_PAYLOAD_BYTES * 2
STANDARD_INPUT = "standard input"


@dataclass(frozen=True)
class Item:
    """One thing that was read: a message, or the reason why it is none."""

    source: str
    line: int
    message: NewMessage | None = None
    reason: str = ""
    row: bytes = b""
    """What was read, for whoever wants to mend it."""


class MessageLine(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A line of `--jsonl`, or a row of `--csv`: what it leaves out is as the options say."""

    payload: str | msgspec.UnsetType = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    fairness_key: str | msgspec.UnsetType = msgspec.UNSET
    weight: int | msgspec.UnsetType = msgspec.UNSET
    throttle_keys: list[str] | msgspec.UnsetType = msgspec.UNSET
    priority: int | msgspec.UnsetType = msgspec.UNSET
    delay_s: float | msgspec.UnsetType = msgspec.UNSET
    ttl_s: float | msgspec.UnsetType | None = msgspec.UNSET
    dedup_id: str | msgspec.UnsetType | None = msgspec.UNSET
    id: str | msgspec.UnsetType | None = msgspec.UNSET

    def message(self, defaults: NewMessage) -> NewMessage:
        given = {
            name: value for name, value in msgspec.structs.asdict(self).items() if value is not msgspec.UNSET
        }
        payload = _payload(given.pop("payload", None), given.pop("payload_base64", None), "payload")
        if "headers" in given:
            given["headers"] = {**defaults.headers, **given["headers"]}
        return msgspec.structs.replace(defaults, payload=payload, **given)


class EntryLine(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A line of `journal append --jsonl`."""

    kind: str
    body: str | None = None
    body_base64: str | None = None
    labels: list[str] = []
    flags: list[str] = []
    vector: list[float] | None = None

    def entry(self) -> Entry:
        from penstock import Entry

        body = b"" if self.body is self.body_base64 is None else _payload(self.body, self.body_base64, "body")
        return Entry(self.kind, body, self.labels, self.flags, self.vector)


FIELDS = frozenset(MessageLine.__struct_fields__)


def _payload(text: str | None, encoded: str | None, name: str) -> bytes:
    if (text is None) == (encoded is None):
        raise ValueError(f"needs {name} or {name}_base64, and only one of them")
    if encoded is None:
        return (text or "").encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name}_base64 is not base64: {error}") from None


def argument_bytes(argument: str) -> bytes:
    """The bytes that were typed, whatever their encoding; those of standard input for `-`."""
    return sys.stdin.buffer.read() if argument == "-" else os.fsencode(argument)


class Source:
    """An open file, or standard input, and how much of it has been read."""

    def __init__(self, name: str) -> None:
        self.is_standard_input = name == "-"
        self.name = STANDARD_INPUT if self.is_standard_input else name
        try:
            self.stream: BinaryIO = sys.stdin.buffer if self.is_standard_input else open(name, "rb")  # noqa: SIM115
        except OSError as error:
            raise typer.BadParameter(f"cannot read {name}: {error.strerror or error}") from None
        self.read_bytes = 0

    def size_bytes(self) -> int:
        """How much there is, 0 where nobody knows."""
        try:
            found = os.fstat(self.stream.fileno())
        except (OSError, ValueError):
            return 0
        return found.st_size

    def close(self) -> None:
        if not self.is_standard_input:
            self.stream.close()

    def whole(self) -> bytes:
        """All of it; one byte more than a payload may have is enough to see that it is too long."""
        raw = self.stream.read(MAX_PAYLOAD_BYTES + 1)
        self.read_bytes += len(raw)
        return raw

    def lines(self) -> Iterator[tuple[int, bytes | None]]:
        """(number, line with its end), None for a line that is too long to be anything."""
        number = 0
        while line := self.stream.readline(MAX_LINE_BYTES):
            number += 1
            self.read_bytes += len(line)
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                while (rest := self.stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    self.read_bytes += len(rest)
                yield number, None
            else:
                yield number, line


def whole_file(source: Source, defaults: NewMessage) -> Iterator[Item]:
    yield Item(source.name, 0, msgspec.structs.replace(defaults, payload=source.whole()))


def from_lines(source: Source, defaults: NewMessage) -> Iterator[Item]:
    """Each line that is not empty is a payload, without its end."""
    for number, line in source.lines():
        if line is None:
            yield too_long(source, number)
        elif payload := line.removesuffix(b"\n").removesuffix(b"\r"):
            yield Item(source.name, number, msgspec.structs.replace(defaults, payload=payload), row=line)


def from_jsonl(source: Source, defaults: NewMessage) -> Iterator[Item]:
    """Each line that is not empty is an object: see `MessageLine`."""
    decode = msgspec.json.Decoder(MessageLine).decode
    for number, line in source.lines():
        if line is None:
            yield too_long(source, number)
            continue
        if not line.strip():
            continue
        try:
            message = decode(line).message(defaults)
        except (msgspec.DecodeError, ValueError) as error:
            yield Item(source.name, number, reason=unreadable(error), row=line)
        else:
            yield Item(source.name, number, message, row=line)


def from_csv(source: Source, defaults: NewMessage, payload_column: str) -> Iterator[Item]:
    """Columns named like fields are those; every other is a header. Empty cells are left out."""
    taken: list[bytes] = []
    first, bad = 1, 0

    def text_lines() -> Iterable[str]:
        nonlocal bad
        for number, line in source.lines():
            if line is None:
                bad = number
                taken.append(b"")
                yield "\n"
                continue
            taken.append(line)
            yield line.decode("utf-8", "surrogateescape")

    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(text_lines(), strict=True)
    heading = _heading(reader, source.name, payload_column)
    while True:
        first, bad = reader.line_num + 1, 0
        taken.clear()
        try:
            cells = next(reader)
            if bad:
                yield too_long(source, bad)
                continue
            if not cells:
                continue
            message = _csv_message(heading, cells, defaults)
        except StopIteration:
            return
        except (csv.Error, msgspec.ValidationError, ValueError) as error:
            yield Item(source.name, first, reason=str(error), row=b"".join(taken))
        else:
            yield Item(source.name, first, message, row=b"".join(taken))


def _heading(reader: Iterator[list[str]], name: str, payload_column: str) -> list[str]:
    try:
        titles = [title.strip() for title in next(reader, [])]
    except csv.Error as error:
        raise typer.BadParameter(f"{name}: the heading is not CSV: {error}") from None
    if titles:
        titles[0] = titles[0].removeprefix("\ufeff")
    if len(set(titles)) < len(titles) or "" in titles:
        raise typer.BadParameter(f"{name}: a column of the heading is empty or there twice")
    if payload_column not in titles and "payload_base64" not in titles:
        raise typer.BadParameter(
            f"{name}: the heading has no column {payload_column!r}, only {', '.join(titles) or 'nothing'}; "
            "name the one that holds the payload with --payload-column"
        )
    return ["payload" if title == payload_column else title for title in titles]


def _csv_message(heading: list[str], cells: list[str], defaults: NewMessage) -> NewMessage:
    if len(cells) != len(heading):
        raise ValueError(f"has {len(cells)} cells, but the heading has {len(heading)}")
    given: dict[str, Any] = {}
    headers: dict[str, str] = {}
    for title, cell in zip(heading, cells, strict=True):
        if title == "payload":
            given[title] = cell
        elif not cell:
            continue
        elif title == "throttle_keys":
            given[title] = cell.split(",")
        elif title in FIELDS and title != "headers":
            given[title] = cell
        else:
            headers[title] = cell
    if "payload_base64" in given and not given.get("payload"):
        given.pop("payload", None)
    payload = given.pop("payload", msgspec.UNSET)
    line = msgspec.convert({**given, "headers": headers}, MessageLine, strict=False)
    line.payload = payload  # As it is: its bytes need not be UTF-8.
    return line.message(defaults)


def unreadable(error: Exception) -> str:
    """Why a line of JSON cannot be used. It says where, and nothing of what is there."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    is_form = isinstance(error, msgspec.DecodeError) and not isinstance(error, msgspec.ValidationError)
    return f"not a JSON object: {error}" if is_form else str(error)


def too_long(source: Source, number: int) -> Item:
    return Item(source.name, number, reason=f"the line is longer than {MAX_LINE_BYTES} bytes")
