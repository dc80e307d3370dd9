"""A standalone Spark cluster on loopback, from the pyspark package: a master, workers, and their drivers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from pyspark.find_spark_home import _find_spark_home

from penstock.spark.java import java_home

PATIENCE_S = 180.0
ROOT = Path(__file__).resolve().parents[2]
_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


class Cluster:
    """Everything that it writes is in `folder`. Ports are those that the system has free."""

    def __init__(self, folder: Path, workers: int = 2, hidden: Path | None = None) -> None:
        """`hidden` is a folder that the last of the workers finds empty."""
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir()
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(java_home(folder)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
        }
        try:
            log = self._start("master", [], ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"])
            self.master = self._found(log, _URL)
            place = [
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--webui-port",
                "0",
                "--work-dir",
                str(folder / "work"),
            ]
            size = ["--cores", "1", "--memory", "1g"]
            before: list[list[str]] = [[]] * workers
            if hidden is not None:
                before[-1] = hiding(hidden)
            logs = [
                self._start(f"worker-{n}", before[n], [*place, *size, self.master]) for n in range(workers)
            ]
            for log in logs:
                self._found(log, re.compile(f"({_REGISTERED})"))
        except BaseException:
            self.stop()
            raise

    def _start(self, name: str, before: Sequence[str], arguments: Sequence[str]) -> Path:
        kind = name.partition("-")[0]
        program = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
        log = self._folder / f"{name}.log"
        with log.open("wb") as file:
            self._processes.append(
                subprocess.Popen(
                    [*before, os.path.join(_find_spark_home(), "bin", "spark-class"), program, *arguments],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        return log

    def _found(self, log: Path, pattern: re.Pattern[str]) -> str:
        pause = threading.Event()
        for _ in range(round(PATIENCE_S / 0.1)):
            if match := pattern.search(log.read_text()):
                return match[1]
            if any(process.poll() is not None for process in self._processes):
                break
            pause.wait(0.1)
        raise AssertionError(f"{log.name} does not say {pattern.pattern!r}:\n{log.read_text()}")

    def run(self, program: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """A driver, which finds the master as its first argument; it has a Java of its own."""
        return subprocess.run(
            [sys.executable, "-c", program, self.master, *map(str, arguments)],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                **environment,
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 6,
            check=False,
        )

    def stop(self) -> None:
        """Each is the head of a group, in which its executors are."""
        for process in reversed(self._processes):
            try:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(PATIENCE_S)
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def hiding(folder: Path) -> list[str]:
    """The start of a command line: what follows runs where the folder is empty, whoever looks.

    As root, in a namespace for mounts; as anybody else, with one for users, in which they are root.
    """
    script, said = 'mount -t tmpfs none "$0" && exec "$@"', ""
    for options in (["--mount"], ["--map-root-user", "--mount"]):
        command = ["unshare", *options, "sh", "-c", script, str(folder)]
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return command
        said += tried.stderr
    raise AssertionError(f"no process may have its own view of the file system here: {said}")
