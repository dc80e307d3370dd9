"""One handler process, seen from its parent: how it starts, the line to it, and how it ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading

from penstock.worker.wire import Frames, FromChild, ToChild, encode, from_child

RECEIVED_BYTES = 1 << 16
#: An idle process that is told to end may run its exit functions for so long.
CLOSING_S = 2.0

_PROGRAM = "import sys; sys.path[:] = {path!r}; from penstock.worker.child import main; main({line})"


class Process:
    """A program of its own, never a fork: it inherits neither the store nor its locks."""

    def __init__(self) -> None:
        self.ready = False
        self._frames = Frames()
        self._sending = threading.Lock()
        self._line, theirs = socket.socketpair()
        with theirs:
            try:
                self._popen = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM.format(path=sys.path, line=theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    # Its own group: it ends together with everything that it has started.
                    process_group=0,
                )
            except BaseException:
                self._line.close()
                raise
        self.pid = self._popen.pid
        #: Readable when the process ends, though something that it started keeps the line open.
        self.death = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None

    def sources(self) -> list[socket.socket | int]:
        """What to wait on for news of it."""
        return [self._line] if self.death is None else [self._line, self.death]

    @property
    def ended(self) -> bool:
        """Whether it is known to have ended. Its exit status stays to be asked for."""
        return self.death is not None and bool(select.select([self.death], [], [], 0)[0])

    def send(self, frame: ToChild) -> None:
        """A process that is gone does not hear it; whoever waits for news of it finds that out."""
        with self._sending, contextlib.suppress(OSError):
            self._line.sendall(encode(frame))

    def receive(self) -> tuple[list[FromChild], bool]:
        """What it has said since, and whether it has closed the line."""
        frames: list[FromChild] = []
        while True:
            try:
                received = self._line.recv(RECEIVED_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return frames, False
            except OSError:
                return frames, True
            if not received:
                return frames, True
            frames += [from_child(body) for body in self._frames.feed(received)]

    def kill(self) -> None:
        """Only while nobody has asked for its exit status: its number is its own until then."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> str:
        """It and what it started, now; how it ended."""
        self.kill()
        return self._close(self._popen.wait())

    def hang_up(self) -> None:
        """An idle process hears this and ends by itself; one at work ends itself at once."""
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def end_in_peace(self) -> None:
        try:
            self._close(self._popen.wait(CLOSING_S))
        except subprocess.TimeoutExpired:
            self.end()

    def _close(self, status: int) -> str:
        self._line.close()
        if self.death is not None:
            os.close(self.death)
        if status >= 0:
            return f"exit status {status}"
        names = {one.value: one.name for one in signal.Signals}
        return names.get(-status, f"signal {-status}")
