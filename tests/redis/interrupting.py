"""Something that happens in the middle of a call: another process was faster, between two of its scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.backends.redis import driver
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


def lose(
    monkeypatch: pytest.MonkeyPatch,
    ps: penstock.Penstock,
    name: str,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """A script is done, its answer is lost, and something happens before it is sent again."""
    sender = server_of(ps)._sender
    talk, lost = sender._talk, [False]

    def cut(connection: Any, node: Any, calls: Any, asking: bool) -> Any:
        script = getattr(calls[0], "_script", None)
        if lost[0] or script is None or script.name != name:
            return talk(connection, node, calls, asking)
        calls[0].not_loaded()  # Sent whole: it is certainly done.
        connection.send_packed_command(connection.pack_commands([calls[0].command()]), check_health=False)
        connection.read_response()
        lost[0] = calls[0].is_sent = True
        meanwhile()
        raise driver.ConnectionError("cut")

    monkeypatch.setattr(sender, "_talk", cut)
