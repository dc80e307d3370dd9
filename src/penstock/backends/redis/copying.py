"""Streams sealed anew: what is in a stream cannot be changed, so a copy of it grows and takes its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import CHANGED, MORE, NOT_FOUND, Engine, Known, QueueChanged
from penstock.backends.redis.keys import JOURNAL
from penstock.backends.redis.renewing import Renewing
from penstock.backends.redis.scripts import script
from penstock.backends.redis.seals import FRAMES
from penstock.backends.redis.worlds import Worlds, frame_key

#: What one call takes at most.
FRAMES_PER_SLICE = 200
BYTES_PER_SLICE = 4 << 20


class Interrupted(Exception):
    """Another process has the copy, or what is copied was changed: it is begun anew later."""


class Copying:
    """Copies the streams of one store. `go_on` is asked between slices, and raises to stop."""

    def __init__(self, engine: Engine, worlds: Worlds, go_on: Callable[[], None]) -> None:
        self._engine = engine
        self._worlds = worlds
        self._go_on = go_on

    # -- journals

    def journal(self, q: Known, renewing: Renewing) -> tuple[int, int]:
        """(frames, those that are other bytes now); where all are as they should be, nothing is written."""
        frames = rewritten = 0
        for _, raw in self._entries(q.keys[JOURNAL]):
            frames += 1
            rewritten += renewing.frame(q, raw) is not raw
        if not rewritten:
            return frames, 0
        renewing = Renewing(self._engine)  # What does not open was counted.
        last, size = b"", 0
        for some in _slices((entry, renewing.frame(q, raw)) for entry, raw in self._entries(q.keys[JOURNAL])):
            last, size, _ = self._journal_step(q, last, size, 0, some)
        ended = False
        while not ended:
            last, size, ended = self._journal_step(q, last, size, 1, [])
        return frames, rewritten

    def _journal_step(
        self, q: Known, last: bytes, size: int, end: int, some: list[tuple[bytes, bytes]]
    ) -> tuple[bytes, int, bool]:
        self._go_on()
        engine = self._engine
        args: list[Arg] = [
            *engine.head(),
            q.changed,
            last,
            size,
            end,
            *(one for pair in some for one in pair),
        ]
        keys = [*q.keys, engine.keys.journal_copy(q.name)]
        reply = engine.server.run(script("journal_copy"), keys, args)
        if reply[0] in (NOT_FOUND, CHANGED):
            raise QueueChanged(q.name)
        if reply[2] < 0:
            raise Interrupted
        return reply[3], int(reply[2]), reply[4] == b"1"

    # -- worlds

    def world(self, world: str, renewing: Renewing) -> tuple[int, int]:
        """The same for the frames of a world."""
        frames = rewritten = 0

        def renewed(seq: int, raw: bytes) -> bytes:
            return renewing.value(FRAMES, frame_key(world, seq), raw)

        for seq, raw in self._worlds.stored_frames(world, 0):
            frames += 1
            rewritten += renewed(seq, raw) is not raw
        if not rewritten:
            return frames, 0
        renewing = Renewing(self._engine)
        last, sizes = b"", dict[int, int]()
        while True:
            record = self._worlds.record(world)
            copied = int(last.split(b"-")[0] or 0)
            new = (
                (b"%d-0" % seq, renewed(seq, raw))
                for seq, raw in self._worlds.stored_frames(world, copied)
                if seq < record.next_seq
            )
            for some in _slices(new):
                last = self._world_step(world, last, some)
                sizes |= {int(entry.split(b"-")[0]): len(frame) for entry, frame in some}
            size = sum(size for seq, size in sizes.items() if seq > record.base_seq)
            if self._world_end(world, last, *self._worlds.sized(record, size)):
                return frames, rewritten

    def _world_step(self, world: str, last: bytes, some: list[tuple[bytes, bytes]]) -> bytes:
        self._go_on()
        reply = self._copy(world, last, b"", b"", *(one for pair in some for one in pair))
        if reply[0] == CHANGED:
            raise Interrupted
        return bytes(reply[1])

    def _world_end(self, world: str, last: bytes, was: bytes, record: bytes) -> bool:
        self._go_on()
        if self._copy(world, last, was, record)[0] != CHANGED:
            return True
        if self._engine.seals.look():
            raise Interrupted
        return False

    def _copy(self, world: str, *args: Arg) -> list[Any]:
        engine = self._engine
        keys = [*self._worlds.keys(world), engine.keys.world_copy(world)]
        sent = [*engine.head(), engine.seals.fence, world.encode(), *args]
        reply: list[Any] = engine.server.run(script("world_copy"), keys, sent)
        if reply[0] == MORE:
            raise Interrupted
        return reply

    def _entries(self, stream: bytes) -> Iterator[tuple[bytes, bytes]]:
        start: bytes = b"-"
        while rows := self._engine.server.command("XRANGE", stream, start, "+", "COUNT", FRAMES_PER_SLICE):
            for entry, fields in rows:
                yield entry, fields[1] if isinstance(fields, list) else fields[b"f"]
            start = b"%d-0" % (int(rows[-1][0].split(b"-")[0]) + 1)


def _slices(pairs: Iterator[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    some: list[tuple[bytes, bytes]] = []
    size = 0
    for pair in pairs:
        some.append(pair)
        size += len(pair[1])
        if len(some) == FRAMES_PER_SLICE or size >= BYTES_PER_SLICE:
            yield some
            some, size = [], 0
    if some:
        yield some
