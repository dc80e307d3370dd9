"""Who has sent anything of late: one connection alone, or several."""

from __future__ import annotations

from time import monotonic

#: Who has sent requests for so long, and nobody else, is alone.
ALONE_S = 0.25


class Heard:
    """Told of each request, by the connection that it came on."""

    def __init__(self) -> None:
        self._last: object = None
        self._since_s = monotonic()

    def __call__(self, connection: object) -> None:
        if connection is not self._last:
            self._last, self._since_s = connection, monotonic()

    def is_one(self) -> bool:
        """Whether the last requests, for a while, have all come on one connection."""
        return monotonic() - self._since_s > ALONE_S

    def forget(self, connection: object) -> None:
        """It is closed."""
        if connection is self._last:
            self._last = None
