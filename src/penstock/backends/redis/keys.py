"""Key layout on Redis; nothing else builds keys.

All keys of a queue share a hash tag, so that one script may touch them on a cluster. docs/formats.md says
what each of them holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from penstock.redis_settings import RedisSettings

#: Of the layout, by where bodies are: part of every key. Stores of both kinds may share a prefix.
LAYOUTS = {"hash": b"ps1:", "stream": b"pss1:"}

#: Of a queue, in the order in which scripts expect them.
OF_QUEUE = (
    *(b"c", b"m", b"s", b"z", b"o", b"d", b"l", b"g", b"y", b"t", b"u", b"p", b"h", b"j"),
    *(b"b", b"k", b"a", b"w", b"x", b"i", b"v", b"n", b"e", b"q"),
    *(b"f%d" % level for level in range(10)),
)
#: Of a queue on a stream: who holds entries that several groups have, and what a new group was given.
OF_STREAM = (*OF_QUEUE, b"r", b"given")
#: What all groups of a queue share.
_SHARED = frozenset((b"m", b"u", b"p", b"r"))
COUNTERS, BODIES, STATES, JOURNAL, CURSORS, DEPARTURES, ARRIVALS = 0, 1, 2, 13, 17, 20, 21

_UNSAFE = re.compile(rb"[^A-Za-z0-9._-]")


def escaped(name: str) -> bytes:
    """A name in characters that mean nothing to Redis: no two names become the same."""
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], name.encode())


def _literally(key: bytes) -> bytes:
    """A pattern that this alone matches."""
    return re.sub(rb"([][*?\\])", rb"\\\1", key)


class Keys:
    """The keys of one store: whatever shares its prefix."""

    def __init__(
        self, prefix: str, store: str = "hash", stream_names: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.store_kind = store
        #: Queues whose streams were given names.
        self._stream_names = stream_names
        self._prefix = prefix.encode() + LAYOUTS[store]
        # A tag that no name is escaped to.
        own = self._prefix + b"{~}:"
        #: Settings of queues by name.
        self.queues = own + b"queues"
        #: Numbers of the store itself: format, openings, changes of the catalogue.
        self.store = own + b"store"
        #: Worlds by name, and where each entry is.
        self.worlds = own + b"worlds"
        self.entries = own + b"entries"
        self.state = own + b"state"
        self.quarantine = own + b"quarantine"
        #: Of a cluster: changes of queues that are decided, until they are made.
        self.plan = own + b"plan"
        #: Who keeps house, for a moment, and who seals anew.
        self.sweeper = own + b"sweeper"
        self.rekeyer = own + b"rekeyer"
        #: Snapshots by id; jobs of bulk writes, when they were done, and which are under way.
        self.snapshots = own + b"snapshots"
        self.jobs = (own + b"jobs", own + b"jobs:times", own + b"jobs:open")
        self._own = own

    def queue(self, name: str, group: str = "") -> tuple[bytes, ...]:
        """Of a queue's own line, or of the line that a further group has."""
        start = self._prefix + b"{" + escaped(name) + b"}:"
        if self.store_kind == "hash":
            return tuple(start + part for part in OF_QUEUE)
        named = self._stream_names.get(name)
        stream = b"m" if named is None else b"stream:" + escaped(named)
        own = b"g:" + escaped(group) + b":" if group else b""
        return tuple(
            start + (stream if part == b"m" else part if part in _SHARED else own + part)
            for part in OF_STREAM
        )

    def further_lines(self, name: str) -> bytes:
        """What the counters of all lines of a queue's further groups are like, for SCAN."""
        return _literally(self._prefix + b"{" + escaped(name) + b"}:g:") + b"*:c"

    def group_of(self, name: str, counters: bytes) -> str:
        """The group whose counters have this key."""
        start = self._prefix + b"{" + escaped(name) + b"}:g:"
        raw = counters.removeprefix(start).removesuffix(b":c")
        return re.sub(rb"%([0-9A-F]{2})", lambda found: bytes((int(found[1], 16),)), raw).decode()

    def stream_name(self, queue: str) -> str:
        return self._stream_names.get(queue, "")

    def deleted(self, name: str, number: int) -> tuple[bytes, ...]:
        """Those of a deleted queue that a snapshot shows."""
        return tuple(key + b":%d" % number for key in self.queue(name))

    def snapshot(self, snapshot_id: str) -> bytes:
        """What a snapshot is of."""
        return self._own + b"snapshot:" + snapshot_id.encode()

    def busy(self, job: bytes) -> bytes:
        """That somebody is at a job, for a moment."""
        return self._own + b"busy:" + job

    def staged(self, queue: str, name: str) -> bytes:
        """Rows of a bulk write, or what is known of them."""
        return self._prefix + b"{" + escaped(queue) + b"}:write:" + name.encode()

    @property
    def all_staged(self) -> bytes:
        """What the rows of all bulk writes, and what is known of them, are like, for SCAN."""
        return _literally(self._prefix) + b"{*}:write:*"

    def world(self, name: str) -> bytes:
        """The frames of a world."""
        return self._own + b"world:" + escaped(name)

    def journal_copy(self, name: str) -> bytes:
        """The journal of a queue, or of a line of it, while it is sealed anew."""
        queue, _, group = name.partition("\0")
        return self._prefix + b"{" + escaped(queue) + b"}:copy:" + escaped(group)

    def world_copy(self, name: str) -> bytes:
        """The frames of a world while they are sealed anew."""
        return self._own + b"copy:" + escaped(name)


def keys_of(settings: RedisSettings) -> Keys:
    """The keys of the store that these settings lead to."""
    names = {queue: own.stream_name for queue, own in settings.queues.items() if own.stream_name}
    return Keys(settings.key_prefix, "stream" if settings.kind == "streams" else "hash", names)
