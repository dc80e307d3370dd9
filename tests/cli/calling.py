"""How tests call the command line: in this process, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from typer.testing import CliRunner

import penstock
from penstock import Penstock
from penstock.cli.main import app

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What a command wrote, and its exit code."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Every line of --json; anything else on a line fails."""
        found = [json.loads(line) for line in self.lines]
        assert all(isinstance(item, dict) for item in found)
        return found

    @property
    def object(self) -> dict[str, Any]:
        (found,) = self.objects
        return found


@dataclass
class Cli:
    """The command line in one folder."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "penstock-data"

    def __call__(self, *arguments: str, input: bytes | str | None = None, code: int | None = 0) -> Answer:
        """Run a command in this process; `code` is the exit code it must have, None for any."""
        result = CliRunner().invoke(
            app, list(arguments), input=input, catch_exceptions=False, prog_name="penstock"
        )
        answer = Answer(result.exit_code, result.stdout_bytes, result.stderr)
        assert code is None or answer.code == code, (answer.code, answer.out, answer.err)
        return answer

    def process(
        self, *arguments: str, input: bytes = b"", code: int | None = 0, env: dict[str, str] | None = None
    ) -> Answer:
        """The same as a process of its own, without a terminal."""
        done = subprocess.run(
            command(*arguments),
            input=input,
            capture_output=True,
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            timeout=120,
            check=False,
        )
        answer = Answer(done.returncode, done.stdout, done.stderr.decode())
        assert code is None or answer.code == code, (answer.code, answer.out, answer.err)
        return answer

    def through_api(self, call: Callable[[Penstock], T]) -> T:
        with penstock.open(self.store) as ps:
            return call(ps)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "penstock", *arguments]
