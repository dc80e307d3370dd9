"""The bulk reader of an embedded store: opens a snapshot, plans requests, reads partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.backends.bulk import BulkPartition, BulkPlan, BulkRequest, Snapshot
from penstock.backends.embedded import snapshots
from penstock.backends.embedded.tables.bodies import read_bodies
from penstock.backends.embedded.tables.damage import Damages
from penstock.backends.embedded.tables.entries import read_entries
from penstock.backends.embedded.tables.events import read_events
from penstock.backends.embedded.tables.messages import read_messages
from penstock.backends.embedded.tables.planning import planned
from penstock.backends.embedded.tables.queues import queue_row
from penstock.backends.embedded.tables.view import View
from penstock.backends.tables.columns import Batch
from penstock.backends.tables.damage import Told
from penstock.backends.tables.opened import SnapshotReader, read_queues
from penstock.clock import Clock
from penstock.keyring import KeyProvider

_READ: dict[str, Callable[..., Iterator[Batch]]] = {
    "messages": read_messages,
    "dead": read_messages,
    "bodies": read_bodies,
    "events": read_events,
    "entries": read_entries,
}


def open_reader(snapshot: Snapshot, keys: KeyProvider, clock: Clock) -> EmbeddedReader:
    """`KeyMissing` or `DecryptFailed`, where the store is encrypted and `keys` has not its keys."""
    snapshots.renew(snapshot, clock)  # Before it is opened: it says what is wrong with one that is gone.
    snapshots.check_moment(snapshot)
    return EmbeddedReader(snapshot, View(snapshot, keys), clock)


release_snapshot = snapshots.release


class EmbeddedReader(SnapshotReader[View]):
    """`BulkReader` of a snapshot in a folder."""

    def plan(self, request: BulkRequest) -> BulkPlan:
        return planned(self.opened(), self.snapshot, request)

    def batches(self, view: View, partition: BulkPartition, told: Told | None) -> Iterator[Batch]:
        request = partition.request
        if request.table == "queues":
            yield from read_queues(lambda name: queue_row(view.queue(name)), request, partition.spans, told)
            return
        read, of_worlds = _READ[request.table], request.table == "entries"
        for span in partition.spans:
            number = view.world(span.name).number if of_worlds else view.queue(span.name).number
            damages = Damages("world" if of_worlds else "queue", span.name, told)
            yield from read(view, number, request, span, damages)

    def keep(self) -> None:
        snapshots.renew(self.snapshot, self._clock)

    def release(self) -> None:
        self.close()
        snapshots.release(self.snapshot)
