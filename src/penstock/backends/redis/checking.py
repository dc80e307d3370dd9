"""Checks."""

from __future__ import annotations

from penstock.backends.base import CheckReport, Progress
from penstock.backends.redis.engine import Engine
from penstock.backends.redis.quarantine import Quarantine
from penstock.backends.redis.worlds import Worlds


class Checking:
    """Checks one store."""

    def __init__(self, engine: Engine, quarantine: Quarantine, worlds: Worlds) -> None:
        self._engine = engine

    def check(self, repair: bool, progress: Progress | None) -> CheckReport:
        self._engine.all_queues()
        return CheckReport([], 0, 0, 0)

    def reindex(self, progress: Progress | None) -> CheckReport:
        return CheckReport([], 0, 0, 0)
