"""One helper process, seen from its parent: how it starts, the line to it, and how it ends."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from penstock.config import HookSettings
from penstock.errors import BackendNotInstalled, HookError
from penstock.hooks import child

#: How long it may take to start, and to work besides what its limit allows: that takes milliseconds, but a
#: helper may be starved. One that says nothing for longer was stopped, or hangs.
PATIENCE_S = 10.0
WORK_PATIENCE_S = 3.0
#: More than any answer has: one who says so is not a helper any more.
MOST_FRAME_BYTES = 1 << 24
_RECEIVED_BYTES = 1 << 18
_HERE = Path(__file__).parent
#: Nothing else of the environment is passed on: keys may be in there.
_PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class Ended(Exception):
    """The helper is gone; `timed` if it was the kernel that ended it at its time limit."""

    def __init__(self, how: str, *, timed: bool = False) -> None:
        super().__init__(how)
        self.timed = timed


class Helper:
    """A program of its own, never a fork: it has neither the store nor any other file of its parent."""

    def __init__(self, settings: HookSettings) -> None:
        command = [
            sys.executable or "python3",
            "-I",  # Neither the user's environment nor the current folder decides what it imports.
            "-S",
            str(_HERE / "child.py"),
            _lua_folder(),
            str(_HERE / "sandbox.lua"),
            str(settings.time_limit_ms),
            str(settings.memory_limit),
        ]
        self._line, theirs = socket.socketpair()
        self._patience_s = PATIENCE_S
        self._line.settimeout(self._patience_s)
        with theirs:
            try:
                self._popen = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                    cwd="/",
                    # An interrupt at the terminal is not meant for it.
                    start_new_session=True,
                )
            except OSError as error:
                self._line.close()
                raise HookError(f"the helper process for scripts cannot be started: {error}") from error
        self.pid = self._popen.pid
        self._parent = os.getpid()
        try:
            first = self._receive()
        except Ended as ended:
            raise HookError(f"the helper process for scripts ended at its start: {ended}") from None
        if first != child.READY:
            self.end()
            raise HookError(
                f"the helper process for scripts cannot start: {first[1:].decode(errors='replace')}"
            )
        self._patience_s = WORK_PATIENCE_S + 3 * settings.time_limit_ms / 1000
        self._line.settimeout(self._patience_s)

    def ask(self, request: bytes, answer: Callable[[bytes], bytes]) -> bytes:
        """Its reply; what it asks meanwhile is answered. After anything that is raised it is gone."""
        try:
            self._send(request)
            while (frame := self._receive())[:1] == child.ASK:
                self._send(answer(frame[1:]))
        except BaseException:
            self.end()  # In the middle of something: what it says next would be to the wrong question.
            raise
        return frame

    def end(self) -> Ended:
        """Now; how it ended."""
        self._line.close()
        if self._parent != os.getpid():
            return Ended("it is another process's")  # This one is a fork.
        with contextlib.suppress(ProcessLookupError):
            self._popen.kill()
        status = self._popen.wait()
        if status >= 0:
            return Ended(f"exit status {status}")
        names = {one.value: one.name for one in signal.Signals}
        return Ended(names.get(-status, f"signal {-status}"), timed=-status == signal.SIGPROF)

    def _send(self, frame: bytes) -> None:
        try:
            self._line.sendall(child.LENGTH.pack(len(frame)) + frame)
        except OSError as error:
            raise self._gone(error) from None

    def _receive(self) -> bytes:
        try:
            (size,) = child.LENGTH.unpack(self._exactly(child.LENGTH.size))
            if size > MOST_FRAME_BYTES:
                raise ConnectionError
            return self._exactly(size)
        except OSError as error:
            raise self._gone(error) from None

    def _exactly(self, count: int) -> bytes:
        received = self._line.recv(min(count, _RECEIVED_BYTES)) if count else b""
        if len(received) == count:
            return received
        buffer = bytearray(received)
        while received and len(buffer) < count:
            received = self._line.recv(min(count - len(buffer), _RECEIVED_BYTES))
            buffer += received
        if len(buffer) < count:
            raise ConnectionError
        return bytes(buffer)

    def _gone(self, error: OSError) -> Ended:
        if isinstance(error, TimeoutError):
            self.end()
            return Ended(f"no answer for {self._patience_s:g} s")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(PATIENCE_S)  # It is ending by itself: its own signal is the reason.
        return self.end()


def _lua_folder() -> str:
    """The folder that the Lua package is in."""
    found = importlib.util.find_spec("lupa")
    if found is None or not found.submodule_search_locations:
        raise BackendNotInstalled("lupa", "lua")
    return str(Path(next(iter(found.submodule_search_locations))).parent)
