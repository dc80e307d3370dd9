"""Long-polls: those who wait for a queue stand in one line, which takes no thread while nothing comes.

A line looks for all of its polls at once, in the order in which they came, whenever it is told that there
may be something. What is leased is dealt out in that order; nothing is leased for a client that has gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.errors import PenstockError, is_of_the_store
from penstock.message import Delivery
from penstock.penstock import Penstock
from penstock.queue import Queue
from penstock.server.driving import drive
from penstock.server.endpoint import Busy
from penstock.server.portions import portioned

log = logging.getLogger("penstock.server")

#: Messages that one look takes at most, whatever all those in line may want.
MOST_AT_ONCE = 500
#: However sure a backend is that nothing comes, a line looks again after this.
LOOK_EVERY_S = 60.0
#: How often that is looked at of which nobody is told.
UNTOLD_EVERY_S = 0.1
#: How long a line that nobody stands in is still told of what comes: who polled once mostly polls again.
LINGER_S = 30.0
#: How often those who have gone are looked for, where there is no room for more.
LET_GO_EVERY_S = 0.1

#: Makes a call, here or in a thread: of which queue it is, and of how many messages.
Make = Callable[[Callable[[], "_Found"], str, int], Awaitable["_Found"]]
Stop = Callable[[], None]


class _Found(NamedTuple):
    """What a look has brought: deliveries, when to look again, and how the watching is ended."""

    deliveries: Sequence[Delivery]
    again_s: float
    stop: Stop | None


class _Poll:
    """One consumer that waits."""

    __slots__ = ("answer", "listening", "max_messages", "terms", "until_s")

    def __init__(
        self,
        max_messages: int,
        terms: tuple[float | None, str],
        until_s: float,
        listening: Callable[[], bool],
    ) -> None:
        self.max_messages = max_messages
        #: How long the lease is to be, and whose; polls that agree in it can be served by one call.
        self.terms = terms
        self.until_s = until_s
        self.listening = listening
        self.answer: asyncio.Future[Sequence[Delivery]] = asyncio.get_running_loop().create_future()


class Polls:
    """The lines of all queues."""

    def __init__(self, ps: Penstock, make: Make, max_polls: int, answer_bytes: int) -> None:
        self._ps = ps
        self._make = make
        self._max_polls = max_polls
        self._answer_bytes = answer_bytes
        self._lines: dict[str, _Line] = {}
        self._is_stopping = False
        self._let_go_at_s = 0.0
        #: Polls that are in line.
        self.waiting = 0

    async def lease(
        self,
        queue: str,
        max_messages: int,
        lease_s: float | None,
        wait_s: float,
        consumer: str,
        listening: Callable[[], bool],
    ) -> Sequence[Delivery]:
        """As `Calls.lease` has it."""
        await self._make_room(wait_s)
        until_s = asyncio.get_running_loop().time() + (0 if self._is_stopping else wait_s)
        poll = _Poll(max_messages, (lease_s, consumer), until_s, listening)
        self.waiting += 1
        try:
            line = self._lines.get(queue)
            if line is None:
                line = _Line(self._ps, self._make, queue, self._answer_bytes, self._forget)
                self._lines[queue] = line
            return await line.join(poll)
        finally:
            self.waiting -= 1

    async def look(
        self,
        look: Callable[[], Awaitable[Sequence[Delivery]]],
        wait_s: float,
        listening: Callable[[], bool],
    ) -> Sequence[Delivery]:
        """As `Calls.look` has it."""
        await self._make_room(wait_s)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        self.waiting += 1
        try:
            while listening():
                found = await look()
                left_s = until_s - loop.time()
                if found or left_s <= 0 or self._is_stopping:
                    return found
                await asyncio.sleep(min(UNTOLD_EVERY_S, left_s))
            return ()
        finally:
            self.waiting -= 1

    def is_idle(self, queue: str) -> bool:
        """Whether nobody stands in line for the queue."""
        return queue not in self._lines or self._lines[queue].is_empty()

    async def _make_room(self, wait_s: float) -> None:
        """For one more that waits; `Busy` if there is none."""
        if wait_s > 0 and self.waiting >= self._max_polls:
            await self._let_go()
        if wait_s > 0 and self.waiting >= self._max_polls:
            raise Busy(429, f"{self._max_polls} polls are waiting; try again later, or without waiting")

    async def _let_go(self) -> None:
        """Of those whose clients have gone: their places are free, though nothing came for them."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._let_go_at_s:
            self._let_go_at_s = now_s + LET_GO_EVERY_S
            for line in self._lines.values():
                line.let_go()
            await asyncio.sleep(0)  # They leave.

    def stop(self) -> None:
        """Everyone who waits is answered, with nothing; from now on nobody waits."""
        self._is_stopping = True
        for line in list(self._lines.values()):
            line.dismiss()

    def close(self) -> None:
        """After the last poll: no queue tells of anything any more."""
        for line in list(self._lines.values()):
            line.close()

    def _forget(self, queue: str) -> None:
        self._lines.pop(queue, None)


