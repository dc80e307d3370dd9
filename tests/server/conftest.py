"""A store in memory with the queue `q`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock import Penstock


@pytest.fixture
def ps() -> Iterator[Penstock]:
    with penstock.open("memory:") as opened:
        opened.create_queue("q").stats()  # Which reads it.
        yield opened
