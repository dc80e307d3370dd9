"""The backend contract over HTTP: calls are made again until they are answered, and happen once."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import msgspec

from penstock.backends.base import BackendInfo, Progress
from penstock.backends.forwarding.contract import Forwarded
from penstock.backends.forwarding.methods import METHODS, Unreadable, decode_error, encoded
from penstock.backends.http.line import Answer, Gone, Line
from penstock.backends.http.place import Place
from penstock.codec.answer import to_error
from penstock.errors import BackendUnavailable, PenstockError, StorageError

#: How long a call is made again while the server cannot be reached, or has no room.
PATIENCE_S = 15.0
#: The first pause before a call is made again; each is twice the last, up to the longest.
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
#: How long an answer may take, besides what the call itself waits for.
ANSWER_WITHIN_S = 60.0
TOO_LARGE = 413
#: What takes as long as there is to do.
_LONG = frozenset(
    {"check", "reindex", "rekey", "sweep", "purge", "redrive", "replace_queues", "delete_queue"}
)
#: Where these have the time that they wait.
_WAITS = {"lease": 3, "lease_group": 4}


class HttpBackend(Forwarded):
    """A store behind a server. Safe to call from any thread."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._free: list[Line] = []
        self._busy: set[Line] = set()
        # Whoever opens a store wants to know at once that it cannot be reached.
        try:
            info: BackendInfo = self._make("info", (), {}, patience_s=0)
        except BaseException:
            self.close()
            raise
        self.name = info.backend
        self.capabilities = info.capabilities

    def _call(
        self, method: str, *args: Any, progress: Progress | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._make(method, args, kwargs or {}, PATIENCE_S)

    def _make(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], patience_s: float) -> Any:
        self._check_usable()
        body = encoded(method, args, kwargs)
        line = self._borrow()
        self._busy.add(line)
        try:
            line.number += 1
            return self._understood(
                method, self._asked(line, method, body, _timeout_s(method, args), patience_s)
            )
        finally:
            self._busy.discard(line)
            self._give_back(line)

    def _asked(
        self, line: Line, method: str, body: bytes, timeout_s: float | None, patience_s: float
    ) -> Answer:
        until_s: float | None = None
        pause_s = PAUSE_S
        while True:
            try:
                answer = line.ask(method, body, timeout_s)
                if answer.retry_after_s is None:
                    return answer
                wait_s, why = answer.retry_after_s, _words(answer)
            except Gone as gone:
                wait_s, why = pause_s, str(gone)
            self._check_usable()
            now_s = time.monotonic()
            if until_s is None:
                until_s = now_s + patience_s
            if now_s >= until_s:
                raise BackendUnavailable(f"the server at {self._place.url} does not answer {method}: {why}")
            self._closed.wait(min(wait_s, max(until_s - now_s, 0)))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _understood(self, method: str, answer: Answer) -> Any:
        """What the server answered; raises its error."""
        if not answer.is_ours:
            raise BackendUnavailable(
                f"{self._place.url} answers {answer.status}, not as a server of Penstock does; see the URL"
            )
        try:
            if answer.status == 200:
                return METHODS[method].answer.decode(answer.body)
            name, text, attributes = decode_error(answer.body)
        except msgspec.DecodeError as error:
            raise PenstockError(
                f"what {self._place.url} answers to {method} cannot be read: {error}; use the same version "
                "of Penstock in both"
            ) from None
        # One item that is too large by far may be what made the whole too large: it is looked at here.
        if name == Unreadable.__name__ or answer.status == TOO_LARGE:
            raise Unreadable(text)
        raise to_error((name, text, attributes))

    def _borrow(self) -> Line:
        try:
            return self._free.pop()
        except IndexError:
            return Line(self._place, self._closed)

    def _give_back(self, line: Line) -> None:
        """Not with a reply that is still to come: it must not be taken for another's."""
        if line.asking or self._closed.is_set():
            line.hang_up()
        if not self._closed.is_set():
            self._free.append(line)

    def _check_usable(self) -> None:
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


def _timeout_s(method: str, args: tuple[Any, ...]) -> float | None:
    if method in _LONG:
        return None
    wait_s = args[_WAITS[method]] if method in _WAITS else 0
    # What is no time is the server's to refuse.
    is_time = isinstance(wait_s, int | float) and 0 <= wait_s < threading.TIMEOUT_MAX
    return ANSWER_WITHIN_S + (wait_s if is_time else 0)


def _words(answer: Answer) -> str:
    try:
        return str(decode_error(answer.body)[1]) if answer.is_ours else f"status {answer.status}"
    except msgspec.DecodeError:
        return f"status {answer.status}"
