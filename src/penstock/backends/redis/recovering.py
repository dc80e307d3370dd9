"""Brings back rows of the catalogue: what a queue's settings were is told by the system's own journal.

Where that no longer reaches back so far, the queue's counters know what scripts need of them.
"""

from __future__ import annotations

import msgspec

from penstock.backends.redis.catalogue import GROUP_FLAG, NUMBER_FLAG
from penstock.backends.redis.connecting import pairs
from penstock.backends.redis.engine import JOINING, WHOLE, Engine, GroupRow, QueueRow
from penstock.backends.redis.groups import DEFAULT
from penstock.backends.redis.keys import BODIES
from penstock.backends.redis.quarantine import Quarantine
from penstock.backends.redis.records import Counters, decode_counters
from penstock.backends.redis.worlds import Worlds
from penstock.errors import InvalidConfig, StorageCorrupt, StorageError
from penstock.event import SYSTEM_WORLD, Entry
from penstock.settings import QueueSettings, queue_settings

_KINDS = ("queue_created", "queue_updated", "queue_deleted")


class Recovering:
    """Recovers the catalogue of one store."""

    def __init__(self, engine: Engine, worlds: Worlds, quarantine: Quarantine) -> None:
        self._engine = engine
        self._quarantine = quarantine
        self._worlds = worlds

    def recover(self, name: str) -> str:
        """What was done; nothing for a row that is sound. The queue has to be repaired afterwards.

        Nobody else changes a row that does not decode, but another repair, which makes the same of it.
        """
        server, keys = self._engine.server, self._engine.keys
        raw = server.command("HGET", keys.queues, name.encode())
        damage = None if raw is None else self._damage(name, raw)
        if damage is None:
            return ""
        counters, last = self._counters(name), self._last_entry(name)
        settings, said = _settings(name, last, counters)
        number = counters.number if counters is not None else _number(last)
        if settings is None or not number:
            raise StorageError(f"nothing tells what the settings of queue {name!r} were")
        item = self._quarantine.row(name, "queues", name.encode(), str(damage), raw)
        server.command("HSET", keys.quarantine, *item)
        version = int(server.command("HINCRBY", keys.store, "version", 1))
        created_us = counters.created_us if counters is not None else 0
        row = QueueRow(
            number,
            version,
            settings,
            created_us,
            self._groups(name, number, _flag(last, GROUP_FLAG)),
            keys.stream_name(name),
        )
        server.command("HSET", keys.queues, name.encode(), self._engine.encoded_row(name, row))
        self._engine.forget(name)
        return said

    def _groups(self, name: str, number: int, told_own: str) -> tuple[GroupRow, ...]:
        """Those whose lines are there, behind the one that has the own line: journal or stream know it."""
        server, keys = self._engine.server, self._engine.keys
        if keys.store_kind != "stream":
            return ()
        further = []
        for page in server.scan(keys.further_lines(name)):
            for key in page:
                group = keys.group_of(name, key)
                counters = decode_counters(server.command("GET", key))
                is_joining = server.command("EXISTS", keys.queue(name, group)[-1])
                further.append(GroupRow(group, counters.number, JOINING if is_joining else WHOLE))
        stream, known = keys.queue(name)[BODIES], {one.name for one in further}
        told = server.command("XINFO", "GROUPS", stream) if server.command("EXISTS", stream) else []
        names = [dict(pairs(one))[b"name"].decode() if isinstance(one, list) else one["name"] for one in told]
        own = [told_own] if told_own else [one for one in names if one not in known]
        own = own or ([DEFAULT] if further else [])
        return (*(GroupRow(one, number) for one in own[:1]), *sorted(further, key=lambda one: one.number))

    def _damage(self, name: str, raw: bytes) -> StorageCorrupt | None:
        try:
            self._engine.decoded_row(name, raw)
        except StorageCorrupt as error:
            return error
        return None

    def _counters(self, name: str) -> Counters | None:
        raw = self._engine.server.command("GET", self._engine.keys.queue(name)[0])
        try:
            return None if raw is None else decode_counters(raw)
        except StorageCorrupt:
            return None

    def _last_entry(self, name: str) -> Entry | None:
        try:
            entries = self._worlds.scan(SYSTEM_WORLD, kinds=_KINDS, labels=[name])
        except StorageCorrupt:
            return None
        return entries[-1] if entries and entries[-1].kind != "queue_deleted" else None


def _settings(name: str, last: Entry | None, counters: Counters | None) -> tuple[QueueSettings | None, str]:
    """And what became of the row by it."""
    if last is not None:
        try:
            return msgspec.json.decode(last.body, type=QueueSettings), "row brought back from the journal"
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    if counters is None:
        return None, ""
    c = counters
    values: dict[str, object] = {
        "fifo": bool(c.fifo),
        "delay_s": c.delay_us / 1_000_000,
        "max_leased": c.max_leased or None,
        "max_leased_per_key": None if c.fifo else c.per_key or None,
        "retention_s": c.retention_us / 1_000_000,
        "dead_retention_s": c.dead_retention_us / 1_000_000 or None,
        "dedup_window_s": c.window_us / 1_000_000,
    }
    try:
        return queue_settings(name, values), "row made of the counters, other settings are the defaults"
    except InvalidConfig:
        return None, ""


def _number(last: Entry | None) -> int:
    found = _flag(last, NUMBER_FLAG)
    return int(found) if found.isdecimal() else 0


def _flag(last: Entry | None, start: str) -> str:
    flags = last.flags if last is not None else ()
    return next((flag.removeprefix(start) for flag in flags if flag.startswith(start)), "")
