"""The suite passes through an attachment: the store is owned by another, and nothing shows it but `info`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import penstock
from penstock.clock import Clock
from penstock.config import Config, resolve
from penstock.testing.suite import BackendSuite


class Attached(penstock.Penstock):
    """Attached to an owner that is closed with it."""

    def __init__(self, config: Config, clock: Clock, rng: random.Random) -> None:
        self._owner = penstock.Penstock(config, clock, rng)
        super().__init__(config, clock, rng)

    def close(self) -> None:
        super().close()
        self._owner.close()


class TestAttached(BackendSuite):
    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        attached = Attached(resolve(folder), clock, rng)
        assert attached.info().default.attached_to == os.getpid()
        return attached
