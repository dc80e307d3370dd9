"""The owner's side: a thread for each connection calls the backend for the process at its other end."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading

import msgspec

from penstock.backends.attached import place, wire
from penstock.backends.attached.wire import Gone
from penstock.backends.base import BackendInfo
from penstock.backends.forwarding.answering import Answerer, Call, Served
from penstock.backends.forwarding.methods import REPEATABLE, Unreadable
from penstock.errors import PenstockError
from penstock.version import __version__

log = logging.getLogger("penstock")

#: How long answers are kept for callers that do not come back after their owner has gone.
GRACE_S = 600.0
#: How long an owner that closes lets calls finish. Those that do not are asked again of the next owner.
FINISHING_S = 1.0
#: Between two tries to let somebody in, when descriptors or threads are short.
SHORTAGE_S = 0.1
_UCRED = struct.Struct("3i")


class Listener:
    """Serves everyone who attaches to the folder, until it is stopped."""

    def __init__(self, folder: str, backend: Served) -> None:
        self._folder = folder
        self._backend = backend
        self._answerer = Answerer(backend)
        self._lock = threading.Lock()
        self._peers: dict[socket.socket, bytes] = {}
        self._busy = 0
        self._idle = threading.Condition(self._lock)
        self._stopping = threading.Event()
        self._pid = os.getpid()
        #: Callers of the owner before this one; those that come back are taken off.
        self._missed = set(backend.callers())
        self._door = place.listen(folder)
        self._grace = threading.Timer(GRACE_S, self._forget_missed)
        self._grace.daemon = True
        self._thread = threading.Thread(target=self._accept, name="penstock-listener", daemon=True)
        try:
            self._grace.start()
            self._thread.start()
        except BaseException:  # Too many threads: whoever came in would wait for ever.
            self._shut_the_door()
            raise

    @property
    def answerer(self) -> Answerer:
        return self._answerer

    def stop(self) -> None:
        """Let calls that run finish, then hang up. The others are cut: their callers ask the next owner."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._stopping.set()
            peers = list(self._peers)
        self._shut_the_door()
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RD)
        with self._lock:
            self._idle.wait_for(lambda: not self._busy, timeout=FINISHING_S)

    def _shut_the_door(self) -> None:
        self._grace.cancel()
        place.leave(self._folder)
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def hang_up(self) -> None:
        """After `stop`, and once the store is closed: cut those that still wait."""
        with self._lock:
            peers = list(self._peers)
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    # -- connections ----------------------------------------------------------------------------

    def _accept(self) -> None:
        well = True
        while not self._stopping.is_set():
            try:
                peer = place.accept(self._door)
                try:
                    threading.Thread(
                        target=self._serve, args=(peer,), name="penstock-peer", daemon=True
                    ).start()
                except BaseException:
                    peer.close()
                    raise
                well = True
            except Exception as error:  # noqa: BLE001 (whatever is short, those who are in are served on)
                if well and not self._stopping.is_set():
                    log.error("nobody can attach to the store in %s now: %s", self._folder, error)
                well = False
                self._stopping.wait(SHORTAGE_S)

    def _serve(self, peer: socket.socket) -> None:
        caller = b""
        try:
            if not _is_us(peer):
                return
            hello = wire.decode_hello(wire.receive(peer))
            wire.send(peer, wire.encode(self._welcome()))
            caller = hello.caller
            with self._lock:
                if self._stopping.is_set():
                    return
                self._peers[peer] = caller
                again = caller in self._missed
                self._missed.discard(caller)
            while self._serve_one(peer, caller, again):
                again = False
        except Gone:
            pass
        except Exception:
            log.exception("a connection to the store in %s failed", self._folder)
        finally:
            peer.close()
            self._let_go(peer, caller)

    def _serve_one(self, peer: socket.socket, caller: bytes, again: bool) -> bool:
        """Answer one request, whatever is in it; False when it is time to hang up."""
        raw = wire.receive(peer)
        try:
            request = wire.decode_request(raw)
        except msgspec.DecodeError as error:
            wire.send(peer, wire.error_frame(Unreadable(f"a call that cannot be read: {error}")))
            return True
        # What need not finish here: others may not have to wait for an owner because of it.
        brief = request.method != "lease" and request.method not in REPEATABLE
        with self._lock:
            if self._stopping.is_set():
                return False
            self._busy += brief
        try:
            frame = self._frame(peer, caller, request, again)
            # What one hears from a store that is being closed is not for those who can ask another.
            if frame is None or (self._stopping.is_set() and not brief):
                return False
            wire.send(peer, frame)
        finally:
            with self._lock:
                self._busy -= brief
                self._idle.notify_all()
        return True

    def _frame(self, peer: socket.socket, caller: bytes, request: wire.Request, again: bool) -> bytes | None:
        """The answer or error for a request; None where it is the next owner's to give."""

        def report(what: str, done: int, total: int) -> None:
            try:
                wire.send(peer, wire.progress_frame(what, done, total))
            except Gone:
                if request.method != "reindex":  # Half of one is worse than one that nobody waits for.
                    raise

        def listening() -> bool:
            return not self._stopping.is_set() and _listens(peer)

        try:
            call = Call(caller, request.number, request.method, request.args, request.kwargs)
            wanted = report if request.progress else None
            answer = self._answerer.answer(call, again, listening, wanted)
            if isinstance(answer, BackendInfo):
                answer = msgspec.structs.replace(answer, attached_to=self._pid)
            return wire.answer_frame(answer)
        except PenstockError as error:
            return None if self._stopping.is_set() else wire.error_frame(error)
        except Gone:
            raise
        except Exception as error:
            log.exception("%s for another process failed", request.method)
            return wire.error_frame(PenstockError(f"{request.method} failed: {type(error).__name__}"))

    def _welcome(self) -> wire.Welcome:
        backend = self._backend
        return wire.Welcome(
            wire.PROTOCOL, __version__, self._pid, backend.name, backend.capabilities, backend.info()
        )

    def _let_go(self, peer: socket.socket, caller: bytes) -> None:
        with self._lock:
            self._peers.pop(peer, None)
            # Those whom this process hangs up on will ask the next owner.
            forget = bool(caller) and not self._stopping.is_set()
        if forget:
            with contextlib.suppress(PenstockError):
                self._backend.forget([caller])

    def _forget_missed(self) -> None:
        with self._lock:
            missed, self._missed = list(self._missed), set()
        if missed:
            with contextlib.suppress(PenstockError):
                self._backend.forget(missed)


def _listens(peer: socket.socket) -> bool:
    """Whether the process at the other end still waits for its answer."""
    try:
        return peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _is_us(peer: socket.socket) -> bool:
    """Only the owner's own user comes in, and root."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # The socket's mode is what counts there.
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _, uid, _ = _UCRED.unpack(raw)
    if uid in (os.getuid(), 0):
        return True
    log.warning("refused to attach a process of user %d", uid)
    return False
