"""Mending rows of `meta`: queues and worlds that cannot be read, or that are missing, and odd rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.backends.embedded import keys
from penstock.backends.embedded.admin import NUMBER_FLAG, QueueRow, decode_queue
from penstock.backends.embedded.checking.findings import Finding
from penstock.backends.embedded.checking.mend_throttles import mend_throttle
from penstock.backends.embedded.checking.recount import stored_counters
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.load_rows import drop_load
from penstock.backends.embedded.numbers import next_number
from penstock.backends.embedded.quarantine import keep
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import MARK, CursorRow, packed
from penstock.backends.embedded.worlds import SYSTEM_WORLD, World, Worlds, decode_world
from penstock.codec.entry import decode_entries
from penstock.codec.frame import decode_head, verify
from penstock.errors import InvalidMessage, StorageCorrupt
from penstock.event import Entry
from penstock.message import checked_name
from penstock.settings import QueueSettings

_DERIVED = ("ready", "held")
_RECOVERED = "recovered-"
_ABOUT_QUEUES = ("queue_created", "queue_updated")
_decode_any = msgspec.msgpack.Decoder(list[Any]).decode
_decode_settings = msgspec.json.Decoder(QueueSettings).decode


class CatalogueMender:
    """Mends what says which queues and worlds there are. The caller loads them anew afterwards."""

    def __init__(self, engine: Engine, worlds: Worlds) -> None:
        self._engine = engine
        self._worlds = worlds

    def mend(self, finding: Finding) -> None:
        steps: dict[str, Callable[[Transaction, Finding], None]] = {
            "queue_damaged": self._queue,
            "world_damaged": self._world,
            "orphan_rows": self._orphans,
            "cursor_damaged": self._cursor,
            "throttle_damaged": self._throttle,
            "throttle_missing": self._throttle,
            "next_number": self._next_number,
            "load_cut_off": self._load,
        }
        with self._engine.lock, self._engine.transaction() as txn:
            steps.get(finding.kind, self._quarantine)(txn, finding)

    def _quarantine(self, txn: Transaction, finding: Finding) -> None:
        raw = self._get(finding.space, finding.key)
        if raw is not None:
            keep(txn, finding.queue, finding.space, finding.key, raw, finding.what)
        finding.action = "moved to quarantine"

    def _load(self, txn: Transaction, finding: Finding) -> None:
        """What is in of a bulk write stays; run again, it finds that by its ids."""
        self._quarantine(txn, finding)
        drop_load(txn, finding.number)
        finding.action = "ended with the messages that it has enqueued; its row moved to quarantine"

    def _get(self, space: str, key: bytes) -> bytes | None:
        return self._engine.kv.get(key, self._engine.kv.space(space))

    def _rows(self, space: str, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return self._engine.kv.scan(self._engine.kv.space(space), lower, upper)

    # -- queues -------------------------------------------------------------------------------------

    def _queue(self, txn: Transaction, finding: Finding) -> None:
        raw = self._get("meta", finding.key)
        if raw is None:
            return
        name = finding.key[1:].decode(errors="replace")
        keep(txn, name, "meta", finding.key, raw, finding.what)
        finding.action = "moved to quarantine"
        if _is_name(finding.key[1:]):
            settings, number = self._remembered(name)
            if not (number and self._is_free(number, finding.key)):
                number = _first_number(raw)
                if not (self._has_content(number) and self._is_free(number, finding.key)):
                    number = next_number(txn)  # What it had is found under its old number, as an orphan's.
            row = QueueRow(number, settings or QueueSettings(name=name))
            txn.put(finding.key, packed(row), self._engine.meta)
            source = "the system journal" if settings else "default settings"
            finding.action = f"made anew from {source}; the old row moved to quarantine"

    def _is_free(self, number: int, own_key: bytes) -> bool:
        """Whether the number can be a queue's: not another's, and something has it."""
        prefix = keys.meta(Meta.QUEUE)
        for key, raw in self._rows("meta", prefix, keys.after_prefix(prefix)):
            if key != own_key and _first_number(raw) == number:
                return False
        return all(row.number != number for row in self._sound_worlds())

    def _sound_worlds(self) -> Iterator[World]:
        prefix = keys.meta(Meta.WORLD)
        for _, raw in self._rows("meta", prefix, keys.after_prefix(prefix)):
            try:
                yield decode_world(raw)
            except StorageCorrupt:
                continue

    def _remembered(self, name: str) -> tuple[QueueSettings | None, int]:
        """What the system journal last said of a queue: its settings, and its number if it said that."""
        settings, number = None, 0
        for entry in self._system_entries():
            if entry.labels == [name] and entry.kind in _ABOUT_QUEUES:
                settings = _settings(entry)
                number = _number(entry) or number
        return settings, number

    def _system_entries(self) -> list[Entry]:
        """What the system journal has, or parts of it that were found without their name."""
        found: list[Entry] = []
        for name, _ in list(self._worlds.all()):
            if name == SYSTEM_WORLD or name.startswith(_RECOVERED):
                with contextlib.suppress(StorageCorrupt):
                    found += self._worlds.scan(name, kinds=_ABOUT_QUEUES)
        return sorted(found, key=lambda entry: entry.at_ns)

    # -- rows of no queue ---------------------------------------------------------------------------

    def _orphans(self, txn: Transaction, finding: Finding) -> None:
        number, space = finding.number, finding.space
        if self._is_known(number):
            finding.action = "found in order"  # It was mended with another row of its number.
        elif number and space in ("messages", "journal") and self._is_free(number, b""):
            self._recover(txn, finding)
        elif space in _DERIVED:
            txn.changed = True
            space_handle = self._engine.kv.space(space)
            txn.batch.delete_range(keys.u32(number), _after(number), space_handle)
            finding.action = f"{space} rows removed"
        elif space == "due":
            self._remove_due(txn, finding)
        elif space == "meta" and finding.key[0] == Meta.LANE_HINT:
            txn.changed = True
            txn.delete(finding.key, self._engine.meta)
            finding.action = "hint removed"
        elif not self._has_content(number):
            lower = finding.key[:1] + keys.u32(number) if space == "meta" else keys.u32(number)
            for key, raw in list(self._rows(space, lower, keys.after_prefix(lower))):
                keep(txn, str(number), space, key, raw, finding.what)
            finding.action = "moved to quarantine"

    def _is_known(self, number: int) -> bool:
        prefix = keys.meta(Meta.QUEUE)
        rows = self._rows("meta", prefix, keys.after_prefix(prefix))
        return any(_sound_number(raw) == number for _, raw in rows)

    def _has_content(self, number: int) -> bool:
        """Whether a queue will be made of the number's rows."""
        if not number or any(world.number == number for world in self._sound_worlds()):
            return False  # 0 is nobody's number.
        lower, upper = keys.u32(number), _after(number)
        return any(
            next(iter(self._rows(space, lower, upper)), None) is not None for space in ("messages", "journal")
        )

    def _remove_due(self, txn: Transaction, finding: Finding) -> None:
        txn.changed = True
        for key, _ in self._rows("due", b"", None):
            if keys.parse_due(key)[2] == finding.number:
                txn.delete(key, self._engine.due)
        finding.action = "due rows removed"

    def _recover(self, txn: Transaction, finding: Finding) -> None:
        """Messages, or events, of a queue or world that is not there: it is made again under a name."""
        number = finding.number
        if self.is_world(number):
            name = self._free_name(Meta.WORLD, number, self._world_name(number))
            world = World(number, *self._world_span(number))
            txn.changed = True
            txn.put(keys.meta(Meta.WORLD, name.encode()), packed(world), self._engine.meta)
            finding.action = f"world {name!r} made of it"
            return
        known = [entry for entry in self._system_entries() if _number(entry) == number]
        settings = _settings(known[-1]) if known else None
        name = self._free_name(Meta.QUEUE, number, settings.name if settings else "")
        values = msgspec.structs.asdict(settings) if settings else {}
        row = QueueRow(number, QueueSettings(**{**values, "name": name}))
        txn.changed = True
        txn.put(keys.meta(Meta.QUEUE, name.encode()), packed(row), self._engine.meta)
        finding.action = f"queue {name!r} made of it"

    def _free_name(self, kind: Meta, number: int, wanted: str) -> str:
        made_up = f"{_RECOVERED}{number}"
        for name in (wanted, made_up, *(f"{made_up}-{n}" for n in range(2, 100))):
            if name and self._get("meta", keys.meta(kind, name.encode())) is None:
                return name
        raise StorageCorrupt(f"no name is free for the rows of number {number}; rename a queue")

    def _world_name(self, number: int) -> str:
        """The system journal is known by what it tells."""
        for _, raw in self._rows("journal", keys.u32(number), _after(number)):
            with contextlib.suppress(StorageCorrupt):
                if any(entry.kind in _ABOUT_QUEUES for entry in decode_entries(raw, "")):
                    return SYSTEM_WORLD
        return ""

    def is_world(self, number: int) -> bool:
        """Whether the journal of a number has entries, not events."""
        for _, raw in self._rows("journal", keys.u32(number), _after(number)):
            try:
                return bool(list(decode_entries(raw, "")))
            except StorageCorrupt:
                pass
            try:
                verify(raw)
                decode_head(raw)
                return False
            except StorageCorrupt:
                continue
        return False

    def _world_span(self, number: int) -> tuple[int, int]:
        """next_seq and base_seq of a world, by its frames; the rest is counted anew afterwards."""
        base, last = None, 0
        for key, raw in self._rows("journal", keys.u32(number), _after(number)):
            last = int.from_bytes(key[4:], "big")
            try:
                entries = list(decode_entries(raw, ""))
            except StorageCorrupt:
                continue
            if entries and base is None:
                base = entries[0].seq - 1
        return last + 1, base or 0

    # -- worlds, cursors, numbers -------------------------------------------------------------------

    def _world(self, txn: Transaction, finding: Finding) -> None:
        raw = self._get("meta", finding.key)
        if raw is None:
            return
        keep(txn, finding.queue, "meta", finding.key, raw, finding.what)
        finding.action = "moved to quarantine"
        number = _first_number(raw)
        if number and self._is_free(number, b"") and self.is_world(number):
            txn.put(finding.key, packed(World(number, *self._world_span(number))), self._engine.meta)
            finding.action = "made anew from its frames; the old row moved to quarantine"

    def _cursor(self, txn: Transaction, finding: Finding) -> None:
        """Set back to the start, and required: reading twice is better than a hole."""
        raw = self._get("meta", finding.key)
        if raw is None:
            return
        keep(txn, finding.queue, "meta", finding.key, raw, finding.what)
        q = self._engine.by_qid.get(finding.number)
        finding.action = "moved to quarantine"
        if q is not None and len(finding.key) > 5:
            txn.put(finding.key, packed(CursorRow(self._base_seq(q), True)), self._engine.meta)
            finding.action = "set back to the start of the journal, and required"

    def _base_seq(self, q: QueueState) -> int:
        view = View(self._engine.kv, self._engine)
        try:
            return stored_counters(view, q).base_seq
        except StorageCorrupt:
            return 0
        finally:
            view.release()

    def _throttle(self, txn: Transaction, finding: Finding) -> None:
        mend_throttle(txn, self._worlds, finding)

    def _next_number(self, txn: Transaction, finding: Finding) -> None:
        txn.changed = True
        self._engine.next_number = None
        key = keys.meta(Meta.NEXT_NUMBER)
        txn.put(key, MARK + keys.u32(finding.number + 1), self._engine.meta)
        finding.action = f"set to {finding.number + 1}"


