"""Move tasks: dead letters that go back in the background, in slices; what is known of them is in the store.

A task is run by one server at a time: its record says who runs it and until when that one is taken for alive.
When it is not, another server goes on, or the same one after a restart.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from uuid import uuid4

import msgspec

from penstock.clock import NS_PER_S, Clock
from penstock.errors import PenstockError, QueueNotFound
from penstock.message import SERVER_STATE_PREFIX
from penstock.penstock import Penstock
from penstock.server.endpoint import Busy, Calls
from penstock.server.sqs.checks import as_sqs
from penstock.server.sqs.errors import SqsError

log = logging.getLogger("penstock.server")
T = TypeVar("T")

#: Messages of one call of the store, and the most that may be asked for in a second.
SLICE = 500
#: Tasks of a queue that are remembered.
MOST_TASKS = 10
#: How long whoever runs a task is taken for alive, after its last word.
ALIVE_NS = 10 * NS_PER_S
#: Between slices of a task with a rate, and before a store that does not answer is asked again.
PAUSE_S = 1.0
_STATE = f"{SERVER_STATE_PREFIX}sqs/"
#: Queues that have a task under way, so that a server that starts finds them.
_MOVING = _STATE + "moving"


class Task(msgspec.Struct, omit_defaults=True):
    """One task, as it is stored. Statuses are those of SQS."""

    id: str
    started_at_ns: int
    to_move: int
    destination: str | None = None
    per_second: int | None = None
    status: str = "RUNNING"
    moved: int = 0
    failure: str | None = None
    runner: str = ""
    alive_until_ns: int = 0

    @property
    def is_active(self) -> bool:
        return self.status in ("RUNNING", "CANCELLING")


class Moves:
    """All tasks. What touches the store runs in a thread; tasks are driven on the event loop."""

    def __init__(self, ps: Penstock, calls: Calls, clock: Clock) -> None:
        self._ps = ps
        self._calls = calls
        self._clock = clock
        self._me = uuid4().hex
        #: Held by who reads records to change them.
        self._changing = threading.Lock()
        #: By queue: set when there is a reason to look at once.
        self._running: dict[str, asyncio.Event] = {}
        self._loops: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self, queue: str, destination: str | None, per_second: int | None) -> Task:
        """Written down before it runs. `SqsError` if the queue has a task under way already."""
        task = await self._calls.run(self._started, queue, destination, per_second)
        self._drive(queue)
        return task

    async def cancel(self, queue: str, task_id: str) -> int:
        """What has moved by now stays where it is; how many."""
        moved = await self._calls.run(self._cancelled, queue, task_id)
        self._drive(queue)  # Whoever ran it may be gone.
        return moved

    async def tasks(self, queue: str) -> list[Task]:
        """The last ones, the latest first."""
        return await self._calls.run(self._tasks, queue)

    async def resume(self) -> None:
        """Go on with what a server left behind."""
        for queue in await self._calls.run(self._moving):
            self._drive(queue)

    async def stop(self) -> None:
        """After the slices that are under way; another server goes on at once."""
        self._stopping = True
        for wake in self._running.values():
            wake.set()
        await asyncio.gather(*self._loops)

    # -- on the event loop

    def _drive(self, queue: str) -> None:
        if self._stopping:
            return
        if queue in self._running:
            self._running[queue].set()
            return
        self._running[queue] = asyncio.Event()
        task = asyncio.get_running_loop().create_task(self._run(queue))
        self._loops.add(task)
        task.add_done_callback(self._loops.discard)

    async def _run(self, queue: str) -> None:
        wake = self._running[queue]
        try:
            while not self._stopping:
                wake.clear()
                pause_s = await self._stepped(queue)
                if pause_s is not None:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(wake.wait(), pause_s)
                elif not wake.is_set():  # Else a task was started behind the look that found none.
                    return
            await self._calls.run(self._let_go, queue)
        except (PenstockError, Busy) as error:
            log.warning("moves of queue %r: not noted that they stop here: %s", queue, error)
        finally:
            del self._running[queue]

    async def _stepped(self, queue: str) -> float | None:
        """A slice; how long to wait before the next one, or None if there is none."""
        try:
            return await self._calls.run(self._step, queue)
        except Busy:
            return PAUSE_S
        except PenstockError as error:
            if error.retryable:
                return PAUSE_S
            log.warning("moves of queue %r: %s", queue, error)
            reason = as_sqs(error).code
        except Exception as error:
            log.exception("moves of queue %r failed", queue)
            reason = type(error).__name__
        with suppress(PenstockError, Busy):
            await self._calls.run(self._failed, queue, reason)
        return None

    # -- in a thread

    def _started(self, queue: str, destination: str | None, per_second: int | None) -> Task:
        stats = self._ps.queue(queue).stats()
        now_ns = self._clock.now_ns()
        task = Task(uuid4().hex, now_ns, stats.ready + stats.dead, destination, per_second)
        task.runner, task.alive_until_ns = self._me, now_ns + ALIVE_NS
        with self._changing:
            tasks = self._tasks(queue)
            if any(one.is_active for one in tasks):
                raise SqsError(
                    "UnsupportedOperation",
                    "There is already a task running. Only one active task is allowed for a source queue.",
                )
            # The list of queues first: a name too many is found to have no task; one that lacks is not found.
            self._note_moving(lambda names: names | {queue})
            self._write(queue, [task, *tasks][:MOST_TASKS])
        return task

    def _cancelled(self, queue: str, task_id: str) -> int:
        with self._changing:
            tasks = self._tasks(queue)
            task = next((one for one in tasks if one.id == task_id), None)
            if task is None:
                raise SqsError("ResourceNotFoundException", "Task does not exist.")
            if task.status != "RUNNING":
                raise SqsError("UnsupportedOperation", f"The task is {task.status}: it cannot be cancelled.")
            task.status = "CANCELLING"
            self._write(queue, tasks)
        return task.moved

    def _step(self, queue: str) -> float | None:
        task = self._taken(queue)
        if task is None:
            return None
        if task.runner != self._me:
            return max((task.alive_until_ns - self._clock.now_ns()) / NS_PER_S, PAUSE_S)
        moved = self._slice(queue, task) if task.status == "RUNNING" else 0

        def ended(now: Task) -> None:
            now.moved += moved
            if now.status == "CANCELLING":
                now.status = "CANCELLED"
            elif now.moved >= now.to_move:
                now.status = "COMPLETED"
            elif not moved and now.destination is None and self._ps.queue(queue).stats().ready:
                # What was sent here and never died elsewhere has no queue to go back to.
                now.status, now.failure = "FAILED", "CouldNotDetermineMessageSource"
            elif not moved:
                now.status = "COMPLETED"

        self._change(queue, ended)
        return 0.0 if task.per_second is None else PAUSE_S

    def _taken(self, queue: str) -> Task | None:
        """The task under way, now this server's if nobody else is seen to run it."""

        def take(task: Task) -> None:
            now_ns = self._clock.now_ns()
            if task.runner == self._me or task.alive_until_ns <= now_ns:
                task.runner, task.alive_until_ns = self._me, now_ns + ALIVE_NS

        return self._change(queue, take)

    def _slice(self, queue: str, task: Task) -> int:
        source = self._ps.queue(queue)
        wanted = min(task.per_second or SLICE, task.to_move - task.moved)
        if wanted < 1:
            return 0
        moved = source.redrive(wanted, task.destination)
        if moved or task.destination is None:
            return moved
        # Only what has died is redriven; what was sent to the queue itself is moved.
        ids = [message.id for message in source.list("ready", limit=wanted).items]
        return sum(outcome.ok for outcome in source.move(ids, task.destination))

    def _failed(self, queue: str, reason: str) -> None:
        def fail(task: Task) -> None:
            task.status, task.failure = "FAILED", reason

        self._change(queue, fail)

    def _let_go(self, queue: str) -> None:
        def let_go(task: Task) -> None:
            if task.runner == self._me:
                task.alive_until_ns = 0

        self._change(queue, let_go)

    def _change(self, queue: str, change: Callable[[Task], None]) -> Task | None:
        """The task under way, changed; None if there is none, which is then noted."""
        with self._changing:
            try:
                tasks = self._tasks(queue)
            except QueueNotFound:
                tasks = []
            task = next((one for one in tasks if one.is_active), None)
            if task is not None:
                change(task)
                self._write(queue, tasks)
            if task is None or not task.is_active:
                self._note_moving(lambda names: names - {queue})
        return task

    def _tasks(self, queue: str) -> list[Task]:
        """Of this queue, and not of one of the same name that was deleted."""
        since_ns = self._ps.queue(queue).stats().created_at_ns
        raw = self._ps.state.get(_key(queue))
        found = msgspec.json.decode(raw, type=list[Task]) if raw else []
        return [task for task in found if task.started_at_ns >= since_ns]

    def _write(self, queue: str, tasks: list[Task]) -> None:
        self._ps.state.put(_key(queue), msgspec.json.encode(tasks))

    def _moving(self) -> frozenset[str]:
        raw = self._ps.state.get(_MOVING)
        return frozenset(msgspec.json.decode(raw, type=list[str]) if raw else ())

    def _note_moving(self, change: Callable[[frozenset[str]], frozenset[str]]) -> None:
        names = self._moving()
        changed = change(names)
        if changed != names:
            self._ps.state.put(_MOVING, msgspec.json.encode(sorted(changed)))


def _key(queue: str) -> str:
    """A queue's name may be as long as a key of the state, and is then too long for one."""
    return f"{_STATE}moves/{hashlib.sha256(queue.encode()).hexdigest()}"
