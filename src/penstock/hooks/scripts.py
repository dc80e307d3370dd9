"""What a queue's scripts decide: messages in and out of the sandbox, and what happens where that fails.

The contract with a backend: it runs scripts with no lock held, before what they decide is written, and
writes only what is still true by then.
"""

from __future__ import annotations

import itertools
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.clock import NS_PER_S, Clock, to_ns
from penstock.codec.body import check_duration, check_message
from penstock.config import HookSettings
from penstock.errors import (
    BackendNotInstalled,
    HookError,
    InvalidConfig,
    InvalidMessage,
    PenstockError,
    StorageCorrupt,
)
from penstock.hooks import child
from penstock.hooks.breaker import REST_NS, Breaker
from penstock.hooks.pool import Pool, Source
from penstock.hooks.wire import Answer, Failure, pack_failure, pack_new
from penstock.message import SERVER_STATE_PREFIX, NewMessage

log = logging.getLogger("penstock")

#: A state value that is larger is not for scripts.
MOST_STATE_BYTES = 64 * 1024
#: So many failures in a row are worth a word in `health`.
COMPLAIN_AFTER = 10

#: What packing raises for something that is not a valid message.
_NOT_PACKABLE = (AttributeError, TypeError, ValueError, ArithmeticError, LookupError, struct.error)

#: Codes of answers that no script gave: it rests, or there is no helper to run it.
_NOT_RUN = -1
_FAILURES = (child.FAILED, child.STOPPED, _NOT_RUN)

_UNTOUCHED = NewMessage()

_numbers = itertools.count(1)


class Refused(NamedTuple):
    """In the place of a message that is not stored: why."""

    error: PenstockError


class Verdict(NamedTuple):
    """What becomes of a failed message: `action` is retry, dead_letter or drop."""

    action: str
    delay_ns: int = 0
    reason: str = ""


class Script:
    """One hook of one queue, and how it has fared."""

    def __init__(self, queue: str, hook: str, text: str) -> None:
        self.source = Source(next(_numbers), hook, queue, text)
        self.breaker = Breaker()
        self.failures = 0
        self.last_failure = ""

    def complaint(self, now_ns: int) -> str | None:
        name = f"queue {self.source.queue!r}: {self.source.hook}"
        if self.breaker.rests(now_ns):
            return f"{name} was stopped too often and rests; last: {self.last_failure}"
        if self.failures >= COMPLAIN_AFTER:
            return f"{name} failed {self.failures} times in a row; last: {self.last_failure}"
        return None


class Scripts:
    """Runs scripts for one backend, whose state they read by `read_state`."""

    def __init__(
        self, settings: HookSettings, clock: Clock, read_state: Callable[[str], bytes | None]
    ) -> None:
        self.pool = Pool(settings)
        self._clock = clock
        self._read_state = read_state

    def check(self, script: Script) -> None:
        """Refuse a script that does not compile, fails as it is, or does not define its function."""
        answer = self.pool.load(script.source, self._reply)
        if answer is not None:
            raise InvalidConfig(f"queue {script.source.queue!r}: {answer.text}")

    def enqueue(self, script: Script, messages: Sequence[NewMessage]) -> list[NewMessage | Refused]:
        """Each message as the script wants it, or why it is refused. A script that fails lets nothing in."""
        out: list[NewMessage | Refused] = list(messages)
        packed: list[bytes] = []
        places: list[int] = []
        for place, message in enumerate(messages):
            try:
                packed.append(pack_new(message))
                places.append(place)
            except _NOT_PACKABLE as error:
                out[place] = _not_packable(script, message, error)
        for place, answer in zip(places, self._answers(script, packed), strict=True):
            if answer is not None:
                out[place] = _applied(script, messages[place], answer)
        return out

    def fail(self, script: Script, failures: Sequence[Failure]) -> list[Verdict | None]:
        """A verdict for each. None: the queue's own settings decide, as they do where the script fails."""
        packed = [pack_failure(failure) for failure in failures]
        return [_verdict(answer) for answer in self._answers(script, packed)]

    def close(self) -> None:
        self.pool.close()

    def _answers(self, script: Script, packed: Sequence[bytes]) -> Iterator[Answer | None]:
        """One for each, whatever happens."""
        now_ns, done = self._clock.now_ns(), 0
        why = f"rests after too many stops; last: {script.last_failure}"
        try:
            if packed and not script.breaker.rests(now_ns):
                for found in self.pool.answers(script.source, now_ns / NS_PER_S, packed, self._reply):
                    some = [answer and _checked(script, answer) for answer in found]
                    for answer in some:
                        self._learn(script, answer, now_ns)
                    done += len(some)
                    yield from some
                    if script.breaker.rests(now_ns):
                        why = f"rests after too many stops; last: {script.last_failure}"
                        break
        except (HookError, BackendNotInstalled) as error:
            why = str(error)
            _note(script, why)
        for _ in range(len(packed) - done):
            yield Answer(_NOT_RUN, f"{script.source.hook}: {why}")

    def _learn(self, script: Script, answer: Answer | None, now_ns: int) -> None:
        if answer is None or answer.code not in _FAILURES:
            script.failures = 0
            script.breaker.succeeded()
            return
        _note(script, answer.text)
        if answer.code == child.STOPPED and script.breaker.stopped(now_ns):
            name, rest_s = f"queue {script.source.queue!r}: {script.source.hook}", REST_NS // NS_PER_S
            log.warning("%s was stopped too often, and rests for %d s", name, rest_s)

    def _reply(self, raw_key: bytes) -> bytes:
        if raw_key.startswith(SERVER_STATE_PREFIX.encode()):
            return child.NO_VALUE
        try:
            value = self._read_state(raw_key.decode())
        except (InvalidMessage, UnicodeDecodeError):
            return child.BAD_KEY + b"a key is 1 to 1,024 bytes of UTF-8 without NUL"
        except StorageCorrupt:
            return child.BAD_KEY + b"the value is damaged; run check with repair"
        if value is None:
            return child.NO_VALUE
        if len(value) > MOST_STATE_BYTES:
            return child.BAD_KEY + b"the value has more than %d bytes" % MOST_STATE_BYTES
        return child.VALUE + value


