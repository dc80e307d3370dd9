"""A server of the Redis family as its backends see it: scripts, commands, channels, and nothing below."""

from __future__ import annotations

import hashlib
import os
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from penstock.backends.redis import driver, failures, profiles, security
from penstock.backends.redis.breaker import Breaker
from penstock.backends.redis.calling import Arg as Arg
from penstock.backends.redis.calling import Call, Sender
from penstock.backends.redis.pool import Pool
from penstock.backends.redis.profiles import Profile
from penstock.backends.redis.subscriber import Subscriber
from penstock.backends.redis.topology import Cluster, Node, SingleServer, Topology
from penstock.clock import Clock, SystemClock
from penstock.errors import PenstockError, StorageError
from penstock.redis_settings import RedisSettings

#: The argument of a script that identifies the call: 16 bytes, b"1" if it may have been done already, and
#: what else every script of a queue is told.
CALL_ARG = 1
CALL_BYTES = 17

#: Commands without a key, or with it in another place than first.
_KEYLESS = frozenset(
    b"ACL CLIENT CLUSTER CONFIG DBSIZE ECHO HELLO INFO PING PUBLISH ROLE SCAN SCRIPT TIME WAIT".split()
)
_KEY_SECOND = frozenset((b"MEMORY", b"OBJECT", b"XGROUP", b"XINFO"))

#: Commands whose changes replicas must have too.
_CONFIRMED = frozenset(("HSET", "HDEL", "HINCRBY"))

_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    """What answers as a map does, HGETALL say, comes as a list of names and values in turn."""
    return list(zip(flat[::2], flat[1::2], strict=True))


class Script:
    """A Lua text and its SHA-1. What one that is not `is_confirmed` changes happens again if it is lost."""

    __slots__ = ("is_confirmed", "name", "sha", "text")

    def __init__(self, name: str, text: bytes, is_confirmed: bool = True) -> None:
        self.name = name
        self.is_confirmed = is_confirmed
        self.text = text
        self.sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


class ServerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How calls have gone lately. `warnings` concern the way to the server, not what it holds."""

    reachable: bool
    server: str
    latency_p50_s: float | None
    latency_p99_s: float | None
    calls: int
    errors: int
    error_rate: float
    breaker_open: bool
    listening: bool
    reconnects: int
    pool_size: int
    pool_in_use: int
    nodes: int
    warnings: list[str]


class _ScriptCall(Call):
    __slots__ = ("_args", "_keys", "_script", "is_whole")

    is_once = True

    def __init__(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[Arg],
        timeout_s: float | None,
        is_whole: bool,
    ) -> None:
        super().__init__(keys[0] if keys else None, timeout_s, is_confirmed=script.is_confirmed)
        self._script = script
        self._keys = keys
        self._args = args
        self.is_whole = is_whole  # Sent with its text, which the server then knows.

    def command(self) -> Sequence[Arg]:
        script, args = self._script, self._args
        if self.is_sent:
            args = _repeated(args)
        if self.is_whole:
            return ("EVAL", script.text, len(self._keys), *self._keys, *args)
        return ("EVALSHA", script.sha, len(self._keys), *self._keys, *args)

    def not_loaded(self) -> None:
        self.is_whole = True


class _PlainCall(Call):
    __slots__ = ("_args",)

    def __init__(self, key: bytes | None, args: Sequence[Arg], pinned: Node | None = None) -> None:
        super().__init__(key, pinned=pinned, is_confirmed=args[0] in _CONFIRMED)
        self._args = args

    def command(self) -> Sequence[Arg]:
        return self._args


def _repeated(args: Sequence[Arg]) -> Sequence[Arg]:
    """The arguments of a call whose answer got lost: the script looks whether it was done already."""
    call = args[CALL_ARG] if len(args) > CALL_ARG else b""
    if not isinstance(call, bytes) or len(call) < CALL_BYTES:
        return args
    again = call[: CALL_BYTES - 1] + b"1" + call[CALL_BYTES:]
    return [*args[:CALL_ARG], again, *args[CALL_ARG + 1 :]]


class Server:
    """A server (or cluster) that scripts are run on. Safe from any thread, and in a child after a fork.

    It reconnects, and sends again what is safe to be repeated: see `run`.
    """

    profile: Profile

    def __init__(self, settings: RedisSettings, clock: Clock, rng: random.Random) -> None:
        self.settings = settings = profiles.filled(settings)
        make = security.connection_maker(settings)
        wait_s = settings.read_timeout_s or 0.0

        def make_pool(node: Node) -> Pool:
            breaker = Breaker(settings.retry, clock)
            return Pool(lambda: make(*node), settings.pool_size or 1, wait_s, breaker, clock)

        kind: type[Cluster | SingleServer] = Cluster if settings.cluster else SingleServer
        self._topology: Topology = kind(settings, make_pool)
        self._sender = Sender(settings, self._topology, clock, rng)
        self._subscriber = Subscriber(lambda: make(*self._ear(rng)), settings, clock, rng)
        _servers.add(self)

    # -- calls

    def run(
        self,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[Arg],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Run a script where its first key is. Answers are bytes, int, list and None.

        It is sent again when the connection broke, and then says so: the last byte of `args[1]`, the
        call's 16 bytes and b"0", becomes b"1" from the first attempt on whose answer got lost.
        """
        call = _ScriptCall(script, keys, args, timeout_s, not self.settings.lua_script_cache)
        return self._one(call)

    def run_many(self, calls: Sequence[tuple[Script, Sequence[bytes], Sequence[Any]]]) -> list[Any]:
        """Run several, `pipeline_size` in a round trip; an error is the answer of its call alone.

        They must not depend on each other: what a server did not take is sent again after the rest.
        """
        whole = not self.settings.lua_script_cache
        made = [_ScriptCall(script, keys, args, None, whole) for script, keys, args in calls]
        size = self.settings.pipeline_size or len(made)
        for at in range(0, len(made), size):
            self._perform(made[at : at + size])
        return [call.result for call in made]

    def command(self, *args: Arg) -> Any:
        """A single command that may be repeated: one that reads, or that changes nothing the second time."""
        return self._one(_PlainCall(_key_of(args), args))

    def everywhere(self, *args: Arg) -> list[Any]:
        """The same command on every server that has keys: one answer for each, of a single server one."""
        return list(self.told(*args).values())

    def told(self, *args: Arg) -> dict[Node, Any]:
        """The same, with who answered what."""
        return {node: self._one(_PlainCall(None, args, node)) for node in self._nodes()}

    def node_of(self, key: bytes) -> Node:
        """The server that has a key."""
        try:
            return self._topology.node_of(key)
        except (driver.RedisError, OSError) as error:
            raise failures.translated(error, self._sender.where) from error

    def each(self, *args: Arg) -> dict[Node, Any]:
        """The same once, with an error as the answer of one that has none."""
        calls = {node: _PlainCall(None, args, node) for node in self._nodes()}
        for call in calls.values():
            self._perform([call], limit=1)
        return {node: call.result for node, call in calls.items()}

    def scan(self, pattern: bytes) -> Iterator[list[bytes]]:
        """The keys that match, of all servers, some at a time; what changes meanwhile may be missed."""
        for node in self._nodes():
            cursor = b"0"
            while True:
                call = _PlainCall(None, ("SCAN", cursor, "MATCH", pattern, "COUNT", 1000), node)
                cursor, keys = self._one(call)
                yield keys
                if cursor == b"0":
                    break

    def _nodes(self) -> list[Node]:
        try:
            return self._topology.nodes()
        except (driver.RedisError, OSError) as error:
            raise failures.translated(error, self._sender.where) from error

    def _one(self, call: Call) -> Any:
        self._perform([call])
        if isinstance(call.result, PenstockError):
            raise call.result
        return call.result

    def _perform(self, calls: Sequence[Call], limit: int | None = None) -> None:
        if self._sender.is_closed:
            raise StorageError("the store is closed; open it again")
        self._subscriber.go_on()
        self._sender.perform(calls, limit)

    # -- channels

    def listen(self, channel: bytes, told: Callable[[], None]) -> Callable[[], None]:
        """Call `told` for each message of a channel, when listening begins, and after every reconnect.

        It is called in a thread of its own and must return soon. What is returned stops it.
        """
        return self._subscriber.listen(channel, told)

    def _ear(self, rng: random.Random) -> Node:
        """Where to listen: what is published at one server of a cluster is heard at each."""
        if self._subscriber.failed_in_a_row:
            with suppress(driver.RedisError, OSError):
                self._topology.refresh()
        return rng.choice(self._topology.nodes())

    # -- the server as a whole

    def health(self) -> ServerHealth:
        """Whether it answers now, and how calls went in the last minutes."""
        ping = _PlainCall(None, ("PING",))
        self._perform([ping], limit=1)
        reachable = not isinstance(ping.result, PenstockError)
        figures, pools = self._sender.meter.figures(), self._topology.pools()
        return ServerHealth(
            reachable=reachable,
            server=self.profile.name,
            latency_p50_s=figures.p50_s,
            latency_p99_s=figures.p99_s,
            calls=figures.calls,
            errors=figures.errors,
            error_rate=figures.error_rate,
            breaker_open=any(pool.breaker.is_open for pool in pools),
            listening=self._subscriber.is_connected,
            reconnects=self._subscriber.reconnects,
            pool_size=sum(pool.size for pool in pools),
            pool_in_use=sum(pool.in_use for pool in pools),
            nodes=len(self._nodes()) if reachable else 0,
            warnings=security.warnings(self.settings),
        )

    def close(self) -> None:
        """End every connection and the listening thread. Calls on their way fail."""
        self._sender.close()
        self._subscriber.close()
        for pool in self._topology.pools():
            pool.close()

    def after_fork(self) -> None:
        """In the child: connections, locks and threads of the parent are the parent's."""
        if self._sender.is_closed:
            return
        self._topology.reset()
        self._sender.reset()
        self._subscriber.reset()


def _key_of(args: Sequence[Arg]) -> bytes | None:
    word = args[0] if isinstance(args[0], bytes) else str(args[0]).encode()
    at = 2 if word.upper() in _KEY_SECOND else 1
    if word.upper() in _KEYLESS or len(args) <= at:
        return None
    key = args[at]
    return key if isinstance(key, bytes) else str(key).encode()


def _after_fork() -> None:
    for server in list(_servers):
        server.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def connect(
    settings: RedisSettings, *, clock: Clock | None = None, rng: random.Random | None = None
) -> Server:
    """Connect, and see which server it is; one that does not answer, or is another one, is refused.

    `clock` and `rng` are for delays between attempts alone: without them, those of the machine.
    """
    server = Server(settings, clock or SystemClock(), rng or random.Random())
    try:
        profile = profiles.detect(server.command, settings.flavour)
        profiles.check(profile, settings)
        server.profile = profile
    except BaseException:
        server.close()
        raise
    return server
