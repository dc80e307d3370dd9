"""Which server has a key: the only one, or the master of the key's slot in a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.backends.redis import driver
from penstock.backends.redis.pool import Pool
from penstock.errors import InvalidConfig
from penstock.redis_settings import RedisSettings

Node = tuple[str, int]
MakePool = Callable[[Node], Pool]


class SlotUnknown(driver.ConnectionError):
    """No master is known for a slot: a failover is under way, or the cluster is not whole."""


class Topology(Protocol):
    """Where calls go. Safe from any thread."""

    def node_of(self, key: bytes | None) -> Node:
        """The server for a key; any one for no key."""
        ...

    def pool_of(self, node: Node) -> Pool: ...

    def nodes(self) -> list[Node]:
        """Every server that has keys of its own."""
        ...

    def pools(self) -> list[Pool]: ...

    def moved(self, slot: int, node: Node) -> None:
        """A server said that a slot is now elsewhere."""
        ...

    def refresh(self) -> None:
        """Something did not answer as expected: look again at what is where."""
        ...

    def reset(self) -> None:
        """After a fork."""
        ...


class SingleServer:
    """Everything in one place."""

    def __init__(self, settings: RedisSettings, make_pool: MakePool) -> None:
        self._node = settings.nodes[0]
        self._pool = make_pool(self._node)

    def node_of(self, key: bytes | None) -> Node:
        return self._node

    def pool_of(self, node: Node) -> Pool:
        return self._pool

    def nodes(self) -> list[Node]:
        return [self._node]

    def pools(self) -> list[Pool]:
        return [self._pool]

    def moved(self, slot: int, node: Node) -> None:
        """A server that is no member of a cluster does not say so."""

    def refresh(self) -> None:
        """There is only one place to look."""

    def reset(self) -> None:
        self._pool.reset()


class Cluster:
    """Slots and their masters, as CLUSTER SLOTS and redirections tell.

    The driver's own cluster client is not used: it sends a call again by itself when a connection
    breaks, and a call that may have been done must say that it is a repetition.
    """

    def __init__(self, settings: RedisSettings, make_pool: MakePool) -> None:
        self._seeds = list(settings.nodes)
        self._url = settings.url
        self._make_pool = make_pool
        self._pools: dict[Node, Pool] = {}
        self._slots: dict[int, Node] = {}
        self._lock = threading.Lock()

    def node_of(self, key: bytes | None) -> Node:
        if key is None:
            return self.nodes()[0]
        if not self._slots:
            self.refresh()
        slot = driver.key_slot(key)
        node = self._slots.get(slot)
        if node is None:
            raise SlotUnknown(f"slot {slot} has no master")
        return node

    def pool_of(self, node: Node) -> Pool:
        pool = self._pools.get(node)
        if pool is None:
            with self._lock:
                pool = self._pools.get(node) or self._make_pool(node)
                self._pools[node] = pool
        return pool

    def nodes(self) -> list[Node]:
        if not self._slots:
            self.refresh()
        with self._lock:
            return sorted(set(self._slots.values()))

    def pools(self) -> list[Pool]:
        return list(self._pools.values())

    def moved(self, slot: int, node: Node) -> None:
        with self._lock:
            self._slots[slot] = node

    def refresh(self) -> None:
        """Ask each server that is known, and those of the configuration, until one tells."""
        trouble: Exception | None = None
        with self._lock:
            asked = dict.fromkeys([*self._slots.values(), *self._seeds])
        for node in asked:
            try:
                slots = _slots(self._ask(node), node)
            except (driver.ConnectionError, driver.TimeoutError) as error:
                if isinstance(error, driver.AuthenticationError):
                    raise
                trouble = error
                continue
            except driver.ResponseError as error:
                if "cluster support disabled" not in str(error):
                    raise
                problem = "is no member of a cluster; leave out ?cluster=true"
                raise InvalidConfig(f"{self._url} {problem}") from None
            if slots:
                with self._lock:
                    self._slots = slots
                    gone = set(self._pools) - set(slots.values())
                    closing = [self._pools.pop(old) for old in gone]
                for pool in closing:
                    pool.renew()  # Calls on their way may finish; what is idle goes when it is dropped.
                return
        if not self._slots:
            raise trouble or SlotUnknown("no server of the cluster has slots")

    def _ask(self, node: Node) -> Any:
        pool = self.pool_of(node)
        connection = pool.take()
        try:
            connection.send_command("CLUSTER", "SLOTS")
            return connection.read_response()
        finally:
            pool.give(connection)

    def reset(self) -> None:
        self._lock = threading.Lock()
        for pool in self._pools.values():
            pool.reset()


def _slots(reply: Sequence[Any], asked: Node) -> dict[int, Node]:
    """Slot -> master. A server that does not know its own address leaves it empty."""
    found: dict[int, Node] = {}
    for first, last, master, *_ in reply:
        host = master[0].decode() if master[0] else asked[0]
        found |= dict.fromkeys(range(first, last + 1), (host, int(master[1])))
    return found
