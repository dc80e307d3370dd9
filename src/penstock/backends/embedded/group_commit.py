"""Group commit: callers that come together are executed by one of them and share one sync.

A lone caller runs its command and syncs. While it waits for the disk, others queue up; the first of them
then takes all their commands, one after the other, syncs once, and wakes each with its own answer. A caller
sleeps and wakes once, whatever the number of others: hand-overs between threads cost more than the commands.
Neighbours that enqueue into the same queue become one batch.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

from penstock.backends.embedded.calls import Callers, Calls
from penstock.backends.meters import Meter
from penstock.errors import BackendUnavailable, StorageError

T = TypeVar("T")
Item = TypeVar("Item")
R = TypeVar("R")


GIVE_WAY_S = 0.001


def give_way() -> None:
    """Between slices of a call's work, with the lock free: one who came back at once would have it, or be
    in the next group, before those who wait are awake.
    """
    threading.Event().wait(GIVE_WAY_S)


class _Ticket:
    """One caller's command and its answer. The gate opens when it is done, or its turn to lead."""

    __slots__ = (
        "abandoned",
        "answer",
        "callers",
        "command",
        "done",
        "error",
        "gate",
        "items",
        "kind",
        "leads",
    )

    def __init__(
        self,
        command: Callable[..., Any],
        callers: Callers,
        kind: Hashable = None,
        items: Sequence[Any] = (),
    ) -> None:
        self.command = command
        self.callers = callers
        #: None for a command that stands alone; those of one kind take each other's items.
        self.kind = kind
        self.items = items
        self.gate = threading.Lock()
        self.gate.acquire()
        self.leads = False
        self.abandoned = False
        self.done = False
        self.answer: Any = None
        self.error: Exception | None = None


def _run_together(tickets: list[_Ticket], calls: Calls) -> Any:
    first = tickets[0]
    alone = first.kind is None
    items = () if alone else ([item for ticket in tickets for item in ticket.items],)
    if not any(ticket.callers for ticket in tickets):
        return first.command(*items)
    with calls.running(first.callers if alone else [one for ticket in tickets for one in _parts(ticket)]):
        return first.command(*items)


def _parts(ticket: _Ticket) -> Callers:
    """Whose the ticket's items are, when others come before or behind them."""
    callers = ticket.callers or [(None, None)]
    return [(call, len(ticket.items) if count is None else count) for call, count in callers]


def _execute(tickets: list[_Ticket], calls: Calls) -> None:
    """Run one command, alone or on the items of all these tickets, and deal out its answers."""
    try:
        answers = _run_together(tickets, calls)
    except Exception as error:  # noqa: BLE001 (the callers' own: raised there)
        if len(tickets) > 1 and not isinstance(error, StorageError):
            # Something of one caller's: each by itself, so that it is that one's alone.
            for ticket in tickets:
                _execute([ticket], calls)
            return
        for ticket in tickets:
            ticket.error = error
        return
    if tickets[0].kind is None:
        tickets[0].answer = answers
        return
    at = 0
    for ticket in tickets:
        ticket.answer = answers[at : at + len(ticket.items)]
        at += len(ticket.items)


class GroupCommit:
    """Runs commands so that each returns only once what it wrote is synced."""

    def __init__(self, sync: Callable[[], bool | None], calls: Calls, sizes: Meter) -> None:
        self._sync = sync
        self._calls = calls
        self._sizes = sizes
        self._mutex = threading.Lock()
        self._waiting: deque[_Ticket] = deque()
        self._led = False
        #: What the leader took, and what became of it: an error, unless it was synced.
        self._group: list[_Ticket] = []
        self._failure: Exception | None = None

    def run(self, command: Callable[[], T]) -> T:
        """The command's answer. Call it without holding any lock that a command takes."""
        return cast(T, self._run(_Ticket(command, self._calls.current)))

    def run_merged(
        self, kind: Hashable, items: Sequence[Item], command: Callable[[Sequence[Item]], list[R]]
    ) -> list[R]:
        """The command's answers for these items; it may be run on those of neighbours of its kind as well."""
        return cast("list[R]", self._run(_Ticket(command, self._calls.current, kind, items)))

    def _run(self, ticket: _Ticket) -> object:
        try:
            with self._mutex:
                self._waiting.append(ticket)
                ticket.leads, self._led = not self._led, True
            if not ticket.leads:
                ticket.gate.acquire()
            if not ticket.done:
                self._lead(ticket)
        except BaseException:  # An interrupt: whoever waits for this caller, or behind it, must go on.
            self._give_up(ticket)
            raise
        error, ticket.error = ticket.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # It knows this frame: both, and the store, would stay until the next collection.
        return ticket.answer

    def _give_up(self, ticket: _Ticket) -> None:
        """Interrupted again or not: without a leader every later call would wait for ever."""
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                with self._mutex:
                    ticket.abandoned = True
                return self._hand_over(ticket)

    def _lead(self, ticket: _Ticket) -> None:
        interrupted = BackendUnavailable("interrupted before its sync; try again")
        with self._mutex:
            group = [one for one in self._waiting if not one.abandoned]
            # No interrupt comes between these: it finds each ticket here or there.
            self._group, self._failure = group, interrupted
            self._waiting.clear()
        for kind, neighbours in itertools.groupby(group, key=lambda one: one.kind):
            for part in [list(neighbours)] if kind is not None else [[one] for one in neighbours]:
                _execute(part, self._calls)
        self._failure = self._synced(len(group))
        self._hand_over(ticket)

    def _hand_over(self, ticket: _Ticket) -> None:
        """If this caller leads: its group is told how it went, and the next one leads.

        Interrupted, it can be called again: no interrupt comes between a mark and the release behind it.
        """
        if not ticket.leads:
            return
        # Before the next leader: those who come back at once are then in its group.
        for one in self._group:
            if not one.done:
                one.error = one.error or self._failure
                one.done = True
                one.gate.release()
        with self._mutex:
            while self._waiting and self._waiting[0].abandoned:
                self._waiting.popleft()
            # Nothing of the group is needed any more, its payloads least of all.
            self._group, self._failure = [], None
            self._led, ticket.leads = bool(self._waiting), False
            if self._waiting:
                self._waiting[0].leads = True
                self._waiting[0].gate.release()

    def _synced(self, calls: int) -> Exception | None:
        try:
            if self._sync() is not False:  # Then nothing had been written.
                self._sizes.observe(calls)
        except Exception as error:  # noqa: BLE001 (raised by every caller whose write it was to cover)
            return error
        return None