def _note(script: Script, failure: str) -> None:
    script.failures += 1
    script.last_failure = failure
    # Whose message is refused hears of it. That a failed one went by the queue's settings, nobody would.
    if script.failures == 1 and script.source.hook == "on_failure":
        log.warning("queue %r: %s", script.source.queue, failure)


def _not_packable(script: Script, message: Any, error: Exception) -> Any:
    """What is not valid says so itself; what is, but cannot be shown to the script, is not let in either."""
    if not isinstance(message, NewMessage):
        return message
    try:
        check_message(message)
    except (*_NOT_PACKABLE, PenstockError):
        return message
    return Refused(_error(script, f"the message cannot be shown to the script ({type(error).__name__})"))


def _error(script: Script, text: str) -> HookError:
    return HookError(f"queue {script.source.queue!r}: {text}")


def _applied(script: Script, message: NewMessage, answer: Answer) -> NewMessage | Refused:
    if answer.code == child.CHANGED:
        return _with(answer, message)
    if answer.code == child.REFUSED:
        reason = answer.text or "no reason given"
        return Refused(InvalidMessage(f"queue {script.source.queue!r} refuses the message: {reason}"))
    try:
        check_message(message)
    except (*_NOT_PACKABLE, PenstockError):
        return message  # Not the script's fault, perhaps: it says itself what is wrong with it.
    error = _error(script, answer.text)
    # The same message may be let in when the script runs again; where it failed, it would fail again.
    error.retryable = answer.code == _NOT_RUN
    return Refused(error)


def _checked(script: Script, answer: Answer) -> Answer:
    """What a script sets is checked like what a caller sets; what it leaves alone is the caller's."""
    try:
        if answer.code == child.CHANGED:
            check_message(_with(answer, _UNTOUCHED))
        elif answer.code == child.RETRY:
            check_duration(answer.delay_s or 0.0, "the delay")
    except InvalidMessage as error:
        return Answer(child.FAILED, f"{script.source.hook}: {error}")
    return answer


def _with(answer: Answer, m: NewMessage) -> NewMessage:
    """The message as the script wants it."""
    return NewMessage(
        m.payload,
        # In an order of its own, for Lua's differs from run to run.
        m.headers if answer.headers is None else dict(sorted(answer.headers.items())),
        m.fairness_key if answer.fairness_key is None else answer.fairness_key,
        m.weight if answer.weight is None else answer.weight,
        m.throttle_keys if answer.throttle_keys is None else answer.throttle_keys,
        m.priority if answer.priority is None else answer.priority,
        m.delay_s if answer.delay_s is None else answer.delay_s,
        m.ttl_s,
        m.dedup_id,
        m.id,
    )


def _verdict(answer: Answer | None) -> Verdict | None:
    if answer is None or answer.code in _FAILURES:
        return None
    if answer.code == child.RETRY:
        return Verdict("retry", to_ns(answer.delay_s or 0.0))
    return Verdict("drop" if answer.code == child.DROP else "dead_letter", reason=answer.text)
