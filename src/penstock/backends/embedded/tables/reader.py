"""The bulk reader of an embedded store: opens a snapshot, plans requests, reads partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from penstock.backends.bulk import BulkPartition, BulkPlan, BulkRequest, Damage, Snapshot
from penstock.backends.embedded import snapshots
from penstock.backends.embedded.tables.bodies import read_bodies
from penstock.backends.embedded.tables.damage import Damages
from penstock.backends.embedded.tables.entries import read_entries
from penstock.backends.embedded.tables.events import read_events
from penstock.backends.embedded.tables.messages import read_messages
from penstock.backends.embedded.tables.planning import planned
from penstock.backends.embedded.tables.queues import read_queues
from penstock.backends.embedded.tables.view import View
from penstock.backends.tables.columns import Batch
from penstock.backends.tables.damage import Told, unheard
from penstock.backends.tables.requests import check_request
from penstock.clock import Clock, to_ns
from penstock.errors import InvalidMessage, StorageError
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


class EmbeddedReader:
    """`BulkReader` of a snapshot in a folder."""

    def __init__(self, snapshot: Snapshot, view: View, clock: Clock) -> None:
        self.snapshot = snapshot
        self._view: View | None = view
        self._clock = clock
        self._renewed_ns = clock.now_ns()

    def plan(self, request: BulkRequest) -> BulkPlan:
        return planned(self._opened(), self.snapshot, request)

    def read(self, partition: BulkPartition, told: Callable[[Damage], None] | None = None) -> Iterator[Batch]:
        view, request = self._opened(), partition.request
        if partition.snapshot.id != self.snapshot.id:
            raise InvalidMessage(
                f"the partition is of snapshot {partition.snapshot.id}, and {self.snapshot.id} is open"
            )
        check_request(request)
        told = None if request.on_damage == "fail" else (told or unheard)
        return self._renewing(_batches(view, partition, told))

    def _renewing(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """When half of its life has passed, a snapshot that is read from gets another."""
        half_ns = to_ns(self.snapshot.lifetime_s) // 2
        for batch in batches:
            yield batch
            if self._clock.now_ns() - self._renewed_ns >= half_ns:
                self.renew()

    def renew(self) -> None:
        self._renewed_ns = self._clock.now_ns()
        snapshots.renew(self.snapshot, self._clock)

    def release(self) -> None:
        self.close()
        snapshots.release(self.snapshot)

    def close(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.close()

    def _opened(self) -> View:
        if self._view is None:
            raise StorageError(f"the reader of snapshot {self.snapshot.id} is closed; open another")
        return self._view

    def __enter__(self) -> EmbeddedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _batches(view: View, partition: BulkPartition, told: Told | None) -> Iterator[Batch]:
    request = partition.request
    if request.table == "queues":
        yield from read_queues(view, request, partition.spans, told)
        return
    read, of_worlds = _READ[request.table], request.table == "entries"
    for span in partition.spans:
        number = view.world(span.name).number if of_worlds else view.queue(span.name).number
        damages = Damages("world" if of_worlds else "queue", span.name, told)
        yield from read(view, number, request, span, damages)
