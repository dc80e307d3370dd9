"""Consumer groups of queues on streams."""

from __future__ import annotations

import msgspec

from penstock.backends.redis.catalogue import Catalogue
from penstock.backends.redis.engine import Engine, GroupRow, Known, QueueRow

DEFAULT = "default"


class Groups:
    """The consumer groups of one store's queues."""

    def __init__(self, engine: Engine, catalogue: Catalogue) -> None:
        self._engine = engine
        self._catalogue = catalogue

    def usual(self, queue: str) -> str:
        """The group of those who name none."""
        own = self._engine.server.settings.queues.get(queue)
        return own.consumer_group if own is not None and own.consumer_group else DEFAULT

    def take_line(self, q: Known) -> None:
        """Whoever leases first has the queue's own line."""

        def revised(row: QueueRow) -> QueueRow | None:
            if row.groups:
                return None
            return msgspec.structs.replace(row, groups=(GroupRow(self.usual(q.name), row.number),))

        self._catalogue.revise(q.name, revised)
