"""A server on a store in memory, shared by a module; each test has a queue of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

import penstock
from tests.server.rest.api import Api, api

_numbers = count()


@pytest.fixture(scope="module")
def rest() -> Iterator[Api]:
    with penstock.open("memory:") as ps, api(ps) as served:
        yield served


@pytest.fixture
def q(rest: Api) -> str:
    """The path of a new queue."""
    name = f"q{next(_numbers)}"
    rest.ok("PUT", f"/queues/{name}", {})
    return f"/queues/{name}"
