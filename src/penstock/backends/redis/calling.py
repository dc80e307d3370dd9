"""How calls reach servers: one exchange is one round trip; what failed is sent again while that may help."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock.backends.call_meter import CallMeter
from penstock.backends.redis import driver, failures
from penstock.backends.redis.topology import Node, Topology
from penstock.clock import Clock, to_ns
from penstock.errors import BackendUnavailable, InvalidConfig, PenstockError
from penstock.redis_settings import RedisSettings

MAX_REDIRECTIONS = 16
#: While a slot moves, calls of several of its keys are put off: so long that is waited for.
MOVING_S = 30.0
#: What is written beside the key of a call that replicas are to confirm. Valkey has them confirm what a
#: connection wrote itself; and what a call answers by, another may have written: a message that is there
#: already, or a call that is recognised.
MARK, MARK_MS = b":w", 60_000
#: A script whose answer got lost is sent again for so long: servers recognise it for a minute.
RECOGNISED_S = 45.0

Arg = bytes | int | float | str


class Call:
    """One command, its way to the right server, and in the end its answer or error."""

    __slots__ = ("asked", "done", "is_confirmed", "is_sent", "key", "pinned", "result", "timeout_s")

    def __init__(
        self,
        key: bytes | None,
        timeout_s: float | None = None,
        pinned: Node | None = None,
        is_confirmed: bool = False,
    ) -> None:
        self.key = key
        self.is_confirmed = is_confirmed  # Replicas must have it too, where the settings ask for that.
        self.timeout_s = timeout_s
        self.pinned = pinned  # The server that is meant, whatever the key.
        self.asked: Node | None = None  # Where its slot is being moved to.
        self.is_sent = False  # An answer got lost: the server may have done it already.
        self.done = False
        self.result: Any = None

    #: Whether it does harm when it is done twice.
    is_once = False

    def command(self) -> Sequence[Arg]:
        raise NotImplementedError

    def not_loaded(self) -> None:
        """The server does not have the script."""

    def finish(self, result: Any) -> None:
        self.result = result
        self.done = True

    @property
    def is_done_well(self) -> bool:
        return self.done and not isinstance(self.result, PenstockError)

    def reopen(self) -> None:
        """Done, but not confirmed: it is sent again, and recognised."""
        if self.is_done_well:
            self.done, self.is_sent, self.result = False, True, None


class Sender:
    """Sends calls over a topology: redirections, repetitions with delays, the breaker, and the figures."""

    def __init__(self, settings: RedisSettings, topology: Topology, clock: Clock, rng: random.Random) -> None:
        self._settings = settings
        self._topology = topology
        self._clock = clock
        self._rng = rng
        self._read_timeout_s = settings.read_timeout_s
        # A timeout of its own costs two system calls with each read.
        self._has_sockets_timeout = settings.read_timeout_s == settings.write_timeout_s
        self.where = f"{settings.scheme}://{settings.address}"
        self.reset()

    def reset(self) -> None:
        """As new; after a fork too."""
        self.meter = CallMeter(self._clock)
        self._pause = threading.Condition()
        self.is_closed = False

    def close(self) -> None:
        with self._pause:
            self.is_closed = True
            self._pause.notify_all()

    def perform(self, calls: Sequence[Call], limit: int | None = None) -> None:
        """Every call has its result afterwards: what the server answered, or an error of Penstock.

        `limit` is how often they are sent, where that is not what the settings say.
        """
        limit = limit or self._settings.retry.attempts
        redirections = attempts = put_off = 0
        began_ns = self._clock.now_ns()
        pending = list(calls)
        last: Exception | None = None
        while True:
            trouble = self._round(pending)
            pending = [call for call in pending if not call.done]
            if not pending:
                return
            if trouble is None:
                redirections += 1
                if redirections <= MAX_REDIRECTIONS:
                    continue
                trouble = SENT_IN_CIRCLES
            redirections = 0
            if self._is_moving(trouble, began_ns):
                put_off += 1
            else:
                self.meter.failed()
                attempts += 1
            if (
                attempts >= limit
                or not self._goes_on(trouble, max(attempts, put_off))
                or self._is_too_late(pending, began_ns)
            ):
                # What opened the breaker says more than that it is open.
                told = last if last and isinstance(trouble, BackendUnavailable) else trouble
                for call in pending:
                    call.finish(self._told(told))
                return
            last = trouble

    def _round(self, pending: Sequence[Call]) -> Exception | None:
        """Send each call once, those for one server together; the last thing that is to be waited for."""
        trouble: Exception | None = None
        groups: dict[tuple[Node, bool], list[Call]] = {}
        for call in pending:
            try:
                node = call.asked or call.pinned or self._topology.node_of(call.key)
            except (driver.RedisError, OSError) as error:
                trouble = error
                continue
            groups.setdefault((node, call.asked is not None), []).append(call)
        for (node, asking), group in groups.items():
            trouble = self._exchange(node, group, asking) or trouble
        return trouble

    def _exchange(self, node: Node, calls: Sequence[Call], asking: bool) -> Exception | None:
        """One round trip with one server."""
        started_ns = self._clock.now_ns()
        pool = self._topology.pool_of(node)
        try:
            pool.breaker.check(self.where)
            connection = pool.take()
            try:
                trouble = self._talk(connection, node, calls, asking)
            except BaseException:
                connection.disconnect()  # Its answers would be taken for those of the next call.
                raise
            finally:
                pool.give(connection)
        except (BackendUnavailable, driver.RedisError, OSError) as error:
            if failures.is_trouble(error):
                pool.breaker.failed()
            return error
        except InvalidConfig as error:
            if not error.retryable:
                raise
            return error  # Somebody is writing the file of the password.
        pool.breaker.succeeded()
        self.meter.took(self._clock.now_ns() - started_ns)
        return trouble

    def _talk(
        self, connection: driver.AnyConnection, node: Node, calls: Sequence[Call], asking: bool
    ) -> Exception | None:
        """Send the calls and hear their answers; those without one may have been done all the same."""
        trouble: Exception | None = None
        commands = [c for call in calls for c in _with_asking(call.command(), asking)]
        confirmed = [call for call in calls if call.is_confirmed and self._settings.min_replicas]
        # Not where a slot is on its way to: what moves it fails on a key that is there already.
        marked = [call for call in confirmed if call.is_sent] if asking else confirmed
        marks = [call.key + MARK for call in marked if call.key is not None][:1]
        for key in marks:
            commands += _with_asking(("SET", key, "", "PX", MARK_MS), asking)
        if confirmed:
            wait_ms = max(1, round(self._settings.replica_timeout_s * 1000))
            commands.append(("WAIT", self._settings.min_replicas, wait_ms))
        waiting = list(reversed(calls))
        try:
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            while waiting:
                call = waiting[-1]
                if asking:
                    call.asked = None
                    self._answer(connection, call.timeout_s)
                reply = self._answer(connection, call.timeout_s)
                waiting.pop()
                trouble = self._take(call, reply, node) or trouble
            if confirmed:
                for _ in range(len(marks) * (2 if asking else 1)):
                    self._answer(connection)
                problem = self._confirmation(connection)
                # Of calls that were not done there is nothing to confirm: they go elsewhere.
                confirmed = [call for call in confirmed if problem and call.is_done_well]
                trouble = problem if confirmed else trouble
        finally:
            for call in waiting:
                call.is_sent = True
            for call in confirmed:
                call.reopen()
        return trouble

    def _confirmation(self, connection: driver.AnyConnection) -> Exception | None:
        """The answer to WAIT; an error if too few replicas have what this connection wrote."""
        wanted = self._settings.min_replicas
        have = self._answer(connection, (self._read_timeout_s or 0.0) + self._settings.replica_timeout_s)
        if isinstance(have, driver.ResponseError):
            # The server has become a replica itself, and what it did may be gone.
            return have if failures.is_denied(have) else driver.ResponseError(f"NOREPLICAS {have}")
        if have >= wanted:
            return None
        return driver.ResponseError(
            f"NOREPLICAS {have} of {wanted} replicas (min_replicas) have confirmed within "
            f"{self._settings.replica_timeout_s:g} s; it is done, and may be lost with its server"
        )

    def _answer(self, connection: driver.AnyConnection, timeout_s: float | None = None) -> Any:
        try:
            if timeout_s is None and self._has_sockets_timeout:
                return connection.read_response()
            return connection.read_response(timeout=timeout_s or self._read_timeout_s)
        except driver.ResponseError as error:
            return error

    def _take(self, call: Call, reply: Any, node: Node) -> Exception | None:
        """What an answer means for its call; an error if it is to be waited for."""
        if not isinstance(reply, driver.ResponseError):
            call.finish(reply)
            return None
        if failures.code_of(reply) == "NOSCRIPT":
            call.not_loaded()
        elif isinstance(reply, driver.AskError):
            elsewhere = (reply.host or node[0], reply.port)  # Without a host: where the answer came from.
            if isinstance(reply, driver.MovedError):
                self._topology.moved(reply.slot_id, elsewhere)
            else:
                call.asked = elsewhere
        elif failures.is_for_now(reply):
            return reply
        else:
            call.finish(failures.translated(reply, self.where))
        return None

    def _told(self, trouble: Exception) -> PenstockError:
        """What users see of it; who waits for a new password may ask again, however late that comes."""
        error = failures.translated(trouble, self.where)
        if failures.is_denied(trouble) and self._may_have_new_credentials():
            error.retryable = True
        return error

    def _may_have_new_credentials(self) -> bool:
        """Look again: whoever changes a password on the server changes it for us too."""
        password = self._settings.password
        return password is not None and password.can_change

    def _renew(self) -> None:
        for pool in self._topology.pools():
            pool.renew()

    def _goes_on(self, trouble: Exception, attempts: int) -> bool:
        """Whether to try again, after the wait that comes before it."""
        if failures.is_denied(trouble):
            if not self._may_have_new_credentials():
                return False
            self._renew()
        elif not (
            failures.is_trouble(trouble) or failures.is_for_now(trouble) or isinstance(trouble, InvalidConfig)
        ):
            return False
        if failures.is_bad_certificate(trouble):
            return False
        if failures.code_of(trouble) == "READONLY":
            self._renew()  # The name may lead to another server by now.
        self._wait(attempts)
        if self.is_closed:
            return False
        # The next attempt meets it too, and counts it.
        with suppress(driver.RedisError, OSError, InvalidConfig):
            self._topology.refresh()
        return True

    def _is_moving(self, trouble: Exception, began_ns: int) -> bool:
        """Whether a slot is on its way to another server, and that has not taken long yet."""
        is_new = self._clock.now_ns() - began_ns < to_ns(MOVING_S)
        return failures.code_of(trouble) == "TRYAGAIN" and is_new

    def _is_too_late(self, pending: Sequence[Call], began_ns: int) -> bool:
        """Whether the server may not know any more that it has done one of these already."""
        is_late = self._clock.now_ns() - began_ns > to_ns(RECOGNISED_S)
        return is_late and any(call.is_once and call.is_sent for call in pending)

    def _wait(self, attempts: int) -> None:
        wait_ns = to_ns(delay_s(self._settings, attempts, self._rng))
        end_ns = self._clock.now_ns() + wait_ns
        with self._pause:
            while not self.is_closed and 0 < (left_ns := end_ns - self._clock.now_ns()) <= wait_ns:
                self._clock.wait(self._pause, left_ns)


def delay_s(settings: RedisSettings, attempts: int, rng: random.Random) -> float:
    """Doubled with each attempt up to a limit; between half of it and all of it, so that clients spread."""
    retry = settings.retry
    longest = min(retry.first_delay_s * 2.0 ** min(attempts - 1, 30), retry.max_delay_s)
    return longest * (0.5 + rng.random() / 2)


def _with_asking(command: Sequence[Arg], asking: bool) -> list[Sequence[Arg]]:
    return [("ASKING",), command] if asking else [command]


SENT_IN_CIRCLES = driver.ConnectionError("its servers send calls from one to the other and back")
