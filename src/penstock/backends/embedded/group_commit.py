"""Group commit: callers that come together are executed by one of them and share one sync.

A lone caller runs its command and syncs. While it waits for the disk, others queue up; the first of them
then takes all their commands, one after the other, syncs once, and wakes each with its own answer. A caller
sleeps and wakes once, whatever the number of others: hand-overs between threads cost more than the commands.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

from penstock.errors import BackendUnavailable

T = TypeVar("T")


class _Ticket:
    """One caller's command and its answer. The gate opens when it is done, or its turn to lead."""

    __slots__ = ("abandoned", "answer", "command", "done", "error", "gate", "leads")

    def __init__(self, command: Callable[[], Any]) -> None:
        self.command = command
        self.gate = threading.Lock()
        self.gate.acquire()
        self.leads = False
        self.abandoned = False
        self.done = False
        self.answer: Any = None
        self.error: Exception | None = None


class GroupCommit:
    """Runs commands so that each returns only once what it wrote is synced."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._mutex = threading.Lock()
        self._waiting: deque[_Ticket] = deque()
        self._led = False

    def run(self, command: Callable[[], T]) -> T:
        """The command's answer. Call it without holding any lock that a command takes."""
        ticket = _Ticket(command)
        with self._mutex:
            self._waiting.append(ticket)
            ticket.leads, self._led = not self._led, True
        if not ticket.leads:
            self._wait(ticket)
        if not ticket.done:
            self._lead()
        if ticket.error is not None:
            raise ticket.error
        return cast(T, ticket.answer)

    def _wait(self, ticket: _Ticket) -> None:
        try:
            ticket.gate.acquire()
        except BaseException:  # An interrupt: whoever waits behind this caller must not wait for it.
            with self._mutex:
                ticket.abandoned = True
                if ticket.leads:
                    self._appoint()
            raise

    def _lead(self) -> None:
        with self._mutex:
            group = list(self._waiting)
            self._waiting.clear()
        failure: Exception | None = BackendUnavailable("interrupted before its sync; try again")
        try:
            for ticket in group:
                try:
                    ticket.answer = ticket.command()
                except Exception as error:  # noqa: BLE001 (the caller's own: raised there)
                    ticket.error = error
            failure = self._synced()
        finally:  # Also after an interrupt: it is this thread's to raise, and nobody is told of success.
            for ticket in group:
                ticket.error = ticket.error or failure
                ticket.done = True
            with self._mutex:
                self._appoint()
            for ticket in group:
                ticket.gate.release()

    def _synced(self) -> Exception | None:
        try:
            self._sync()
        except Exception as error:  # noqa: BLE001 (raised by every caller whose write it was to cover)
            return error
        return None

    def _appoint(self) -> None:
        """The next caller leads, if there is one."""
        while self._waiting and self._waiting[0].abandoned:
            self._waiting.popleft()
        self._led = bool(self._waiting)
        if self._waiting:
            self._waiting[0].leads = True
            self._waiting[0].gate.release()
