"""The backend contract over a connection to the store's owner; when that goes, another is found or become."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.backends.attached import place, wire
from penstock.backends.attached.line import Line, answer
from penstock.backends.attached.place import LOOK_EVERY_S, PATIENCE_S
from penstock.backends.attached.wire import Gone
from penstock.backends.base import Progress, QueueBackend
from penstock.backends.forwarding.answering import Answerer, Call
from penstock.backends.forwarding.contract import Forwarded
from penstock.backends.forwarding.methods import encoded
from penstock.errors import BackendUnavailable, PenstockError, StorageError, as_answer

log = logging.getLogger("penstock")

#: The pause of a process that could not become the owner: others have their turn.
AFTER_REFUSAL_S = 0.1
#: How often the same owner may hang up on the same call.
MOST_HANG_UPS = 10


class Owned(NamedTuple):
    """What an owner has: the store, and what answers the calls that were on their way to the last one."""

    backend: QueueBackend
    answerer: Answerer


#: Become the folder's owner; None while another is.
Own = Callable[[], Owned | None]


class AttachedBackend(Forwarded):
    """A store that another process owns, for as long as it does. Safe to call from any thread."""

    def __init__(
        self, folder: str, own: Own, welcome: wire.Welcome, watch: Line, closed: threading.Event
    ) -> None:
        self.name = welcome.name
        self.capabilities = welcome.capabilities
        self._folder = folder
        self._own = own
        self._owner_pid = welcome.pid
        self._pid = os.getpid()
        #: Held for the whole of a take-over; again by a signal handler that comes in the middle of it.
        self._lock = threading.RLock()
        self._free: list[Line] = []
        self._busy: set[Line] = set()
        self._owned: Owned | None = None
        self._closed = closed
        self._watch = watch
        self._watcher = threading.Thread(target=self._watch_owner, name="penstock-attached", daemon=True)
        self._watcher.start()
        log.info("attached path=%s owner=%d", folder, welcome.pid)

    # -- calling --------------------------------------------------------------------------------

    def _call(
        self, method: str, *args: Any, progress: Progress | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        owned = self._owned
        if owned is not None:
            more = {} if progress is None else {"progress": progress}
            return getattr(owned.backend, method)(*args, **(kwargs or {}), **more)
        self._check_usable()
        line = self._borrow()
        self._busy.add(line)
        try:
            line.number += 1
            line.hang_ups = 0
            request = encoded(method, line.number, method, args, kwargs or {}, progress is not None)
            while True:
                try:
                    return answer(method, line.ask(self._folder, request, progress))
                except Gone:
                    self._hung_up(line, method)
                    owned = self._find_owner()
                if owned is not None:
                    asked = wire.decode_request(request)
                    call = Call(line.caller, asked.number, method, asked.args, asked.kwargs)
                    return owned.answerer.answer(call, True, lambda: True, progress)
        finally:
            self._busy.discard(line)
            self._give_back(line)

    def _borrow(self) -> Line:
        try:
            return self._free.pop()
        except IndexError:
            return Line(self._closed)

    def _give_back(self, line: Line) -> None:
        """Not one on which a reply is still to come: it must not be taken for another's."""
        if line.asking or self._closed.is_set():
            line.hang_up()
        else:
            self._free.append(line)

    def _hung_up(self, line: Line, method: str) -> None:
        """An owner that goes does so once; one that stays, and hangs up each time, is not asked for ever."""
        line.hang_up()
        line.hang_ups += 1
        if line.hang_ups > MOST_HANG_UPS:
            raise BackendUnavailable(
                f"the owner of the store in {self._folder}, process {line.owner_pid}, hangs up on {method}; "
                "its log may say why"
            )
        if line.hang_ups > 1:
            self._closed.wait(LOOK_EVERY_S * line.hang_ups)

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise StorageError(f"the store was opened in process {self._pid}; open it anew in this one")
        if self._closed.is_set():
            raise StorageError("the store has stopped: it was closed; reopen it")

    # -- owners come and go ---------------------------------------------------------------------

    def _find_owner(self) -> Owned | None:
        """Returns once there is an owner again: this process, then what it owns, or another, then None."""
        refusal: StorageError | None = None
        until_s = time.monotonic() + PATIENCE_S
        while True:
            self._check_usable()
            if self._owned is not None:
                return self._owned
            with contextlib.suppress(OSError):
                place.connect(self._folder).close()
                return None
            try:
                if (owned := self._take_over()) is not None:
                    return owned
            except StorageError as error:
                # The last owner, just ending, has the lock; or this process may not, and another may.
                refusal = as_answer(error)
            if time.monotonic() >= until_s:
                raise refusal or BackendUnavailable(self._nobody())
            self._closed.wait(LOOK_EVERY_S if refusal is None else AFTER_REFUSAL_S)

    def _take_over(self) -> Owned | None:
        with self._lock:
            if self._owned is None:
                self._check_usable()
                self._owned = self._own()
                if self._owned is not None:
                    log.info("took over path=%s from=%d", self._folder, self._owner_pid)
            if self._owned is not None and self._closed.is_set():
                self._owned.backend.close()  # By a signal handler of this very thread, say.
            return self._owned

    def _nobody(self) -> str:
        if place.forked_from_owner(self._folder):
            return (
                f"the owner of the store in {self._folder} has gone, and this process, forked from it, "
                "cannot take its place: start processes by spawn"
            )
        return f"nobody answers for the store in {self._folder}, yet its lock is held; try again"

    def _watch_owner(self) -> None:
        """The store is never long without an owner, though nobody calls: leases end, time passes."""
        try:
            while not self._closed.is_set():
                self._watch.wait_for_end()
                self._watch.hang_up()
                if self._closed.is_set() or self._owns_or_watches():
                    return
        finally:
            self._watch.hang_up()

    def _owns_or_watches(self) -> bool:
        """Whether this process is the owner now; if another is, that one is watched."""
        try:
            if self._find_owner() is not None:
                return True
            self._owner_pid = self._watch.connect(self._folder).pid
        except (Gone, OSError):
            pass
        except PenstockError as error:
            if not self._closed.is_set():
                log.error("the store in %s has no owner: %s", self._folder, error)
            self._closed.wait(1.0)
        return False

    def close(self) -> None:
        if self._closed.is_set() or self._pid != os.getpid():
            return
        self._closed.set()
        for line in (self._watch, *self._busy):
            line.cut()
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return  # A signal handler in the middle of a take-over, which closes what it opens.
        self._watcher.join()
        with self._lock:
            while self._free:
                self._free.pop().hang_up()
        if self._owned is not None:
            self._owned.backend.close()


def attach(folder: str, own: Own) -> AttachedBackend | None:
    """Attach to the folder's owner; None if there is none that answers."""
    closed = threading.Event()
    watch = Line(closed)
    try:
        welcome = watch.connect(folder)
    except (OSError, Gone):
        return None
    return AttachedBackend(folder, own, welcome, watch, closed)