class _Line:
    """Those who want messages of one queue."""

    def __init__(
        self, ps: Penstock, make: Make, queue: str, answer_bytes: int, forget: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ps = ps
        self._make = make
        self._queue = queue
        self._answer_bytes = answer_bytes
        self._forget = forget
        self._polls: deque[_Poll] = deque()
        self._is_looking = False
        #: Something came, or someone, since the last look began.
        self._look_again = False
        self._is_told = False
        self._stop_watching: Stop | None = None
        #: What is watched may be gone: the next look watches anew.
        self._is_stale = False
        self._look_at_s = 0.0
        #: When the line ends, if nobody comes until then.
        self._end_at_s = 0.0
        #: It may be early, but never late: to set another one each time would cost more.
        self._timer: asyncio.TimerHandle | None = None

    async def join(self, poll: _Poll) -> Sequence[Delivery]:
        self._polls.append(poll)
        self._look()
        return await poll.answer

    def is_empty(self) -> bool:
        return not self._polls and not self._is_looking

    def dismiss(self) -> None:
        now_s = self._loop.time()
        for poll in self._polls:
            poll.until_s = min(poll.until_s, now_s)
        self._expire()

    def let_go(self) -> None:
        for poll in self._polls:
            _wants(poll)

    def close(self) -> None:
        stop, self._stop_watching = self._stop_watching, None
        if stop is not None:
            stop()

    def _tell(self) -> None:
        """From any thread, with locks held."""
        if not self._is_told:
            self._is_told = True
            # After the loop's end nobody is in line; whoever writes to the queue must not hear of that.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._came)

    def _came(self) -> None:
        self._is_told = False
        if self._polls:
            self._look()
        else:
            # It may have been the queue's end: one of the same name is another, and tells others.
            self._is_stale = True

    def _look(self) -> None:
        self._look_again = True
        if not self._is_looking:
            self._is_looking = True
            # When all that has arrived by now has been read: it goes along.
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        drive(self._look_until_nothing_comes(), self._looked)

    def _looked(self) -> None:
        self._is_looking = False
        self._set_timer()

    async def _look_until_nothing_comes(self) -> None:
        while self._look_again and self._polls:
            self._look_again = False
            await self._serve()

    async def _serve(self) -> None:
        """Look for those in line, group by group, until nothing comes of it."""
        served_to = self._polls[-1]
        while group := self._next_group():
            found = await self._ask(group)
            if found is None:
                continue
            self._look_at_s = self._loop.time() + min(found.again_s, LOOK_EVERY_S)
            if not found.deliveries:
                self._answer_late(served_to)
                return
            await self._deal(group, found.deliveries)

    def _next_group(self) -> list[_Poll]:
        """Those at the head that one call can serve. Whoever has gone is let go."""
        while self._polls and not _wants(self._polls[0]):
            self._polls.popleft()
        if not self._polls:
            return []
        terms, wanted = self._polls[0].terms, 0
        group: list[_Poll] = []
        for poll in self._polls:
            if poll.terms != terms or (group and wanted + poll.max_messages > MOST_AT_ONCE):
                break
            if _wants(poll):
                group.append(poll)
                wanted += poll.max_messages
        return group

    async def _ask(self, group: list[_Poll]) -> _Found | None:
        """One call for all of them. If it fails, each is asked for by itself, so that an error is its own."""
        wanted = min(sum(poll.max_messages for poll in group), max(MOST_AT_ONCE, group[0].max_messages))
        waits = any(poll.until_s > self._loop.time() for poll in group)
        watches = waits and (self._is_stale or self._stop_watching is None)
        stale = self._stop_watching if watches else None
        lease_s, consumer = group[0].terms
        # Of several nobody gets more than the few that each wants.
        answer_bytes = self._answer_bytes if len(group) == 1 else None

        def call() -> _Found:
            if stale is not None:
                stale()
            queue = self._ps.queue(self._queue)
            stop = queue.watch(self._tell) if watches else None
            return leased(queue, wanted, lease_s, consumer, answer_bytes, stop)

        if watches:
            self._stop_watching, self._is_stale = None, False
        try:
            found = await self._make(call, self._queue, wanted)
        except Exception as error:  # noqa: BLE001  (theirs: raised where they wait)
            self._is_stale = True
            alone = len(group) == 1 or not isinstance(error, PenstockError) or is_of_the_store(error)
            for poll in group if alone else group[:1]:
                if not poll.answer.done():
                    poll.answer.set_exception(error)
            return None
        self._stop_watching = found.stop or self._stop_watching
        return found

    async def _deal(self, group: list[_Poll], deliveries: Sequence[Delivery]) -> None:
        at = 0
        for poll in group:
            if at < len(deliveries) and _wants(poll):
                poll.answer.set_result(deliveries[at : at + poll.max_messages])
                at += poll.max_messages
        if at < len(deliveries):
            await self._give_back(deliveries[at:])

    async def _give_back(self, left: Sequence[Delivery]) -> None:
        """Those whom they were for went while they were leased: others shall not wait for the leases' end."""

        def call() -> _Found:
            receipts = [delivery.receipt for delivery in left]
            self._ps.queue(self._queue).nack(receipts, 0, "the client had gone before it was answered")
            return _Found((), 0.0, None)

        try:
            await self._make(call, self._queue, len(left))
        except Exception as error:  # noqa: BLE001  (their leases end by themselves)
            log.warning("queue %r: %d leases of a client that has gone: %s", self._queue, len(left), error)

    def _answer_late(self, last: _Poll) -> None:
        """There is nothing: those whose time is over, and for whom this look was, are answered so."""
        now_s = self._loop.time()
        for poll in self._polls:
            if poll.until_s <= now_s and not poll.answer.done():
                poll.answer.set_result(())
            if poll is last:
                break
        self._clean()

    def _expire(self) -> None:
        """Those who wait in vain are answered without another look."""
        now_s = self._loop.time()
        if self._is_looking:
            return  # Then they are answered by that.
        for poll in self._polls:
            if poll.until_s <= now_s and not poll.answer.done():
                poll.answer.set_result(())
        self._clean()
        self._set_timer()

    def _clean(self) -> None:
        self._polls = deque(poll for poll in self._polls if not poll.answer.done())

    def _set_timer(self) -> None:
        self._clean()
        now_s = self._loop.time()
        if not self._polls:
            at_s = self._end_at_s = now_s + LINGER_S
        else:
            at_s = min(self._look_at_s, *(poll.until_s for poll in self._polls), now_s + LOOK_EVERY_S)
        if self._timer is None or at_s < self._timer.when():
            self._ring_at(max(at_s, now_s + 0.001))

    def _ring_at(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._on_time)

    def _on_time(self) -> None:
        self._timer, now_s = None, self._loop.time()
        if self._polls:
            if now_s >= self._look_at_s:
                self._look()
            else:
                self._expire()
        elif self._is_looking:
            return  # At whose end it is set.
        elif now_s < self._end_at_s:
            self._ring_at(self._end_at_s)
        else:
            self._end()

    def _end(self) -> None:
        """Nobody has come for a while."""
        self._forget(self._queue)
        stop, self._stop_watching = self._stop_watching, None
        if stop is not None:
            # It takes a lock that a writer may hold for a moment.
            self._loop.run_in_executor(None, stop)


def _wants(poll: _Poll) -> bool:
    """Whether it is still to be served. One whose client has gone is answered, for nobody."""
    if poll.answer.done():
        return False
    if not poll.listening():
        poll.answer.set_result(())
        return False
    return True


def leased(
    queue: Queue,
    wanted: int,
    lease_s: float | None,
    consumer: str,
    answer_bytes: int | None = None,
    stop: Stop | None = None,
) -> _Found:
    """What can be had now, as far as there is room for it, and when to look again."""
    try:
        if answer_bytes is None:
            return _Found(*queue.lease_or_due(wanted, lease_s, consumer), stop)
        again_s = 0.0

        def take(count: int) -> Sequence[Delivery]:
            nonlocal again_s
            found, again_s = queue.lease_or_due(count, lease_s, consumer)
            return found

        return _Found(portioned(take, wanted, answer_bytes), again_s, stop)
    except BaseException:
        if stop is not None:
            stop()
        raise
