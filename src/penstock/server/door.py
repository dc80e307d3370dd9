"""All connections of a server: who is let in, how many there are, what they hold, and who is cut.

A socket counts from the moment it is accepted: one that never ends its TLS handshake takes a place too.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any

from penstock.clock import NS_PER_S, Clock
from penstock.server.driving import drive
from penstock.server.heard import Heard
from penstock.server.http import App, Connection
from penstock.server_config import Limits

log = logging.getLogger("penstock.server")

#: How often those that dawdle are looked for.
LOOK_EVERY_S = 1.0
#: Connections beyond the limit that are told so; whoever comes then is hung up on without a word.
MOST_TOLD = 100
#: Connections that are let in between two looks at those that are there.
ACCEPT_AT_ONCE = 100
#: How long nobody is let in when the process may open no more files.
BREATH_S = 0.5


class Door:
    """Lets connections in, counts what they have together, and cuts those that dawdle."""

    def __init__(self, app: App, limits: Limits, clock: Clock) -> None:
        self.app = app
        self.limits = limits
        self.clock = clock
        self.connections: set[Connection] = set()
        #: Of bodies that are being read or answered.
        self.body_bytes = 0
        self.is_stopping = False
        #: Connections that are at an answer.
        self.answering = 0
        #: Sockets that are no connection yet: their handshake is under way.
        self._entering: set[asyncio.Task[None]] = set()
        self._socket: socket.socket | None = None
        self._tls: Callable[[], ssl.SSLContext] | None = None
        self._date = (0, "")
        self.heard = Heard()
        self._looking: asyncio.TimerHandle | None = None
        self._resting: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()

    # -- letting in

    def open(
        self, bound: socket.socket, tls: Callable[[], ssl.SSLContext] | None = None, backlog: int = 100
    ) -> None:
        """Listen, from now on. `tls` gives what each handshake is made with."""
        bound.setblocking(False)
        bound.listen(backlog)
        self._socket, self._tls = bound, tls
        asyncio.get_running_loop().add_reader(bound, self._accept)
        self.start()

    def close(self) -> None:
        """Nobody else is let in, nor left to wait outside: they are refused, and may go elsewhere."""
        if self._resting is not None:
            self._resting.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for task in self._entering:
            task.cancel()

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(ACCEPT_AT_ONCE):
            try:
                comer, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._rest(error)
                return
            if len(self.connections) + len(self._entering) >= self.limits.max_connections + MOST_TOLD:
                comer.close()
                self.app.hung_up()
                continue
            task = asyncio.get_running_loop().create_task(self._enter(comer))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _enter(self, comer: socket.socket) -> None:
        """Until it is a connection. Who does not shake hands in time, or not at all, is nobody."""
        tls = None if self._tls is None else self._tls()
        times = {} if tls is None else {"ssl_handshake_timeout": self.limits.read_timeout_s}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self.connection, comer, ssl=tls, **times)
        except (OSError, asyncio.CancelledError):
            comer.close()

    def _rest(self, error: OSError) -> None:
        """What waits outside is let in when others have gone."""
        assert self._socket is not None
        log.error("nobody is let in for %g s: %s", BREATH_S, error.strerror)
        loop, bound = asyncio.get_running_loop(), self._socket
        loop.remove_reader(bound)
        self._resting = loop.call_later(BREATH_S, loop.add_reader, bound, self._accept)

    def connection(self) -> Connection:
        """What is made of everyone who comes in."""
        return Connection(self)

    # -- while it is open

    def retire(self) -> None:
        """The certificates are others: whoever was let in by those before comes in anew."""
        for connection in list(self.connections):
            connection.retire()

    def start(self) -> None:
        """Look for those that dawdle, from now on."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for connection in list(self.connections):
            connection.look(now_s)
        self._looking = loop.call_later(LOOK_EVERY_S, self.start)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Answer, as far as that goes at once; the rest when what it waits for is there."""
        self.answering += 1
        drive(work, self._ran)

    def _ran(self) -> None:
        self.answering -= 1
        self._idle.set()

    def gone(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.heard.forget(connection)
        self._idle.set()

    def date(self) -> str:
        """The line of the header `date`, made once a second."""
        now_s = self.clock.now_ns() // NS_PER_S
        if self._date[0] != now_s:
            self._date = (now_s, f"date: {formatdate(now_s, usegmt=True)}\r\n")
        return self._date[1]

    # -- the end

    async def stop(self, within_s: float) -> bool:
        """Answer what has arrived and hang up; whether that was done in time."""
        self.is_stopping = True
        self.close()
        for connection in list(self.connections):
            connection.finish()
        try:
            async with asyncio.timeout(within_s):
                while self.connections or self.answering:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        finally:
            if self._looking is not None:
                self._looking.cancel()
            for connection in list(self.connections):
                connection.abort()
        return True
