"""The helper process and whose turn it is: slices of work, a new helper where one has ended."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from penstock.config import HookSettings
from penstock.errors import BackendUnavailable, HookError, StorageError
from penstock.hooks import child
from penstock.hooks.helper import Ended, Helper
from penstock.hooks.wire import Answer, decode_answers, load_request, run_request

#: What one request holds at most.
MOST_MESSAGES = 100
MOST_REQUEST_BYTES = 256 * 1024
#: After a slice others go first. A lock alone would be taken again before those who wait for it wake.
LET_OTHERS_IN_S = 0.0005

T = TypeVar("T")

#: A helper remembers the state values of one batch.
_batches = itertools.count(1)

#: Gives the frame that answers a script's question for a state value.
Reply = Callable[[bytes], bytes]


class Source(NamedTuple):
    """A script: its number in this process, which hook it is of, and whose."""

    number: int
    hook: str
    queue: str
    text: str


class Pool:
    """Runs scripts in a helper, one slice at a time. Safe to call from any thread that holds no lock."""

    def __init__(self, settings: HookSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._pid = os.getpid()
        #: Threads that want the lock.
        self._waiting: set[int] = set()
        #: The thread that has the lock.
        self._inside: int | None = None
        #: The helper, if there is one.
        self._helpers: list[Helper] = []
        self._closed = False
        # Where nobody closes it, the helper still ends with it.
        weakref.finalize(self, _end, self._helpers)

    @property
    def pid(self) -> int | None:
        """Of the helper, if there is one."""
        return next((helper.pid for helper in self._helpers), None)

    def load(self, script: Source, reply: Reply) -> Answer | None:
        """What is wrong with a script, if something is."""
        answer = self._load(script, reply)
        return self._load(script, reply) if _is_stopped(answer) else answer

    def _load(self, script: Source, reply: Reply) -> Answer | None:
        try:
            return self._in_turn(lambda helper: _load(helper, script, reply))
        except Ended as ended:
            return self._stopped(script, ended)

    def answers(
        self, script: Source, now_s: float, packed: Sequence[bytes], reply: Reply
    ) -> Iterator[list[Answer | None]]:
        """Answers in order, slice by slice.

        Whose message ended a helper is found by sending them singly. A call that was stopped has a second
        try: where a machine stalls, as a virtual one does whose host is busy, it is charged with that time.
        """
        at, singly, suspect, batch = 0, 0, -1, next(_batches)
        while at < len(packed):
            some = packed[at : at + 1] if singly or at == suspect else _request(packed, at)
            try:
                got = self._slice(script, batch, now_s, some, reply)
            except Ended as ended:
                if len(some) > 1:
                    singly = len(some)
                    continue
                got = [self._stopped(script, ended)]
            last = at + len(got) - 1
            if _is_stopped(got[-1]) and not singly and last != suspect:
                suspect = last
                got.pop()
            singly, at = max(0, singly - len(got)), at + len(got)
            if got:
                yield got

    def close(self) -> None:
        with self._lock:
            self._closed = True
            _end(self._helpers)

    def _slice(
        self, script: Source, batch: int, now_s: float, some: Sequence[bytes], reply: Reply
    ) -> list[Answer | None]:
        request = run_request(script.number, batch, now_s, some)

        def act(helper: Helper) -> list[Answer | None]:
            frame = helper.ask(request, reply)
            if frame == child.UNKNOWN:
                answer = _load(helper, script, reply)
                if answer is not None:
                    return [answer]
                frame = helper.ask(request, reply)
            return _decoded(frame, len(some))

        return self._in_turn(act)

    def _in_turn(self, act: Callable[[Helper], T]) -> T:
        """With the helper, which is started if there is none; whatever fails in the middle ends it."""
        if os.getpid() != self._pid:
            # Its answers would be the parent's, and its lock may be held by a thread that is not here.
            raise StorageError(f"the store was opened in process {self._pid}; open it anew in this one")
        me = threading.get_ident()
        if self._inside == me:
            raise BackendUnavailable(
                "called while a script runs for this thread, by a signal handler or a finalizer perhaps; "
                "call from elsewhere"
            )
        self._waiting.add(me)
        try:
            with self._lock:
                self._waiting.discard(me)
                self._inside = me
                try:
                    answer = act(self._helper())
                except BaseException:
                    _end(self._helpers)
                    raise
                finally:
                    self._inside = None
        finally:
            self._waiting.discard(me)  # Interrupted while it waited.
        if self._waiting:
            threading.Event().wait(LET_OTHERS_IN_S)
        return answer

    def _helper(self) -> Helper:
        if self._closed:
            raise HookError("the store was closed while its scripts ran")
        if not self._helpers:
            self._helpers.append(Helper(self._settings))
        return self._helpers[0]

    def _stopped(self, script: Source, ended: Ended) -> Answer:
        why = f"its helper process ended ({ended})"
        if ended.timed:
            why = f"stopped in a library function, after more than {self._settings.time_limit_ms} ms"
        return Answer(child.STOPPED, f"{script.hook}: {why}")


def _is_stopped(answer: Answer | None) -> bool:
    return answer is not None and answer.code == child.STOPPED


def _load(helper: Helper, script: Source, reply: Reply) -> Answer | None:
    request = load_request(script.number, script.hook, script.queue, script.text)
    return _decoded(helper.ask(request, reply), 1)[0]


def _decoded(frame: bytes, most: int) -> list[Answer | None]:
    """The answers in a frame. A helper that answers anything else is not one any more."""
    try:
        answers = decode_answers(frame[1:]) if frame[:1] == child.ANSWERS else []
    except (msgspec.DecodeError, ValueError):
        answers = []
    if not 1 <= len(answers) <= most:
        raise Ended("it answered what is no answer")
    return answers


def _request(packed: Sequence[bytes], at: int) -> Sequence[bytes]:
    """As many as go together; one at least."""
    end = at + 1
    size = len(packed[at])
    while end < len(packed) and end - at < MOST_MESSAGES:
        size += len(packed[end])
        if size > MOST_REQUEST_BYTES:
            break
        end += 1
    return packed[at:end]


def _end(helpers: list[Helper]) -> None:
    while helpers:
        helpers.pop().end()
