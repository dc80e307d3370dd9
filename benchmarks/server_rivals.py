"""The servers that Penstock's is measured beside: moto's, and ElasticMQ with persistence."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ELASTICMQ_VERSION = "1.6.12"
_START_S = 90.0
_FETCH_S = 300.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>none</groupId><artifactId>none</artifactId><version>1</version><packaging>pom</packaging>
<dependencies><dependency><groupId>org.elasticmq</groupId><artifactId>elasticmq-server_2.13</artifactId>
<version>{version}</version></dependency></dependencies></project>
"""

# Queues in a file, messages in H2: what its documentation calls persistence. H2 writes its log when it has
# enough or half a second later, so this promises less than a sync for each call.
_CONFIG = """include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
queues-storage {{ enabled = true, path = "{folder}/queues.conf" }}
messages-storage {{
  enabled = true
  driver-class-name = "org.h2.Driver"
  uri = "jdbc:h2:{folder}/elasticmq"
  username = "sa"
  password = ""
  prune-data-on-init = false
}}
"""


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[str]:
    """A server as a process of its own, from when its port is open until the block is left: HOST:PORT."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        _wait_for(process, port, log)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)  # noqa: TID251 - another process starts, in its own time
        else:
            return
    raise RuntimeError(f"{process.args!r} did not open port {port}: {log.read_text()[-2000:]}")


@contextmanager
def moto(folder: Path) -> Iterator[str]:
    """The threaded server of moto. It keeps everything in memory."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port, folder / "moto.log") as address:
        yield address


def elasticmq_jars(folder: Path) -> str:
    """ElasticMQ from Maven Central, kept in the folder; an error says why it cannot be had."""
    classpath = folder / "classpath.txt"
    if not shutil.which("java"):
        raise RuntimeError("java is not there")
    if not classpath.exists():
        _fetch(folder)
    return classpath.read_text().strip()


def _fetch(folder: Path) -> None:
    if not shutil.which("mvn"):
        raise RuntimeError("mvn is not there")
    (folder / "pom.xml").write_text(_POM.format(version=ELASTICMQ_VERSION))
    command = ["mvn", "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=classpath.txt"]
    try:
        fetched = subprocess.run(
            [*command, f"-Dmaven.repo.local={folder}/repository"],
            cwd=folder,
            capture_output=True,
            timeout=_FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"mvn had not fetched it after {_FETCH_S:.0f} s") from late
    if fetched.returncode:
        raise RuntimeError("mvn could not fetch it: " + fetched.stdout.decode(errors="replace")[-300:])


@contextmanager
def elasticmq(folder: Path, classpath: str) -> Iterator[str]:
    """ElasticMQ, with its messages in a database file."""
    port = free_port()
    config = folder / "elasticmq.conf"
    config.write_text(_CONFIG.format(port=port, folder=folder))
    command = ["java", f"-Dconfig.file={config}", "-cp", classpath, "org.elasticmq.server.Main"]
    with running(command, port, folder / "elasticmq.log") as address:
        yield address
