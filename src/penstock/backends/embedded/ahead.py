"""Bodies as leases want them, and those that were read on the way: remembered, for they are wanted soon.

Fair turns lease from many keys at once, so that what is leased together lies scattered. Reading on from where
the last walk ended is cheaper a body than looking each up, and what comes next there is mostly leased soon.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.backends.embedded import keys
from penstock.errors import StorageCorrupt

if TYPE_CHECKING:
    from penstock.backends.embedded.engine import Engine, Transaction
    from penstock.backends.embedded.queue_state import QueueState

#: So many bodies are worth a walk to where they are; fewer are looked up one by one.
WALK_FROM = 8
#: How many others a walk passes over, first and at most: twice as many after each that had to on its way, and
#: then beyond its way too; half as many after one that met nothing but what it sought.
AHEAD_FIRST = 8
AHEAD_AT_MOST = 1024
#: How large a body may be to be remembered: a walk ends at one that is larger.
REMEMBERED_BODY_BYTES = 4096
#: Bodies of a queue that were remembered and not wanted yet: with so many it reads no further ahead.
UNWANTED_AT_MOST = 32_768
#: Of so many that were looked up, one more is tried.
TRIED_AGAIN = 16
#: Rows leased without a walk after which it starts anew: most of what it would pass over has gone.
STALE_AFTER_ROWS = 4096
#: What a store remembers, and what a body takes besides its bytes.
REMEMBERED_BYTES = 32 << 20
ENTRY_BYTES = 200


class _Walk:
    """One queue's: where it goes on, how far, how much more may be remembered, rows leased by then.

    Of what it remembers, the older half goes when the younger is full: none is looked for to let it go.
    """

    __slots__ = ("ahead", "leased", "next", "older", "room", "younger")

    def __init__(self) -> None:
        self.younger: dict[bytes, bytes] = {}
        self.older: dict[bytes, bytes] = {}
        self.next = b""
        self.ahead = AHEAD_FIRST
        self.room = UNWANTED_AT_MOST
        self.leased = -STALE_AFTER_ROWS


class ReadAhead:
    """Bodies of one store by key. Guarded by the engine's lock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.clear()

    def clear(self) -> None:
        """The store may have others by now."""
        self._walks: dict[int, _Walk] = {}
        #: What came to the younger halves of all since they were last empty.
        self._younger_bytes = 0

    def replaced(self, txn: Transaction, key: bytes) -> None:
        """A transaction puts a body where another one may be, which the store has until it is written."""
        txn.replaces = True
        walk = self._walks.get(int.from_bytes(key[:4], "big"))
        if walk is not None:
            walk.younger.pop(key, None)
            walk.older.pop(key, None)

    def bodies(self, q: QueueState, sought: list[bytes], leased: int) -> Sequence[bytes | None]:
        """What is under these keys, in their order, of so many rows that are being leased."""
        walk = self._walks.get(q.qid)
        if walk is None:
            walk = self._walks[q.qid] = _Walk()
        values: list[bytes | None] = []
        missing = sought
        if walk.younger or walk.older:
            younger, older = walk.younger.pop, walk.older.pop
            values = [younger(key, None) or older(key, None) for key in sought]
            missing = [key for key, body in zip(sought, values, strict=True) if body is None]
        # What was kept with its row was met on the way too, and is as good as found.
        hits = leased - len(missing)
        walk.room = min(UNWANTED_AT_MOST, walk.room + hits + len(missing) // TRIED_AGAIN)
        walk.leased += hits
        if not missing:
            return values
        found = self._read(q, walk, sorted(missing))
        if missing is sought:
            return [found[key] for key in sought]
        return [found[key] if body is None else body for key, body in zip(sought, values, strict=True)]

    def _read(self, q: QueueState, walk: _Walk, missing: list[bytes]) -> dict[bytes, bytes | None]:
        """From the store: what a walk meets, and the rest one by one."""
        engine, count = self._engine, len(missing)
        behind = bisect_left(missing, walk.next)
        goes_on = 2 * behind <= count and q.ready.served - walk.leased <= STALE_AFTER_ROWS
        found: dict[bytes, bytes | None] = {}
        if count >= WALK_FROM or (goes_on and walk.room > walk.ahead > AHEAD_FIRST):
            if not goes_on:
                walk.next, walk.ahead = missing[0], AHEAD_FIRST
            found = self._go_on(q, walk, missing)
            walk.leased = q.ready.served
        if len(found) < count:
            others = [key for key in missing if key not in found]
            found.update(zip(others, engine.kv.get_many(others, engine.messages), strict=True))
        return found

    def _go_on(self, q: QueueState, walk: _Walk, missing: list[bytes]) -> dict[bytes, bytes | None]:
        """Those of them that the next part of the walk meets; the others that it meets are remembered."""
        engine = self._engine
        allowance = max(AHEAD_FIRST, min(walk.ahead, walk.room))
        found: dict[bytes, bytes | None] = {}
        passed: dict[bytes, bytes] = {}
        wanted, size_bytes, last, after = set(missing), 0, missing[-1], b"\0"
        key, end = last, last + after
        if walk.room > walk.ahead > AHEAD_FIRST:
            end = keys.u32(q.qid + 1)
        try:
            for key, body in engine.kv.scan(engine.messages, walk.next, end):
                if key in wanted:
                    found[key] = body
                    allowance += 1
                elif len(body) > REMEMBERED_BODY_BYTES:
                    break
                elif not allowance:
                    after = b""
                    break
                else:
                    allowance -= 1
                    size_bytes += len(body)
                    passed[key] = body
        except StorageCorrupt:
            key = max(key, last)  # If it is one of those, its look-up says so; else it stops nobody.
        walk.next = key + after
        scattered = bool(passed) and next(iter(passed)) < last
        walk.ahead = min(2 * walk.ahead, AHEAD_AT_MOST) if scattered else max(walk.ahead // 2, AHEAD_FIRST)
        txn = engine.open_transaction
        if passed and not (txn is not None and txn.replaces):
            self._remember(walk, passed, size_bytes)
        return found

    def _remember(self, walk: _Walk, passed: dict[bytes, bytes], size_bytes: int) -> None:
        walk.room = max(0, walk.room - len(passed))
        walk.younger.update(passed)
        self._younger_bytes += size_bytes + ENTRY_BYTES * len(passed)
        if self._younger_bytes > REMEMBERED_BYTES // 2:
            self._younger_bytes = 0
            for one in self._walks.values():
                one.older, one.younger = one.younger, {}
