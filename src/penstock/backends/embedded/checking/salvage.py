"""Spaces that cannot be read throughout: written anew from what can, and from what other spaces name.

A damaged block hides its whole neighbourhood from a scan, the rows of sound tables too. Each of those is
found when it is asked for by its key, and most keys can be told: from the journal, the indexes, the bodies.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.journals import Walk
from penstock.backends.embedded.checking.recount import MISSING_AT_END
from penstock.backends.embedded.checking.standing import CODES
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.keys import Due, Meta
from penstock.errors import StorageCorrupt
from penstock.message import checked_name

#: Spaces whose content is found nowhere else. They are written anew in this order: later ones are told by
#: earlier ones.
TRUTH = ("meta", "journal", "messages", "state", "dedup")

_SINGLE = (
    Meta.FORMAT,
    Meta.NEXT_NUMBER,
    Meta.OPENINGS,
    Meta.KEYS,
    Meta.SECRET,
    Meta.REKEY,
    Meta.REINDEX,
)


class Salvage:
    """Writes damaged spaces of a store anew. The caller holds the lock, and takes new handles."""

    def __init__(self, engine: Engine, worlds: dict[str, int]) -> None:
        self._engine = engine
        self._worlds = worlds
        self._queues = {q.qid: q.name for q in engine.by_qid.values()}

    def run(self, spaces: Iterable[str]) -> None:
        wanted: dict[str, Callable[[View], Iterator[bytes]]] = {
            "meta": self._meta,
            "journal": self._journal,
            "messages": self._messages,
            "state": self._state,
            "dedup": self._dedup,
        }
        engine = self._engine
        for space in [space for space in TRUTH if space in spaces]:
            view = View(engine.kv, engine)
            try:
                named = sorted(set(wanted[space](view)))
            finally:
                view.release()
            engine.release_handles()
            try:
                engine.kv.salvage(space, functools.partial(_within, named))
            finally:
                engine.take_handles()

    def _meta(self, view: View) -> Iterator[bytes]:
        yield from (keys.meta(kind) for kind in _SINGLE)
        for kind in Due:
            yield keys.meta(Meta.DUE_HINT, bytes((kind,)))
        for number, name in self._queues.items():
            yield keys.meta(Meta.QUEUE, name.encode())
            yield keys.meta(Meta.COUNTERS, keys.u32(number))
            q = self._engine.by_qid[number]
            if q.loaded:
                yield from (keys.cursor(number, cursor.encode()) for cursor in q.required)
        for world in self._worlds:
            yield keys.meta(Meta.WORLD, checked_name(world, "world name"))

    def _journal(self, view: View) -> Iterator[bytes]:
        """Every seq that a journal may have a frame at."""
        for number in (*self._queues, *self._worlds.values()):
            last = self._last_seq(view, number)
            for seq in range(max(1, last - MISSING_AT_END), last + 1):
                yield keys.journal(number, seq)

    def _last_seq(self, view: View, number: int) -> int:
        q = self._engine.by_qid.get(number)
        try:
            if q is not None:
                return self._engine.queue(q.name).counters.next_seq - 1
        except StorageCorrupt:
            pass
        frames = view.rows("journal", keys.u32(number), keys.u32(number + 1), reverse=True)
        return next((int.from_bytes(key[4:], "big") for key, _ in frames), 0)

    def _ids(self, view: View, number: int, name: str) -> Iterator[bytes]:
        """Every message that the journal, the ready index or a state row speaks of."""
        for runs in Walk(view, name, number, 0, None).runs():
            for run in runs or ():
                yield from run.ids
        prefix, end = keys.u32(number), keys.u32(number + 1)
        for space in ("ready", "state"):
            yield from (key[-16:] for key, _ in view.rows(space, prefix, end))

    def _messages(self, view: View) -> Iterator[bytes]:
        for number, name in self._queues.items():
            yield from (keys.message(number, raw_id) for raw_id in self._ids(view, number, name))

    def _state(self, view: View) -> Iterator[bytes]:
        for number in self._queues:
            for key, _ in view.rows("messages", keys.u32(number), keys.u32(number + 1)):
                yield from (keys.state(number, code, key[4:]) for code in CODES)

    def _dedup(self, view: View) -> Iterator[bytes]:
        for key, _ in view.rows("due", bytes((Due.DEDUP,)), bytes((Due.DEDUP + 1,))):
            _, _, number, hashed = keys.parse_due(key)
            yield keys.u32(number) + hashed


def _within(named: list[bytes], start: bytes, end: bytes | None) -> Iterable[bytes]:
    return named[bisect_left(named, start) : None if end is None else bisect_left(named, end)]
