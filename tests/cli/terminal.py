"""A command on a terminal of its own: what a person sees, types and interrupts."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path
from types import TracebackType

from tests.cli.calling import command

DEADLINE_S = 60


class Terminal:
    """A running command whose three streams are a terminal of 120 columns."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        stdin: int | None = None,
        columns: int = 120,
        program: list[str] | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            command(*arguments) if program is None else [sys.executable, *program],
            stdin=slave if stdin is None else stdin,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)},
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def until(self, text: str) -> str:
        """What is shown once `text` is among it."""
        while text not in self.shown:
            assert self._read(), f"ended without {text!r}: {self.shown!r}"
        return self.shown

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> int:
        """Ctrl-C until it ends; its exit code. One that comes just before it waits does not wake it."""
        for _ in range(DEADLINE_S):
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(1)
                break
            except subprocess.TimeoutExpired:
                continue
        return self.end()

    def end(self) -> int:
        """The exit code, once everything has been shown."""
        while self._read():
            pass
        return self.process.wait(DEADLINE_S)

    def read_some(self) -> None:
        """What is there already."""
        while select.select([self._master], [], [], 0)[0] and self._read():
            pass

    def _read(self) -> bool:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self._master], [], [], 0.2)
            if ready:
                try:
                    piece = os.read(self._master, 65_536)
                except OSError:  # How Linux says that the other side is closed.
                    return False
                self.shown += piece.decode(errors="replace")
                return bool(piece)
        raise AssertionError(f"nothing for {DEADLINE_S} s after {self.shown!r}")
