"""Where messages stand: state rows in columns, and which of them belongs to which body."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import StateCode
from penstock.backends.embedded.rows import ROW_VERSION, STATE_ROW_BYTES, decode_state
from penstock.backends.embedded.tables.damage import Damages
from penstock.backends.tables.columns import (
    Array,
    Bytes,
    Joined,
    Mask,
    Numbers,
    chosen,
    pa,
    sortable,
)
from penstock.errors import StorageCorrupt
from penstock.kv.base import Chunk, Store
from penstock.kv.damage import Hole
from penstock.message import format_id

STATE_KEY_BYTES = 21

_ORPHAN = "is {} by its state row, but has no body; run check with repair"
_TWICE = "is both {} and {}; run check with repair"


class States:
    """State rows of one queue, ordered by state and then by id."""

    def __init__(self, keys: list[bytes], values: list[bytes], delay_ns: int = 0) -> None:
        self._delay_ns = delay_ns
        raw = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), STATE_KEY_BYTES)
        self.codes: NDArray[np.uint8] = raw[:, 4]
        self.ids: Bytes = np.ascontiguousarray(raw[:, 5:])
        self.values = values
        self._rows = Joined(values)

    def _number(self, offset: int, kind: str) -> Numbers:
        return self._rows.numbers(self._rows.starts + offset, kind)

    @functools.cached_property
    def attempts(self) -> Numbers:
        return self._number(1, ">u4")

    @functools.cached_property
    def seqs(self) -> Numbers:
        return self._number(5, ">u8")

    @functools.cached_property
    def since_ns(self) -> Numbers:
        return self._number(13, ">u8")

    @functools.cached_property
    def until_ns(self) -> Numbers:
        until_ns = self._number(21, ">u8")
        # What has no time of its own waits for the queue's delay.
        in_line = (self.codes == StateCode.DELAYED) & (until_ns == 0)
        return np.where(in_line, self.since_ns + self._delay_ns, until_ns) if in_line.any() else until_ns

    @functools.cached_property
    def orders_ns(self) -> Numbers:
        return self._number(29, ">u8")

    @functools.cached_property
    def expiries_ns(self) -> Numbers:
        return self._number(37, ">u8")

    @functools.cached_property
    def reason_bytes(self) -> Numbers:
        return self._number(51, ">u4")

    def _lane_and_consumer_bytes(self) -> tuple[Numbers, Numbers]:
        return self._number(47, ">u2"), self._number(49, ">u2")

    def consumers(self) -> Array:
        """As bytes, as `reasons` are: those who take some of them find out whether they are texts."""
        lane, consumer = self._lane_and_consumer_bytes()
        return self._texts(STATE_ROW_BYTES + lane, consumer)

    def reasons(self) -> Array:
        lane, consumer = self._lane_and_consumer_bytes()
        return self._texts(STATE_ROW_BYTES + lane + consumer, self.reason_bytes)

    def _texts(self, offsets: Numbers, lengths: Numbers) -> Array:
        starts = (self._rows.starts + offsets).tolist()
        blob = self._rows.blob
        found = [blob[at : at + size] for at, size in zip(starts, lengths.tolist(), strict=True)]
        return pa.array(found, pa.binary())

    def unsound(self) -> Mask:
        lane, consumer = self._lane_and_consumer_bytes()
        right = self._rows.lengths == STATE_ROW_BYTES + lane + consumer + self.reason_bytes
        known = self._number(0, "u1") == ROW_VERSION
        sound: Mask = known & (self._rows.lengths >= STATE_ROW_BYTES) & right
        return ~sound


class Unknown:
    """Messages whose state cannot be told: their row does not decode, or is where nothing can be read."""

    def __init__(self) -> None:
        self.ids: set[bytes] = set()
        self._holes: list[tuple[bytes, bytes]] = []

    def note_hole(self, bounds: tuple[bytes, bytes], hole: Hole) -> None:
        lower, upper = bounds
        end = upper if hole.end is None else min(hole.end, upper)
        self._holes.append((max(hole.start, lower)[5:], end[5:]))

    def among(self, ids: Bytes) -> Mask:
        if not self.ids and not self._holes:
            return np.zeros(len(ids), bool)
        raw = (one.tobytes() for one in ids)
        return np.fromiter((self._has(one) for one in raw), np.bool_, len(ids))

    def _has(self, raw_id: bytes) -> bool:
        return raw_id in self.ids or any(low <= raw_id < high for low, high in self._holes)


class StateReader:
    """The state rows of one queue, found by id."""

    def __init__(self, kv: Store, number: int, damages: Damages, delay_ns: int = 0) -> None:
        self._delay_ns = delay_ns
        self._kv = kv
        self._number = number
        self._damages = damages

    def between(self, low: bytes, high: bytes, codes: Iterable[StateCode]) -> tuple[States, Unknown]:
        """State rows of ids from `low` up to, not including, `high`."""
        found: list[bytes] = []
        values: list[bytes] = []
        unknown = Unknown()
        for code in codes:
            prefix = keys.state_prefix(self._number, code)
            bounds = prefix + low, prefix + high
            note = functools.partial(unknown.note_hole, bounds)
            for chunk in self._damages.chunks(self._kv, "state", bounds, on_hole=note):
                more_keys, more_values = self._sound(chunk, unknown)
                found += more_keys
                values += more_values
        return States(found, values, self._delay_ns), unknown

    def chunks(self, low: bytes, high: bytes, code: StateCode) -> Iterator[States]:
        """The same of one state, many at a time; those that cannot be told are told of and left out."""
        prefix = keys.state_prefix(self._number, code)
        for chunk in self._damages.chunks(self._kv, "state", (prefix + low, prefix + high)):
            yield States(*self._sound(chunk, Unknown()), self._delay_ns)

    def _sound(self, chunk: Chunk, unknown: Unknown) -> Chunk:
        raw_keys, values = chunk
        bad = States(raw_keys, values).unsound()
        for at in np.flatnonzero(bad).tolist():
            raw_id = raw_keys[at][5:]
            try:
                decode_state(values[at])
            except StorageCorrupt as error:
                self._damages.found(f"the state of message {format_id(raw_id)}", error)
                unknown.ids.add(raw_id)
        return (chosen(raw_keys, ~bad), chosen(values, ~bad)) if bad.any() else chunk

    def places(self, states: States, ids: Bytes) -> Numbers:
        """For each id, which of the states is its; -1 for none. What fits nothing is damage, and told."""
        places = np.full(len(ids), -1, np.int64)
        if not len(states.codes):
            return places
        wanted, known = sortable(states.ids), sortable(ids)
        at = np.searchsorted(known, wanted)
        there = at < len(known)
        there[there] = known[at[there]] == wanted[there]
        self.tell_orphans(states, np.flatnonzero(~there))
        rows = np.flatnonzero(there)
        # The lowest code counts, as it does for those who look at one message: rows are written in reverse.
        places[at[rows[::-1]]] = rows[::-1]
        for twice in rows[places[at[rows]] != rows].tolist():
            first = int(places[at[twice]])
            self._tell(states, twice, _TWICE.format(_name(states, first), _name(states, twice)))
        return places

    def tell_orphans(self, states: States, orphans: Numbers) -> None:
        for at in orphans.tolist():
            self._tell(states, at, _ORPHAN.format(_name(states, at)))

    def _tell(self, states: States, at: int, what: str) -> None:
        message_id = format_id(states.ids[at].tobytes())
        self._damages.found(f"message {message_id}", StorageCorrupt(f"it {what}"), rows=0)


def _name(states: States, at: int) -> str:
    return StateCode(int(states.codes[at])).name.lower()
