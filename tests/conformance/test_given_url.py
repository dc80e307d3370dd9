"""The suite over whatever PENSTOCK_TEST_URL names; without it there is nothing to collect here."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.clock import Clock
from penstock.testing.suite import BackendSuite
from tests.conformance.given_url import VARIABLE, clear, place_of

URL = os.environ.get(VARIABLE, "")

if URL:

    class TestGivenUrl(BackendSuite):
        used: set[Path]

        @pytest.fixture(autouse=True)
        def _cleared(self) -> Iterator[None]:
            self.used = set()
            yield
            for folder in self.used:
                clear(place_of(URL, folder))

        def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
            self.used.add(folder)
            return penstock.open(place_of(URL, folder), clock=clock, rng=rng)
