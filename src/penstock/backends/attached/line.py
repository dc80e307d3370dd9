"""One connection to a store's owner, at the end of the process that is attached: calls and their replies."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import Any, cast

from penstock.backends.attached import place, wire
from penstock.backends.attached.place import PATIENCE_S
from penstock.backends.attached.wire import Gone, Reply
from penstock.backends.base import Progress
from penstock.backends.forwarding.methods import METHODS, Unreadable, decode_error
from penstock.codec.answer import to_error
from penstock.errors import BackendUnavailable, StorageError
from penstock.version import __version__


class Line:
    """One connection, used by one thread at a time. Who calls stays the same when the owner changes."""

    def __init__(self, closed: threading.Event) -> None:
        self.caller = os.urandom(16)
        self.number = 0
        #: The process at the other end, and how often it has hung up on the call at hand.
        self.owner_pid, self.hang_ups = 0, 0
        #: Between a request and its answer: what comes next on the line is not for another call.
        self.asking = False
        self._closed = closed
        self._peer: socket.socket | None = None

    def connect(self, folder: str) -> wire.Welcome:
        """Say hello to whoever owns the folder now."""
        peer = place.connect(folder)
        try:
            peer.settimeout(PATIENCE_S)
            wire.send(peer, wire.encode(wire.Hello(wire.PROTOCOL, self.caller, os.getpid())))
            welcome: wire.Welcome = wire.decode_welcome(wire.receive(peer))
            peer.settimeout(None)
        except BaseException as error:
            peer.close()
            if isinstance(error.__cause__, TimeoutError):
                raise BackendUnavailable(
                    f"the owner of the store in {folder} does not answer: continue or end it, or try again"
                ) from error
            raise
        if welcome.protocol != wire.PROTOCOL:
            peer.close()
            raise StorageError(
                f"the store in {folder} is owned by process {welcome.pid} with Penstock {welcome.version}, "
                f"which this one, {__version__}, cannot attach to: use the same version in both"
            )
        if welcome.pid != self.owner_pid:
            self.owner_pid, self.hang_ups = welcome.pid, 0
        self._peer = peer
        return welcome

    def ask(self, folder: str, request: bytes, progress: Progress | None) -> wire.Response:
        """The owner's reply, an answer or an error; or `Gone`."""
        if self._peer is None:
            try:
                self.connect(folder)
            except OSError as error:
                raise Gone from error
        peer = cast(socket.socket, self._peer)
        if self._closed.is_set():  # After it was connected: `close` cuts what is connected.
            raise Gone
        self.asking = True
        wire.send(peer, request)
        while True:
            response: wire.Response = wire.decode_response(wire.receive(peer))
            if response.what != Reply.PROGRESS:
                self.asking = False
                return response
            if progress is not None:
                progress(*wire.decode_progress(response.value))

    def wait_for_end(self) -> None:
        """Until the owner goes."""
        if self._peer is not None:
            with contextlib.suppress(OSError):
                self._peer.recv(1)

    def cut(self) -> None:
        """Whoever waits on the line, in another thread, waits no longer."""
        peer = self._peer
        if peer is not None:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        self.cut()
        self.asking = False
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()


def answer(method: str, response: wire.Response) -> Any:
    """What the owner replied; raises its error."""
    if response.what == Reply.ANSWER:
        return METHODS[method].answer.decode(response.value)
    if response.what == Reply.UNREADABLE:
        raise Unreadable(decode_error(response.value)[1])
    raise to_error(decode_error(response.value))
