"""Scripts run without a store, and looks at the helper process that runs them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock import ManualClock, NewMessage, PenstockError
from penstock.codec.body import Body
from penstock.config import HookSettings
from penstock.hooks.scripts import Refused, Script, Scripts
from penstock.hooks.wire import Failure

PATIENCE_S = 30.0

BOMB = "string.find(string.rep('a', 30000), '.-.-.-.-.-b')"


@contextmanager
def running(
    settings: HookSettings | None = None,
    state: dict[str, bytes] | None = None,
    clock: ManualClock | None = None,
) -> Iterator[Scripts]:
    scripts = Scripts(settings or HookSettings(), clock or ManualClock(), (state or {}).get)
    try:
        yield scripts
    finally:
        scripts.close()


def on_enqueue(body: str) -> Script:
    return Script("q", "on_enqueue", f"function on_enqueue(message)\n{body}\nend")


def on_failure(body: str) -> Script:
    return Script("q", "on_failure", f"function on_failure(message, failure)\n{body}\nend")


def enqueued(scripts: Scripts, script: Script, *messages: NewMessage) -> list[NewMessage]:
    """The messages, none of which may be refused."""
    found = scripts.enqueue(script, messages or [NewMessage()])
    for one in found:
        assert isinstance(one, NewMessage), one
    return [one for one in found if isinstance(one, NewMessage)]


def refused(scripts: Scripts, script: Script, *messages: NewMessage) -> list[PenstockError | None]:
    """Why each was refused, None for what was not."""
    found = scripts.enqueue(script, messages or [NewMessage()])
    return [one.error if isinstance(one, Refused) else None for one in found]


def failure(kind: str = "nack", reason: str = "", payload: bytes = b"", attempts: int = 1) -> Failure:
    body = Body(4, 1, 5, 5, 0, "key", {"a": "b"}, (), "dedup", payload)
    return Failure(kind, reason, None, "worker", attempts, False, bytes(range(16)), body)


def until(condition: Callable[[], object]) -> None:
    """Wait for something that another process or thread brings about."""
    pause = threading.Event()
    for _ in range(round(PATIENCE_S / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")


def helper_of(scripts: Scripts) -> int:
    pid = scripts.pool.pid
    assert pid is not None
    return pid


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended, but was not asked for its status, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
