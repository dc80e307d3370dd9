"""Which priority is served next, and how much of it; turns inside a priority are the backend's."""

from __future__ import annotations

from collections.abc import Collection, Sequence

LEVELS = 10
#: A lower priority that has work gets at least one in this many deliveries.
STARVATION_BOUND = 20


class Levels:
    """Priorities by level, 0 for the highest: the top one that has work goes first, and no other starves."""

    def __init__(self) -> None:
        #: Deliveries since each level with work was last served.
        self._waited = [0] * LEVELS

    def next(self, lines: Sequence[Collection[object]], wanted: int) -> tuple[int, int]:
        """(level to serve, how many); level -1 when no line has anyone in it."""
        active = [level for level in range(LEVELS) if lines[level]]
        if len(active) < 2:
            return (active[0], wanted) if active else (-1, 0)
        # By deadline: the top level may go on as long as every other still gets its turn in time.
        starving = sorted(active[1:], key=self._waited.__getitem__, reverse=True)
        slack = min(
            STARVATION_BOUND - 1 - self._waited[level] - turns_before
            for turns_before, level in enumerate(starving)
        )
        return (active[0], min(wanted, slack)) if slack > 0 else (starving[0], 1)

    def served(self, level: int, count: int, lines: Sequence[Collection[object]]) -> None:
        """So many deliveries were of this level."""
        for other in range(LEVELS):
            if other == level or not lines[other]:
                self._waited[other] = 0
            else:
                self._waited[other] += count
