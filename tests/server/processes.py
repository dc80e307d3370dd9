"""`penstock serve` as a process of its own, and requests to it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.calling import command

TIMEOUT_S = 60


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], said: dict[str, Any], errors: Path) -> None:
        self.process = process
        self.url: str = said["url"]
        self.port: int = said["port"]
        self._errors = errors

    @property
    def errors(self) -> str:
        """What it wrote on standard error so far."""
        return self._errors.read_text()

    def get(
        self, path: str, tls: ssl.SSLContext | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        connection = (
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
            if tls is None
            else http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT_S, context=tls)
        )
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            body = response.read()
            is_json = response.headers["content-type"] == "application/json"
            return response.status, json.loads(body) if is_json else body.decode()
        finally:
            connection.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)


@contextmanager
def serving(folder: Path, *arguments: str, **environ: str) -> Iterator[Served]:
    errors = folder / "errors"
    with errors.open("wb") as sink:
        process = subprocess.Popen(
            command("serve", "--json", "--port", "0", *arguments),
            cwd=folder,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=sink,
        )
    # A process that says nothing must not hold up the test for ever; one that serves may take its time.
    guard = threading.Timer(TIMEOUT_S, process.kill)
    guard.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        guard.cancel()
        assert line, errors.read_text()
        yield Served(process, json.loads(line), errors)
    finally:
        guard.cancel()
        process.kill()
        process.wait(TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()
