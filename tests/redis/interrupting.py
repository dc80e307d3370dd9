"""Something that happens in the middle of a call: another process was faster, between two of its scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.backends.redis.connecting import Server


def server_of(ps: penstock.Penstock) -> Server:
    backend: Any = ps._default
    server: Server = backend._server
    return server


def after(
    monkeypatch: pytest.MonkeyPatch, ps: penstock.Penstock, name: str, nth: int, act: Callable[[], object]
) -> None:
    """Act when this store has run a script so many times."""
    server = server_of(ps)
    run, seen = server.run, [0]

    def counted(script: Any, *args: Any, **more: Any) -> Any:
        reply = run(script, *args, **more)
        if script.name == name:
            seen[0] += 1
            if seen[0] == nth:
                act()
        return reply

    monkeypatch.setattr(server, "run", counted)