def _after(number: int) -> bytes:
    return keys.u32(number + 1) if number < 0xFFFFFFFF else b"\xff" * 64


def _first_number(raw: bytes) -> int:
    """The number of a queue or world whose row may be damaged behind it; 0 if it cannot be read."""
    for end in (None, 3, 4, 5, 7):
        try:
            # A row of which only the start decodes: an array of that start.
            parts = _decode_any(raw[1:] if end is None else b"\x91" + raw[2:end])
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if parts and isinstance(parts[0], int) and 0 < parts[0] < 1 << 32:
            return parts[0]
    return 0


def _is_name(raw: bytes) -> bool:
    try:
        return checked_name(raw.decode(), "queue name") == raw
    except (UnicodeDecodeError, InvalidMessage):
        return False


def _sound_number(raw: bytes) -> int:
    try:
        return decode_queue(raw).qid
    except StorageCorrupt:
        return 0


def _settings(entry: Entry) -> QueueSettings | None:
    try:
        return _decode_settings(entry.body)
    except msgspec.DecodeError:
        return None


def _number(entry: Entry) -> int:
    found = [flag.removeprefix(NUMBER_FLAG) for flag in entry.flags if flag.startswith(NUMBER_FLAG)]
    return int(found[0]) if found and found[0].isdecimal() else 0
