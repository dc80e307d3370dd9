"""What every bulk reader does with an open snapshot: refuses others, renews it while reading, lets it go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from penstock.backends.bulk import BATCH_ROWS, BulkPartition, BulkRequest, Damage, Snapshot, Span
from penstock.backends.tables.columns import Batch, pa
from penstock.backends.tables.damage import Damages, Told, unheard
from penstock.backends.tables.requests import check_request
from penstock.clock import Clock, to_ns
from penstock.errors import InvalidMessage, StorageCorrupt, StorageError
from penstock.tables import arrow_schema


class Closable(Protocol):
    """A view of a snapshot, which holds something open."""

    def close(self) -> None: ...


V = TypeVar("V", bound=Closable)


class SnapshotReader(ABC, Generic[V]):
    """`BulkReader` over a view of a snapshot, but for `plan` and `release`."""

    def __init__(self, snapshot: Snapshot, view: V, clock: Clock) -> None:
        self.snapshot = snapshot
        self._view: V | None = view
        self._clock = clock
        self._renewed_ns = clock.now_ns()

    @abstractmethod
    def batches(self, view: V, partition: BulkPartition, told: Told | None) -> Iterator[Batch]:
        """The rows of a partition; damage fails the read where nobody is told."""

    @abstractmethod
    def keep(self) -> None:
        """Have the snapshot kept for another lifetime from now."""

    def read(self, partition: BulkPartition, told: Callable[[Damage], None] | None = None) -> Iterator[Batch]:
        view, request = self.opened(), partition.request
        if partition.snapshot.id != self.snapshot.id:
            raise InvalidMessage(
                f"the partition is of snapshot {partition.snapshot.id}, and {self.snapshot.id} is open"
            )
        check_request(request)
        told = None if request.on_damage == "fail" else (told or unheard)
        return self._renewing(self.batches(view, partition, told))

    def _renewing(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """When half of its life has passed, a snapshot that is read from gets another."""
        half_ns = to_ns(self.snapshot.lifetime_s) // 2
        for batch in batches:
            yield batch
            if self._clock.now_ns() - self._renewed_ns >= half_ns:
                self.renew()

    def renew(self) -> None:
        self._renewed_ns = self._clock.now_ns()
        self.keep()

    def close(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.close()

    def opened(self) -> V:
        if self._view is None:
            raise StorageError(f"the reader of snapshot {self.snapshot.id} is closed; open another")
        return self._view

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_queues(
    row_of: Callable[[str], dict[str, Any]], request: BulkRequest, spans: tuple[Span, ...], told: Told | None
) -> Iterator[Batch]:
    """The table `queues`: one row each, by name."""
    schema = arrow_schema("queues", request.columns)
    for start in range(0, len(spans), BATCH_ROWS):
        rows = []
        for span in spans[start : start + BATCH_ROWS]:
            try:
                rows.append(row_of(span.name))
            except StorageCorrupt as error:
                Damages("queue", span.name, told).found("its own row", error)
        yield pa.RecordBatch.from_pylist(rows, schema=schema)
