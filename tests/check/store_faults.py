"""Faults to plant in what a store has besides its queues; with those of queues, all that there are."""

from __future__ import annotations

from penstock.backends.bulk import Chunk
from penstock.backends.embedded import keys
from penstock.backends.embedded.buckets import ThrottleRow
from penstock.backends.embedded.keys import Meta, StateCode
from penstock.backends.embedded.load_rows import LoadProgress, LoadRow
from penstock.backends.embedded.rows import (
    MARK,
    packed,
)
from penstock.backends.embedded.throttles import THROTTLE_SET
from penstock.backends.embedded.worlds import SYSTEM_WORLD, Worlds, decode_world
from penstock.event import Entry
from tests.check.faults import FAULTS as FAULTS
from tests.check.faults import fault, fresh
from tests.check.stores import Raw, flipped

# -- worlds -------------------------------------------------------------------------------------


def _world(raw: Raw) -> tuple[bytes, int]:
    key = keys.meta(Meta.WORLD, b"w")
    return key, decode_world(dict(raw.rows("meta"))[key]).number


@fault("an entry is not found by its id", "entry_missing")
def _(raw: Raw) -> None:
    raw.delete("entries", raw.row("entries")[0])


@fault("an id leads to another entry", "entry_differs")
def _(raw: Raw) -> None:
    key, value = raw.row("entries")
    raw.put("entries", key, flipped(value, -1))


@fault("an id leads to no entry", "entry_stray")
def _(raw: Raw) -> None:
    raw.put("entries", b"\x05" * 16, raw.row("entries")[1])


@fault("a world's frame is damaged", "frame_damaged", "frame_missing", "entry_stray", "world_counters")
def _(raw: Raw) -> None:
    key, value = raw.rows("journal", keys.u32(_world(raw)[1]))[1]
    raw.put("journal", key, flipped(value, -9))


@fault("a world's counters are wrong", "world_counters")
def _(raw: Raw) -> None:
    key, _ = _world(raw)
    world = decode_world(dict(raw.rows("meta"))[key])
    world.bytes += 1
    raw.put("meta", key, packed(world))


@fault("a world's row does not decode", "world_damaged", "orphan_rows")
def _(raw: Raw) -> None:
    key, _ = _world(raw)
    raw.put("meta", key, dict(raw.rows("meta"))[key][:5])


# -- rows of meta and rows of nothing -----------------------------------------------------------


@fault("a queue's settings do not decode", "queue_damaged", "orphan_rows")
def _(raw: Raw) -> None:
    key = keys.meta(Meta.QUEUE, b"jobs")
    raw.put("meta", key, dict(raw.rows("meta"))[key][:9])


@fault("a queue's row is missing", "orphan_rows")
def _(raw: Raw) -> None:
    raw.delete("meta", keys.meta(Meta.QUEUE, b"jobs"))


@fault("rows are of no queue", "orphan_rows")
def _(raw: Raw) -> None:
    key, value = fresh(raw)
    raw.put("ready", keys.u32(4_000_001) + key[4:], value)


@fault("a state row is of no queue", "orphan_rows")
def _(raw: Raw) -> None:
    value = raw.row("state")[1]
    raw.put("state", keys.state(4_000_002, StateCode.DEAD, b"\x06" * 16), value)


@fault("a key cannot be", "key_malformed")
def _(raw: Raw) -> None:
    raw.put("messages", keys.u32(raw.number("jobs")) + b"short", b"\x01something")


@fault("a row of meta is of no known kind", "row_unknown")
def _(raw: Raw) -> None:
    raw.put("meta", b"\xf0what", b"\x01?")


@fault("a row of meta has another version", "row_damaged")
def _(raw: Raw) -> None:
    raw.put("meta", keys.meta(Meta.USER_STATE, b"user2"), b"\x09?")


@fault("a bulk write has lost what was staged for it", "load_cut_off")
def _(raw: Raw) -> None:
    chunk = Chunk(name="gone", number=raw.number("jobs"), rows=1, first=b"", last=b"", sizes_bytes=(1, 1, 1))
    row = LoadRow("app", 1, "nowhere", "", [chunk, chunk], 0, raw.number("jobs"))
    raw.put("meta", keys.meta(Meta.LOAD, keys.u32(1)), packed(row))
    raw.put("meta", keys.meta(Meta.LOAD, keys.u32(1) + b"p"), packed(LoadProgress(chunk=1, enqueued=1)))


# -- throttles ----------------------------------------------------------------------------------


@fault("a limit does not decode", "throttle_damaged")
def _(raw: Raw) -> None:
    key, value = raw.row("meta", lambda key, _: key[0] == Meta.THROTTLE)
    raw.put("meta", key, value[:-1])


@fault("a limit has numbers that cannot be", "throttle_damaged")
def _(raw: Raw) -> None:
    row = ThrottleRow(rate_nano=1, burst=2, tokens=3, part=0, at_ns=0)
    raw.put("meta", keys.meta(Meta.THROTTLE, b"api"), packed(row))


@fault("a limit that was set is not there", "throttle_missing")
def _(raw: Raw) -> None:
    raw.delete("meta", raw.row("meta", lambda key, _: key[0] == Meta.THROTTLE)[0])


@fault("a limit that nobody remembers does not decode", "throttle_damaged")
def _(raw: Raw) -> None:
    raw.put("meta", keys.meta(Meta.THROTTLE, b"unheard of"), MARK + b"?")


@fault("a limit is not there, and what was set cannot be read", "throttle_missing")
def _(raw: Raw) -> None:
    engine = raw._engine
    with engine.lock, engine.transaction() as txn:
        Worlds(engine).append_in(txn, SYSTEM_WORLD, [Entry(THROTTLE_SET, b"{", ["unknown"])])
