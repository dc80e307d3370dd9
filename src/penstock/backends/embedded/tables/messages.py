"""The tables `messages` and `dead`: bodies, each with where its message stands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.backends.bulk import BulkRequest, Span
from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import StateCode
from penstock.backends.embedded.rows import decode_state
from penstock.backends.embedded.tables.bodies import looked_up
from penstock.backends.embedded.tables.damage import Damages
from penstock.backends.embedded.tables.planning import wanted_codes
from penstock.backends.embedded.tables.states import StateReader, States
from penstock.backends.embedded.tables.view import View
from penstock.backends.tables import columns
from penstock.backends.tables.bodies import BODY_COLUMNS, Bodies, batches, taken
from penstock.backends.tables.columns import Array, Batch, Bytes, Mask, Numbers, pa
from penstock.clock import to_ns
from penstock.tables import arrow_schema

_STATE_NAMES = pa.array([code.name.lower() for code in StateCode])


class Joined(NamedTuple):
    """Bodies with their states; `places` are those of their state rows, -1 for none."""

    ids: Bytes
    values: Sequence[bytes]
    states: States
    places: Numbers

    def only(self, wanted: Mask | slice) -> Joined:
        return Joined(self.ids[wanted], taken(self.values, wanted), self.states, self.places[wanted])

    def made(self, queue: str) -> Messages:
        return Messages(queue, self)

    def codes(self) -> NDArray[np.uint8]:
        """The state of each; without a row of its own, a message is ready, and was never delivered."""
        if not len(self.states.codes):
            return np.full(len(self.values), StateCode.READY, np.uint8)
        return np.where(self.places >= 0, self.states.codes[self.places], StateCode.READY).astype(np.uint8)


class Messages(Bodies):
    """Bodies, joined with their states."""

    def __init__(self, queue: str, chunk: Joined) -> None:
        super().__init__(queue, chunk.ids, chunk.values)
        self._states = chunk.states
        self._places = chunk.places
        self.codes = chunk.codes()

    @functools.cached_property
    def fresh(self) -> Mask:
        return np.less(self._places, 0)

    @functools.cached_property
    def leased(self) -> Mask:
        return np.equal(self.codes, StateCode.LEASED)

    def of_state(self, values: Callable[[States], Numbers], otherwise: Numbers | int) -> Numbers:
        """A number of each one's state row, or another where it has none."""
        if not len(self._states.codes):
            return np.broadcast_to(np.asarray(otherwise, np.int64), (self.count,))
        return np.where(self.fresh, otherwise, values(self._states)[self._places])

    def text_of_state(self, texts: Callable[[States], Array], has: Mask) -> Array:
        if not len(self._states.codes):
            return pa.nulls(self.count, pa.string())
        try:
            return texts(self._states).take(pa.array(self._places, mask=~has)).cast(pa.string())
        except pa.ArrowInvalid:  # One of them is not UTF-8.
            values, places = self._states.values, self._places.tolist()
            self.refuse(~self.fresh, lambda at: decode_state(values[places[at]]))
            raise

    @functools.cached_property
    def since_ns(self) -> Numbers:
        return self.of_state(lambda s: s.since_ns, self.visible_ns)

    @functools.cached_property
    def until_ns(self) -> Numbers:
        return self.of_state(lambda s: s.until_ns, 0)

    @functools.cached_property
    def places_ns(self) -> Numbers:
        """In line; a body has the first one."""
        return self.of_state(lambda s: s.orders_ns, self.orders_ns)

    @functools.cached_property
    def last_visible_ns(self) -> Numbers:
        """As for one message that is looked at: by its state, else by its place in line."""
        by_place = np.where(self.places_ns == self.orders_ns, self.visible_ns, self.places_ns)
        waiting = [self.codes == StateCode.DELAYED, self.codes == StateCode.READY]
        return np.select(waiting, [self.until_ns, self.since_ns], by_place)

    @functools.cached_property
    def last_expiries_ns(self) -> Numbers:
        return self.of_state(lambda s: s.expiries_ns, self.expiries_ns)


def _time(
    at_ns: Callable[[Messages], Numbers], has: Callable[[Messages], Mask]
) -> Callable[[Messages], Array]:
    return lambda m: columns.times(at_ns(m), has(m))


