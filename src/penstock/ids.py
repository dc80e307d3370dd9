"""Message ids: UUIDv7 from the injected clock and randomness, strictly increasing in one generator."""

from __future__ import annotations

import random

_LOW_BITS = 48
_LOW_LIMIT = 1 << _LOW_BITS
#: 2**64 divided by the golden ratio: spreads consecutive numbers over all bits.
_ODD = 0x9E3779B97F4A7C15


class IdGenerator:
    """Hands out ids in runs that share their first ten bytes, so that a batch costs a few additions.

    Not thread-safe: its owner holds a lock.
    """

    def __init__(self, rng: random.Random, opening: int = 0) -> None:
        self._rng = rng
        # A store reopened with the same seed at the same time must not hand out the same ids again.
        self._salt = opening * _ODD
        self._ms = -1
        self._high = b""
        self._text = ""
        self._low = 0

    def take(self, count: int, now_ns: int) -> tuple[bytes, str, int]:
        """(first ten bytes, their text with its dashes, first low number) for `count` ids."""
        ms = now_ns // 1_000_000
        if ms > self._ms or self._low + count > _LOW_LIMIT:
            self._start(max(ms, self._ms + 1 if self._ms >= 0 else ms))
        low = self._low
        self._low += count
        return self._high, self._text, low

    def one(self, now_ns: int) -> bytes:
        high, _, low = self.take(1, now_ns)
        return high + low.to_bytes(6, "big")

    def _start(self, ms: int) -> None:
        self._ms = ms
        random_26 = (self._rng.getrandbits(26) ^ self._salt) & (1 << 26) - 1
        value = (ms & (1 << 48) - 1) << 32 | 0x7 << 28 | (random_26 >> 14) << 16 | 0x2 << 14
        self._high = (value | random_26 & 0x3FFF).to_bytes(10, "big")
        h = self._high.hex()
        self._text = f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-"
        # Half of the range stays free, so that a run of ids cannot overflow it.
        self._low = (self._rng.getrandbits(_LOW_BITS - 1) ^ self._salt) & (_LOW_LIMIT >> 1) - 1
