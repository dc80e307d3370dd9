"""Runs the program with a worker, reads what it says, and ends it whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.testing.background import wait_until
from tests.worker.handlers import LIMIT_S

ROOT = Path(__file__).parents[2]


class Program:
    """A process with a worker in it that owns the store."""

    def __init__(self, store: Path | str, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker.program", str(store), json.dumps(options)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self.logged: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self._process.stdout, self.said), (self._process.stderr, self.logged))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        with stream:
            lines.extend(line.rstrip("\n") for line in stream)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()
        self._read_all()
        if kind is not None:
            sys.stderr.write("\n".join(self.logged))  # Shown with the test that failed.

    def _read_all(self) -> None:
        """Its processes have its output too: the end of it is the end of all of them."""
        for reader in self._readers:
            reader.join(LIMIT_S)
            assert not reader.is_alive(), "a process has outlived its worker"

    @property
    def started(self) -> int:
        return sum(line.startswith("start ") for line in self.said)

    def wait_started(self, count: int) -> None:
        wait_until(lambda: self.started >= count or self._process.poll() is not None)
        assert self.started >= count, "\n".join(self.logged)

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> dict[str, int]:
        """What it says last, when it has ended in good order."""
        status = self._process.wait(LIMIT_S)
        self._read_all()
        assert status == 0, f"status {status}\n" + "\n".join(self.logged)
        answer: dict[str, int] = json.loads(self.said[-1])
        return answer


def lives(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
