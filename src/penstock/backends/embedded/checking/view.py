"""What a check reads: the store at one moment, past what cannot be read or has an impossible key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.keys import SPACES, Due, Meta, StateCode
from penstock.errors import StorageCorrupt, as_answer
from penstock.kv.base import Reader, Row
from penstock.kv.damage import Hole, readable_rows

#: Bytes of a key, where all of a space have the same.
KEY_BYTES = {"messages": 20, "state": 21, "due": 29, "dedup": 20, "journal": 12, "entries": 16, "held": 28}
_SHORTEST_READY_KEY = 33
#: The same in `meta`, by kind: the least and the most. A kind that is not here is judged by its rows.
_META_BYTES: dict[int, tuple[int, int | None]] = {
    Meta.FORMAT: (1, 1),
    Meta.QUEUE: (2, None),
    Meta.COUNTERS: (5, 5),
    Meta.WORLD: (2, None),
    Meta.CURSOR: (6, None),
    Meta.USER_STATE: (2, None),
    Meta.JOB: (5, 6),
    Meta.LANE_HINT: (10, None),
    Meta.DUE_HINT: (2, 2),
    Meta.NEXT_NUMBER: (1, 1),
    Meta.OPENINGS: (1, 1),
    Meta.QUARANTINE: (17, 17),
    Meta.REINDEX: (1, 1),
    Meta.CALL: (17, 17),
    Meta.THROTTLE: (2, None),
}


def _ignore(*what: object) -> None:
    """For readers who do not ask."""


class View:
    """A reader of all spaces by name: a snapshot's, or the live store's for one who holds its lock."""

    def __init__(self, reader: Reader, engine: Engine) -> None:
        self._reader = reader
        self._spaces = {name: engine.kv.space(name) for name in SPACES}
        self.on_hole: Callable[[Hole], None] = _ignore
        self.on_malformed: Callable[[str, Row], None] = _ignore

    def release(self) -> None:
        """Let go of the store's handles: the driver keeps a database open while one is alive."""
        self._spaces = {}
        self.on_hole = self.on_malformed = _ignore

    def get(self, space: str, key: bytes) -> bytes | None:
        return self._reader.get(key, self._spaces[space])

    def get_many(self, space: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._reader.get_many(keys, self._spaces[space])

    def rows(self, space: str, lower: bytes, upper: bytes | None, *, reverse: bool = False) -> Iterator[Row]:
        """Rows whose keys can be; an unreadable part is reported, and the rows behind it go on."""
        for row in self._readable(space, lower, upper, reverse):
            if well_formed(space, row[0]):
                yield row
            else:
                self.on_malformed(space, row)

    def _readable(self, space: str, lower: bytes, upper: bytes | None, reverse: bool) -> Iterator[Row]:
        handle = self._spaces[space]
        if not reverse:
            return readable_rows(self._reader, handle, space, lower, upper, self.on_hole)
        return self._backwards(space, lower, upper)

    def _backwards(self, space: str, lower: bytes, upper: bytes | None) -> Iterator[Row]:
        """Who looks back for something takes what is there: a hole ends the search."""
        try:
            yield from self._reader.scan(self._spaces[space], lower, upper, reverse=True)
        except StorageCorrupt as error:
            self.on_hole(Hole(space, lower, upper, as_answer(error)))


def well_formed(space: str, key: bytes) -> bool:
    """Whether a key of the space can be this one."""
    if space == "ready":
        return len(key) >= _SHORTEST_READY_KEY and _lane_fits(key)
    if space == "state":
        return len(key) == KEY_BYTES[space] and key[4] <= StateCode.GONE
    if space == "due":
        return len(key) == KEY_BYTES[space] and Due.LEASE <= key[0] <= Due.LINE
    if space == "meta":
        least, most = _META_BYTES.get(key[0] if key else 0, (1, None))
        return len(key) >= least and (most is None or len(key) <= most)
    return len(key) == KEY_BYTES[space]


def _lane_fits(key: bytes) -> bool:
    """The lengths inside a ready key add up to its own."""
    fairness_end = 7 + int.from_bytes(key[5:7], "big")
    throttle_bytes = int.from_bytes(key[fairness_end : fairness_end + 2], "big")
    return key[4] <= 9 and len(key) == fairness_end + 2 + throttle_bytes + 24
