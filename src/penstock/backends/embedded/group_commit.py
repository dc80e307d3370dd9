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

    __slots__ = ("answer", "command", "done", "error", "gate")

    def __init__(self, command: Callable[[], Any]) -> None:
        self.command = command
        self.gate = threading.Lock()
        self.gate.acquire()
        self.done = False
        self.answer: Any = None
        self.error: BaseException | None = None


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
            leads, self._led = not self._led, True
        if not leads:
            ticket.gate.acquire()
        if not ticket.done:
            self._lead(ticket)
        if ticket.error is not None:
            raise ticket.error
        return cast(T, ticket.answer)

    def _lead(self, own: _Ticket) -> None:
        with self._mutex:
            group = list(self._waiting)
            self._waiting.clear()
        interrupt: BaseException | None = None
        for ticket in group:
            try:
                ticket.answer = ticket.command()
            except Exception as error:  # noqa: BLE001 (the caller's own: raised there)
                ticket.error = error
            except BaseException as error:  # noqa: BLE001 (raised below, once the others are answered)
                if ticket is own:
                    ticket.error = error
                else:  # Meant for this thread, not for the one whose command it met.
                    interrupt = error
                    ticket.error = BackendUnavailable("interrupted before it was answered; try again")
        try:
            self._sync()
        except BaseException as error:  # noqa: BLE001 (nobody's write is known to be safe: raised by all)
            for ticket in group:
                ticket.error = ticket.error or error
        self._hand_over(group)
        if interrupt is not None:
            raise interrupt

    def _hand_over(self, group: list[_Ticket]) -> None:
        with self._mutex:
            successor = self._waiting[0] if self._waiting else None
            self._led = successor is not None
        # First, so that its group is under way while the others wake.
        if successor is not None:
            successor.gate.release()
        for ticket in group:
            ticket.done = True
            ticket.gate.release()