def _long(
    number: Callable[[Messages], Numbers], has: Callable[[Messages], Mask]
) -> Callable[[Messages], Array]:
    return lambda m: columns.longs(number(m), has(m))


_COLUMNS: dict[str, Callable[[Any], Array]] = {
    **BODY_COLUMNS,
    "state": lambda m: _STATE_NAMES.take(pa.array(m.codes)),
    "visible_at": lambda m: columns.times(m.last_visible_ns),
    "visible_at_ns": lambda m: columns.longs(m.last_visible_ns),
    "expires_at": _time(lambda m: m.last_expiries_ns, lambda m: m.last_expiries_ns != 0),
    "expires_at_ns": _long(lambda m: m.last_expiries_ns, lambda m: m.last_expiries_ns != 0),
    "attempts": lambda m: columns.ints(m.of_state(lambda s: s.attempts, 0)),
    "consumer": lambda m: m.text_of_state(States.consumers, m.leased),
    "leased_at": _time(lambda m: m.since_ns, lambda m: m.leased),
    "leased_at_ns": _long(lambda m: m.since_ns, lambda m: m.leased),
    "lease_expires_at": _time(lambda m: m.until_ns, lambda m: m.leased),
    "lease_expires_at_ns": _long(lambda m: m.until_ns, lambda m: m.leased),
    "reason": lambda m: m.text_of_state(States.reasons, m.of_state(lambda s: s.reason_bytes, 0) != 0),
    "seq": _long(lambda m: m.of_state(lambda s: s.seqs, 0), lambda m: ~m.fresh),
    "since_at": lambda m: columns.times(m.since_ns),
    "since_ns": lambda m: columns.longs(m.since_ns),
    "until_at": _time(lambda m: m.until_ns, lambda m: m.until_ns != 0),
    "until_ns": _long(lambda m: m.until_ns, lambda m: m.until_ns != 0),
    "order_ns": _long(lambda m: m.places_ns, lambda m: m.places_ns != 0),
}


def read_messages(
    view: View, number: int, request: BulkRequest, span: Span, damages: Damages
) -> Iterator[Batch]:
    schema = arrow_schema(request.table, request.columns)
    codes = wanted_codes(request)
    chunks = _by_id if len(span.lower) == 16 else _by_state
    for chunk in chunks(view, number, span, damages):
        found = chunk.codes()
        wanted = found != StateCode.GONE if codes is None else np.isin(found, codes)
        chunk = chunk if wanted.all() else chunk.only(wanted)
        yield from batches(schema, _COLUMNS, request, damages, chunk)


def _delay_ns(view: View, span: Span) -> int:
    return to_ns(view.queue(span.name).settings.delay_s)


def _by_id(view: View, number: int, span: Span, damages: Damages) -> Iterator[Joined]:
    """All bodies of a part of the queue. Between two of them, no id is without its turn: nor is an orphan."""
    prefix = keys.u32(number)
    reader = StateReader(view.kv, number, damages, _delay_ns(view, span))
    low = span.lower
    for found, values in damages.chunks(view.kv, "messages", (prefix + low, prefix + span.upper)):
        high = found[-1][4:] + b"\0"
        yield _joined(reader, columns.ids_of_keys(found), values, low, high)
        low = high
    _joined(reader, np.zeros((0, 16), np.uint8), [], low, span.upper)


def _joined(reader: StateReader, ids: Bytes, values: list[bytes], low: bytes, high: bytes) -> Joined:
    states, unknown = reader.between(low, high, StateCode)
    chunk = Joined(ids, values, states, reader.places(states, ids))
    lost = unknown.among(ids) & (chunk.places < 0)
    return chunk.only(~lost) if lost.any() else chunk


def _by_state(view: View, number: int, span: Span, damages: Damages) -> Iterator[Joined]:
    """Those of one state, by their state rows."""
    code, low, high = StateCode(span.lower[0]), span.lower[1:], span.upper[1:]
    reader = StateReader(view.kv, number, damages, _delay_ns(view, span))
    for states in reader.chunks(low, high, code):
        met: Numbers = np.zeros(len(states.codes), np.int64)
        for at, values in looked_up(view, number, states.ids):
            met[at] = 1
            yield Joined(states.ids[at], values, states, at)
        reader.tell_orphans(states, np.flatnonzero(met == 0))
