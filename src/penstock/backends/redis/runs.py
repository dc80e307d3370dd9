"""Which runs of its servers hold a store, and what each of them has.

A place in a hash is of the process that gave it, and a replica may lack the last: what goes by places begins
anew where these are others.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.backends.redis import driver
from penstock.backends.redis.connecting import Server
from penstock.backends.redis.profiles import parse_info
from penstock.backends.redis.topology import Node
from penstock.errors import StorageError, Unauthorized

#: A slot that a server gives away, or is given.
_MOVING = re.compile(r"\[(\d+)-[<>]-")
_PAUSE_S = 0.05


class Runs(msgspec.Struct, frozen=True):
    """Those of one moment."""

    #: Run ids.
    ids: dict[Node, str] = {}
    #: Of a cluster: which slots each server has, and since when.
    slots: list[str] = []

    @property
    def text(self) -> str:
        """The same text for the same runs: a single server's is its run id."""
        if not self.slots:
            return "".join(self.ids.values())
        return hashlib.sha1(repr(self).encode(), usedforsecurity=False).hexdigest()

    @property
    def is_moving(self) -> bool:
        """Whether slots are on their way from one server to another."""
        return any(map(_MOVING.search, self.slots))

    def moves(self, key: bytes) -> bool:
        """Whether the slot of a key is on its way."""
        slot = driver.key_slot(key) if self.slots else -1
        return any(int(found) == slot for one in self.slots for found in _MOVING.findall(one))


def runs_of(server: Server) -> Runs:
    """As they are now; `Unauthorized` where a user may not ask."""
    ids = {node: parse_info(one).get("run_id", "") for node, one in server.told("INFO", "server").items()}
    if not server.settings.cluster:
        return Runs(ids)
    return Runs(ids, [_own_line(said) for said in server.told("CLUSTER", "NODES").values()])


def runs_if_told(server: Server) -> Runs:
    """The same; nothing where a user may not ask."""
    try:
        return runs_of(server)
    except Unauthorized:
        return Runs()


def settled_runs(server: Server, key: bytes, closed: threading.Event) -> Runs:
    """The same, once the slot of a key is not on its way from one server to another."""
    while (runs := runs_if_told(server)).moves(key):
        if closed.wait(_PAUSE_S):
            raise StorageError("the store is closed; open it again")
    return runs


def _own_line(said: Any) -> str:
    """What a server says of itself: id, flags, epoch, slots, and those that move."""
    for fields in _lines(said):
        if "myself" in fields[2]:
            return " ".join((fields[0], fields[2], fields[6], *fields[8:]))
    return ""


def _lines(said: Any) -> Iterator[list[str]]:
    text = said.decode(errors="replace") if isinstance(said, bytes) else ""
    return (fields for line in text.splitlines() if len(fields := line.split(" ")) >= 8)
