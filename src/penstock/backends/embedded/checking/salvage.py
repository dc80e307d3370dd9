"""Spaces that cannot be read throughout: written anew from what can, and from what other spaces name.

A damaged block hides its whole neighbourhood from a scan, the rows of sound tables too. Each of those is
found when it is asked for by its key, and most keys can be told: from the journal, the indexes, the bodies.
"""

from __future__ import annotations

import functools
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
        self._last_seqs: dict[int, int] = {}

    def run(self, spaces: Iterable[str]) -> None:
        """Keys are told for one unreadable part at a time: memory may have no room for all of them."""
        told: dict[str, Callable[[View, bytes, bytes | None], Iterable[bytes]]] = {
            "meta": lambda view, start, end: _within(named, start, end),
            "journal": self._journal,
            "messages": self._messages,
            "state": self._state,
            "dedup": lambda view, start, end: _within(self._dedup(view), start, end),
        }
        engine = self._engine
        named = list(self._meta())  # What queues know is forgotten with the handles.
        for space in [space for space in TRUTH if space in spaces]:
            view = View(engine.kv, engine)
            if space == "journal":
                numbers = (*self._queues, *self._worlds.values())
                self._last_seqs = {number: self._last_seq(view, number) for number in sorted(numbers)}
            engine.release_handles()
            try:
                engine.kv.salvage(space, functools.partial(told[space], view))
            finally:
                view.release()
                engine.take_handles()

    def _meta(self) -> Iterator[bytes]:
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

    def _journal(self, view: View, start: bytes, end: bytes | None) -> Iterator[bytes]:
        """Every seq that a journal may have a frame at."""
        for number, last in self._last_seqs.items():
            first = max(1, last - MISSING_AT_END)
            if start[:4] == keys.u32(number):
                first = max(first, int.from_bytes(start[4:12].ljust(8, b"\0"), "big"))
            for seq in range(first, last + 1):
                key = keys.journal(number, seq)
                if end is not None and key >= end:
                    break
                if key >= start:
                    yield key

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

    def _messages(self, view: View, start: bytes, end: bytes | None) -> Iterator[bytes]:
        for number in self._numbers(start, end):
            ids = self._ids(view, number, self._queues[number])
            yield from _within((keys.message(number, raw_id) for raw_id in ids), start, end)

    def _state(self, view: View, start: bytes, end: bytes | None) -> Iterator[bytes]:
        for number in self._numbers(start, end):
            for code in sorted(CODES):
                for key, _ in view.rows("messages", keys.u32(number), keys.u32(number + 1)):
                    state = keys.state(number, code, key[4:])
                    if end is not None and state >= end:
                        break
                    if state >= start:
                        yield state

    def _numbers(self, start: bytes, end: bytes | None) -> Iterator[int]:
        """The queues that a part of a space may have rows of."""
        for number in sorted(self._queues):
            if keys.u32(number + 1) > start and (end is None or keys.u32(number) < end):
                yield number

    def _dedup(self, view: View) -> Iterator[bytes]:
        for key, _ in view.rows("due", bytes((Due.DEDUP,)), bytes((Due.DEDUP + 1,))):
            _, _, number, hashed = keys.parse_due(key)
            yield keys.u32(number) + hashed


def _within(named: Iterable[bytes], start: bytes, end: bytes | None) -> list[bytes]:
    return sorted({key for key in named if start <= key and (end is None or key < end)})
