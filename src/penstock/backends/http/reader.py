"""The bulk reader of a store behind a server: plans and partitions are the server's, rows come as Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, cast

import msgspec
import pyarrow
import pyarrow.ipc

from penstock.backends.bulk import BulkPartition, BulkPlan, BulkRequest, Damage, Snapshot, Span
from penstock.backends.http import place, wire
from penstock.backends.http.line import Answer, Gone
from penstock.backends.http.peer import ROOM_S, Patience, Peer, words
from penstock.backends.tables.requests import check_request
from penstock.clock import Clock
from penstock.codec.answer import decoder, encode_answer, to_error
from penstock.errors import InvalidMessage, StorageError
from penstock.keyring import KeyProvider

READER = "http"
#: How long a read goes on while the server cannot be reached: it may be started anew.
PATIENCE_S = 120.0
#: How long the next rows may take.
BATCH_WITHIN_S = 600.0

_decode_plan = decoder(wire.PlanAnswer)
_decode_nothing = decoder(None)
_decode_error = decoder(tuple[str, Any, dict[str, Any]]).decode


def open_reader(snapshot: Snapshot, keys: KeyProvider, clock: Clock) -> HttpReader:
    """Keys and time are the server's. That the snapshot is gone is told when it is planned or read."""
    return HttpReader(snapshot)


def release_snapshot(snapshot: Snapshot) -> None:
    with HttpReader(snapshot) as reader:
        reader.release()


class HttpReader:
    """`BulkReader` of a snapshot that a server has taken."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        url, _, self._text = snapshot.place.rpartition("#")
        self._peer: Peer | None = Peer(place.at(url))

    def plan(self, request: BulkRequest) -> BulkPlan:
        check_request(request)
        found: wire.PlanAnswer = self._asked("plan", (self._text, request), _decode_plan)
        partitions = tuple(
            BulkPartition(
                snapshot=self.snapshot,
                request=request,
                number=number,
                spans=(Span("", text.encode(), b"", rows),),
            )
            for number, (text, rows) in enumerate(found.partitions)
        )
        return BulkPlan(
            snapshot=self.snapshot,
            request=request,
            partitions=partitions,
            extents=found.extents,
            damage=found.damage,
        )

    def read(
        self, partition: BulkPartition, told: Callable[[Damage], None] | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        self._opened()
        if partition.snapshot.id != self.snapshot.id:
            raise InvalidMessage(
                f"the partition is of snapshot {partition.snapshot.id}, and {self.snapshot.id} is open"
            )
        return self._read(partition.spans[0].lower.decode(), told or (lambda damage: None))

    def _read(self, text: str, told: Callable[[Damage], None]) -> Iterator[pyarrow.RecordBatch]:
        """A snapshot does not change: where the connection broke, the rest is asked for."""
        peer, rows, heard, patience, room = self._opened(), 0, 0, Patience(PATIENCE_S), Patience(ROOM_S)
        while True:
            seen = 0
            try:
                for batch, damage in self._stream(peer, wire.ReadAsked(text, rows)):
                    patience = Patience(PATIENCE_S)
                    for one in damage:
                        seen += 1
                        if seen > heard:  # Else it was told before the connection broke.
                            heard = seen
                            told(one)
                    rows += batch.num_rows
                    yield batch
                return
            except _Again as again:
                peer.wait(
                    "a bulk read", patience if again.after_s is None else room, again.after_s, str(again)
                )

    def _stream(
        self, peer: Peer, asked: wire.ReadAsked
    ) -> Iterator[tuple[pyarrow.RecordBatch, list[Damage]]]:
        peer.check_usable()
        with peer.line() as line:
            try:
                answer = line.stream(f"{wire.PREFIX}read", encode_answer(asked), BATCH_WITHIN_S)
                if isinstance(answer, Answer):
                    if answer.retry_after_s is not None:
                        raise _Again(words(answer), answer.retry_after_s)
                    peer.understood("read", answer, _decode_nothing)
                    raise _Again("an answer without rows")
                rows = 0
                with line.reading():
                    reader = pyarrow.ipc.open_stream(cast(Any, answer))
                while True:
                    with line.reading():
                        batch, metadata = reader.read_next_batch_with_custom_metadata()
                    said = dict(metadata or {})
                    damage = wire.decode_told(said[wire.TOLD]) if wire.TOLD in said else []
                    if wire.FAILED in said:
                        raise to_error(_decode_error(said[wire.FAILED]))
                    rows += batch.num_rows
                    if batch.num_rows or damage:
                        yield batch, damage
                    if wire.ENDED in said:
                        if int(said[wire.ENDED]) != rows:
                            raise _Again("rows are missing from an answer")
                        answer.drain_conn()
                        line.done()
                        return
            except (StopIteration, pyarrow.ArrowException, Gone, msgspec.DecodeError) as error:
                raise _Again(f"an answer that is not whole: {error}") from error

    def renew(self) -> None:
        self._asked("renew", self._text, _decode_nothing)

    def release(self) -> None:
        peer = self._peer or Peer(place.at(self.snapshot.place.rpartition("#")[0]))
        try:
            peer.understood(
                "release",
                peer.ask("release", f"{wire.PREFIX}release", encode_answer(self._text)),
                _decode_nothing,
            )
        finally:
            peer.close()
            self._peer = None

    def close(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()

    def _asked(self, what: str, value: Any, of: msgspec.msgpack.Decoder[Any]) -> Any:
        peer = self._opened()
        answer = peer.ask(
            what, wire.PREFIX + what, encode_answer(value), timeout_s=BATCH_WITHIN_S, patience_s=PATIENCE_S
        )
        return peer.understood(what, answer, of)

    def _opened(self) -> Peer:
        if self._peer is None:
            raise StorageError(f"the reader of snapshot {self.snapshot.id} is closed; open another")
        return self._peer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Again(Exception):
    """The server sent less than all: it is asked again, after so long if it said so."""

    def __init__(self, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.after_s = after_s
