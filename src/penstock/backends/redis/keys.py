"""Key layout on Redis; nothing else builds keys.

All keys of a queue share a hash tag, so that one script may touch them on a cluster. docs/formats.md says
what each of them holds.
"""

from __future__ import annotations

import re

#: Of the layout: part of every key.
LAYOUT = b"1"

#: Of a queue, in the order in which scripts expect them.
OF_QUEUE = (
    *(b"c", b"m", b"s", b"z", b"o", b"d", b"l", b"g", b"y", b"t", b"u", b"p", b"h", b"j"),
    *(b"b", b"k", b"a", b"w", b"x", b"i", b"v", b"n", b"e", b"q"),
    *(b"f%d" % level for level in range(10)),
)
COUNTERS, BODIES, STATES, JOURNAL, CURSORS, DEPARTURES, ARRIVALS = 0, 1, 2, 13, 17, 20, 21

_UNSAFE = re.compile(rb"[^A-Za-z0-9._-]")


def escaped(name: str) -> bytes:
    """A name in characters that mean nothing to Redis: no two names become the same."""
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], name.encode())


class Keys:
    """The keys of one store: whatever shares its prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode() + b"ps" + LAYOUT + b":"
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

    def queue(self, name: str) -> tuple[bytes, ...]:
        start = self._prefix + b"{" + escaped(name) + b"}:"
        return tuple(start + part for part in OF_QUEUE)

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

    def world(self, name: str) -> bytes:
        """The frames of a world."""
        return self._own + b"world:" + escaped(name)

    def journal_copy(self, name: str) -> bytes:
        """The journal of a queue while it is sealed anew."""
        return self._prefix + b"{" + escaped(name) + b"}:r"

    def world_copy(self, name: str) -> bytes:
        """The frames of a world while they are sealed anew."""
        return self._own + b"copy:" + escaped(name)
