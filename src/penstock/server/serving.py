"""A server from its start to its end: stores first, then the door; and the other way round when it stops."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from penstock.clock import SystemClock
from penstock.errors import BackendNotInstalled, BackendUnavailable, InvalidConfig
from penstock.penstock import DEFAULT, Penstock
from penstock.server.audit import Audit
from penstock.server.credentials import CredentialsFile, NoCredentials
from penstock.server.endpoint import Background
from penstock.server.tls import Tls
from penstock.server_config import ServerSettings

log = logging.getLogger("penstock.server")

#: How often files that may change are looked at.
LOOK_EVERY_S = 1.0
#: Connections that wait to be let in.
BACKLOG = 1024
#: Descriptors that the process needs besides connections: files of stores, logs, sockets.
RESERVED_FILES = 600
#: How long a stop takes at most after `stop_timeout_s`, for what cannot be interrupted.
LAST_S = 5.0
#: Of threads that all want the interpreter: answers wait for it otherwise.
SWITCH_S = 0.001
#: Objects that a collection of garbage is made after: a request makes dozens, and leaves none behind.
COLLECT_EVERY = 10_000


class Address(NamedTuple):
    """Where a server listens."""

    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def check_access(settings: ServerSettings) -> None:
    """Refuse what would let strangers in, before anything is opened."""
    if is_loopback(settings.host):
        return
    if settings.credentials is None:
        raise InvalidConfig(
            f"server.host is {settings.host!r}, which others can reach, and server.credentials is not set; "
            "make a file of keys: penstock keys create NAME --file keys.yaml --grant '*=admin'"
        )
    if settings.tls.certificate is None and not settings.allow_plaintext:
        raise InvalidConfig(
            f"server.host is {settings.host!r}, which others can reach, and server.tls is not set; give it a "
            "certificate, or set server.allow_plaintext where something before it does the encryption"
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_store(ps: Penstock) -> None:
    """Refuse stores that do not answer, or are not well enough to work with. Flat in what they hold."""
    if ps.backends[DEFAULT].info().backend == "http":
        raise InvalidConfig(
            "the store is behind a server already, which keeps a server's own state for itself; serve the "
            "store where it is, or let clients go to that server"
        )
    health = ps.health()
    if health.status == "unhealthy":
        reasons = "; ".join(f"{name}: {', '.join(why)}" for name, why in health.reasons.items())
        raise BackendUnavailable(
            f"the store cannot be served: {reasons}; see penstock health, penstock check"
        )
    ps.queues()


def bind(settings: ServerSettings) -> socket.socket:
    """The socket, which nobody can reach before it listens."""
    try:
        family, *_, where = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        door = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise BackendUnavailable(f"cannot listen on {settings.host!r}: {error.strerror or error}") from None
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(where)
        door.setblocking(False)
    except OSError as error:
        door.close()
        at = f"port {settings.port} of {settings.host}"
        if error.errno == 98:
            raise BackendUnavailable(
                f"{at} is taken; choose another with --port, or 0 for a free one"
            ) from None
        raise BackendUnavailable(f"cannot listen on {at}: {error.strerror}") from None
    return door


def open_credentials(settings: ServerSettings) -> CredentialsFile | NoCredentials:
    return (
        NoCredentials()
        if settings.credentials is None
        else CredentialsFile(settings.credentials, SystemClock())
    )


def serve(ps: Penstock, settings: ServerSettings, started: Callable[[Address], None]) -> None:
    """Serve until SIGTERM or SIGINT. `started` is called when the port is open."""
    try:
        import uvloop
    except ModuleNotFoundError as missing:
        raise BackendNotInstalled(missing.name or "uvloop", "server") from None
    check_access(settings)
    credentials = open_credentials(settings)
    tls = Tls(settings.tls) if settings.tls.certificate is not None else None
    check_store(ps)
    _raise_file_limit(settings.limits.max_connections)
    door = bind(settings)
    try:
        with _tuned(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(ps, settings, credentials, tls, door, started))
    finally:
        door.close()


@contextmanager
def _tuned() -> Iterator[None]:
    """The interpreter, for a process that does nothing else."""
    switch_s, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_S)
    # What was imported stays: it is not to be looked through again and again.
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, *threshold[1:])
    try:
        yield
    finally:
        sys.setswitchinterval(switch_s)
        gc.set_threshold(*threshold)
        gc.unfreeze()


async def _serve(
    ps: Penstock,
    settings: ServerSettings,
    credentials: CredentialsFile | NoCredentials,
    tls: Tls | None,
    door: socket.socket,
    started: Callable[[Address], None],
) -> None:
    from penstock.server.app import ServerApp, load_endpoints
    from penstock.server.calls import StoreCalls
    from penstock.server.door import Door
    from penstock.server.request_log import RequestLog

    loop, clock = asyncio.get_running_loop(), SystemClock()
    stopping = asyncio.Event()
    _on_signals(loop, stopping)
    calls = StoreCalls(ps, settings.limits)
    request_log = RequestLog(settings.log)

    def trouble() -> list[str]:
        return [*credentials.trouble, *(tls.trouble if tls else ())]

    endpoints = load_endpoints(ps, calls, credentials, settings)
    app = ServerApp(ps, calls, credentials, endpoints, request_log, clock, trouble)
    connections = Door(app, settings.limits, clock)
    calls.here.is_one = connections.heard.is_one
    working = [endpoint for endpoint in endpoints if isinstance(endpoint, Background)]
    for endpoint in working:
        await endpoint.start()
    connections.open(door, tls.context if tls else None, BACKLOG)
    watching = loop.create_task(_watch(credentials, tls, connections.retire, Audit(ps, calls)))
    host, port = door.getsockname()[:2]
    started(Address("https" if tls else "http", host, port))
    await stopping.wait()
    log.info("stopping")
    _end_at_latest(settings.limits.stop_timeout_s + LAST_S)
    connections.close()
    watching.cancel()
    calls.polls.stop()
    if not await connections.stop(settings.limits.stop_timeout_s):
        log.warning("some requests were not answered within %g s", settings.limits.stop_timeout_s)
    for endpoint in working:
        await endpoint.stop()
    await loop.run_in_executor(None, calls.close)
    request_log.close()


def _on_signals(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """The first ends the server in order; a second one ends it at once: what is acknowledged is durable."""

    def stop(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)


def _end_at_latest(within_s: float) -> None:
    """A call that hangs, in a store that does not answer say, cannot be ended: the process can."""

    def end() -> None:
        log.error("calls are still under way: ending without them; what was acknowledged is in the store")
        os._exit(1)

    guard = threading.Timer(within_s, end)
    guard.daemon = True
    guard.start()


async def _watch(
    credentials: CredentialsFile | NoCredentials, tls: Tls | None, retire: Callable[[], None], audit: Audit
) -> None:
    """Read files again that have changed; what cannot be read leaves what was read before."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            if tls is not None and tls.refresh():
                retire()
            changed = credentials.refresh()
        except Exception as error:  # noqa: BLE001  (of one look: the next may go well)
            log.error("files that may have changed cannot be read: %s", type(error).__name__)
            continue
        for name in changed:
            with suppress(Exception):
                await audit.of_server("credentials_changed", name)


def _raise_file_limit(connections: int) -> None:
    """As many descriptors as connections need, if this process may have them; else it says how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < wanted:
            raise InvalidConfig(
                f"server.limits.max_connections is {connections}, for which this process may not open enough "
                f"files; accepted here: up to {max(0, allowed - RESERVED_FILES)}, or raise `ulimit -n`"
            )
