"""A server as its clients see it: connections that are shared, and requests that are made until answered."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from penstock.backends.forwarding.methods import Unreadable, decode_error
from penstock.backends.http.line import Answer, Gone, Line
from penstock.backends.http.place import MSGPACK, Place
from penstock.codec.answer import to_error
from penstock.errors import BackendUnavailable, PenstockError, StorageError

#: How long a call is made again while the server cannot be reached, or has no room.
PATIENCE_S = 15.0
#: How long a part of something large waits for its turn at a server that others keep busy.
ROOM_S = 3600.0
#: The first pause before a call is made again; each is twice the last, up to the longest.
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
#: How long an answer may take, besides what the call itself waits for.
ANSWER_WITHIN_S = 60.0
TOO_LARGE = 413
_any = random.Random()


class Patience:
    """How long something is tried, counted from the first failure on."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._until_s: float | None = None
        self._pause_s = PAUSE_S

    def pause_s(self, wanted_s: float | None) -> float | None:
        """How long to wait before the next try; None: there is none."""
        now_s = time.monotonic()
        if self._until_s is None:
            self._until_s = now_s + self._patience_s
        if now_s >= self._until_s:
            return None
        # Not in step: clients that lost a server together would come back together, again and again.
        spread = _any.uniform(0.5, 1.0)
        wait_s = self._pause_s * spread if wanted_s is None else wanted_s * 2 * spread
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        return min(wait_s, max(self._until_s - now_s, 0))


class Peer:
    """One server. Safe to use from any thread of the process that made it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._free: list[Line] = []
        self._busy: set[Line] = set()

    def ask(
        self,
        what: str,
        path: str,
        body: bytes,
        *,
        content_type: str = MSGPACK,
        timeout_s: float | None = ANSWER_WITHIN_S,
        patience_s: float | None = None,
        room_s: float | None = None,
    ) -> Answer:
        """Make a request until it is answered; `what` names it in errors.

        `room_s` is how long it is made again while the server says that it has no room, where that is more.
        """
        self.check_usable()
        patience = Patience(PATIENCE_S if patience_s is None else patience_s)
        room = patience if room_s is None else Patience(room_s)
        with self.line() as line:
            line.number += 1
            while True:
                try:
                    answer = line.ask(path, body, content_type, timeout_s)
                    if answer.retry_after_s is None:
                        return answer
                except Gone as gone:
                    self.wait(what, patience, None, str(gone))
                else:
                    self.wait(what, room, answer.retry_after_s, words(answer))

    def wait(self, what: str, patience: Patience, wanted_s: float | None, why: str) -> None:
        """Until the next try; raises if there is none."""
        self.check_usable()
        pause_s = patience.pause_s(wanted_s)
        if pause_s is None:
            raise BackendUnavailable(f"the server at {self.place.url} does not answer {what}: {why}")
        self._closed.wait(pause_s)

    def understood(self, what: str, answer: Answer, of: msgspec.msgpack.Decoder[Any]) -> Any:
        """What the server answered; raises its error."""
        if not answer.is_ours:
            raise BackendUnavailable(
                f"{self.place.url} answers {answer.status}, not as a server of Penstock does; see the URL"
            )
        try:
            if answer.status == 200:
                return of.decode(answer.body)
            name, text, attributes = decode_error(answer.body)
        except msgspec.DecodeError as error:
            raise PenstockError(
                f"what {self.place.url} answers to {what} cannot be read: {error}; use the same version "
                "of Penstock in both"
            ) from None
        # One item that is too large by far may be what made the whole too large: the caller looks for it.
        if name == Unreadable.__name__ or answer.status == TOO_LARGE:
            raise Unreadable(text)
        raise to_error((name, text, attributes))

    @contextmanager
    def line(self) -> Iterator[Line]:
        """A connection, for one thread."""
        try:
            line = self._free.pop()
        except IndexError:
            line = Line(self.place, self._closed)
        self._busy.add(line)
        try:
            yield line
        finally:
            self._busy.discard(line)
            # Not with a reply that is still to come: it must not be taken for another's.
            if line.asking or self._closed.is_set():
                line.hang_up()
            if not self._closed.is_set():
                self._free.append(line)

    def check_usable(self) -> None:
        if self._pid != os.getpid():
            raise StorageError(f"the store was opened in process {self._pid}; open it anew in this one")
        if self._closed.is_set():
            raise StorageError("the store has stopped: it was closed; reopen it")

    def close(self) -> None:
        if self._closed.is_set() or self._pid != os.getpid():
            return
        self._closed.set()
        for line in list(self._busy):
            line.cut()
        while self._free:
            self._free.pop().hang_up()


def words(answer: Answer) -> str:
    try:
        return str(decode_error(answer.body)[1]) if answer.is_ours else f"status {answer.status}"
    except msgspec.DecodeError:
        return f"status {answer.status}"
