"""What the tests of the worker share: a store in memory, and the three modes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Penstock, Queue

MODES = ("threads", "processes", "asyncio")

Handler = Callable[[Any], object]


@pytest.fixture
def ps() -> Iterator[Penstock]:
    with penstock.open("memory:") as opened:
        yield opened


@pytest.fixture
def q(ps: Penstock) -> Queue:
    return ps.create_queue("q", lease_s=30, max_attempts=3)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where handlers note what they do."""
    return tmp_path / "log"


def in_mode(mode: str, handler: Handler) -> dict[str, Any]:
    """The handler as that mode wants it, and the mode."""
    return {"handler": as_coroutine(handler) if mode == "asyncio" else handler, "mode": mode}


def as_coroutine(handler: Handler) -> Callable[[Any], Coroutine[Any, Any, object]]:
    """The same as a coroutine function: in a thread, so that the loop goes on meanwhile."""

    @functools.wraps(handler)
    async def call(work: Any) -> object:
        return await asyncio.to_thread(handler, work)

    return call
