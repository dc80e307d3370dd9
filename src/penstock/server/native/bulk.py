"""Bulk reads and writes for clients: the server reads and stages; clients hold texts of it, see `tickets`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.backends.bulk import BulkPartition, BulkRequest, Snapshot, Staged, Txn, WriteTicket, Written
from penstock.backends.forwarding.methods import Unreadable
from penstock.backends.http import wire
from penstock.backends.registry import release_snapshot
from penstock.backends.tables import jobs
from penstock.clock import to_ns
from penstock.codec.answer import decoder, encode_answer
from penstock.errors import (
    BackendNotInstalled,
    BackendUnavailable,
    InvalidMessage,
    PenstockError,
    Unauthorized,
)
from penstock.penstock import Penstock
from penstock.server.access import STORE, Principal
from penstock.server.endpoint import Busy, Calls, Request, Response
from penstock.server.native.answers import CONTENT_TYPE
from penstock.server.native.tickets import Part, Tickets

if TYPE_CHECKING:
    from penstock.server.native.arrow import Reading

T = TypeVar("T")

#: What the name of a snapshot's reader and a ticket's writer is for clients.
NAME = "http"
#: Readers by which a partition is the same rows in the same order each time: a read goes on where it broke.
#: On Redis, bodies may have gone since.
UNCHANGING = ("rocksdb",)
#: How long a stream that is under way waits for its turn.
TURN_EVERY_S = 0.05

_decode_plan = decoder(tuple[str, BulkRequest]).decode
_decode_read = decoder(wire.ReadAsked).decode
_decode_text = decoder(str).decode


class Bulk:
    """Answers what bulk readers and writers ask for, on one event loop."""

    def __init__(self, ps: Penstock, calls: Calls, max_streams: int) -> None:
        self._ps = ps
        self._calls = calls
        self._max_streams = max_streams
        self._streams = 0
        self._tickets = Tickets(ps)
        self._answers: dict[str, Callable[[Principal, Request], Awaitable[Response]]] = {
            "plan": self._plain(self._plan),
            "renew": self._plain(self._renew),
            "release": self._plain(self._release),
            "read": self._read,
            "stage": self._stage,
        }

    # -- requests -----------------------------------------------------------------------------------

    async def answer(self, request: Request, who: Principal) -> Response | None:
        """None: there is no such thing."""
        name = request.path.removeprefix(wire.PREFIX)
        answer = self._answers.get(name)
        if answer is None:
            return None
        request.about.operation = name
        return await answer(who, request)

    def _plain(
        self, function: Callable[[Principal, bytes], object]
    ) -> Callable[[Principal, Request], Awaitable[Response]]:
        async def answer(who: Principal, request: Request) -> Response:
            return _answered(await self._calls.run(function, who, request.body))

        return answer

    async def _read(self, who: Principal, request: Request) -> Response:
        self._enter()
        pieces = Pieces(self._calls, self._leave, request.listening)
        try:
            await pieces.open(lambda: self._reading(who, request.body))
        except BaseException:
            await pieces.aclose()
            raise
        return Response(200, pieces, wire.ARROW)

    async def _stage(self, who: Principal, request: Request) -> Response:
        self._enter()
        try:
            return _answered(await self._calls.run(self._staged, who, request.body))
        finally:
            self._leave()

    def _enter(self) -> None:
        if self._streams >= self._max_streams:
            raise Busy(503, f"{self._max_streams} bulk reads and writes are under way; try again later")
        self._streams += 1

    def _leave(self) -> None:
        self._streams -= 1

    # -- in a thread: reading -----------------------------------------------------------------------

    def take_snapshot(self, who: Principal, lifetime_s: float, chosen: str | None) -> Snapshot:
        _check_reads_some(who)
        taken = self._ps.take_snapshot(lifetime_s=lifetime_s, id=chosen)
        return msgspec.structs.replace(taken, reader=NAME, place=self._tickets.seal(taken))

    def _plan(self, who: Principal, body: bytes) -> wire.PlanAnswer:
        text, request = _decoded(_decode_plan, body)
        snapshot = self._tickets.open(Snapshot, text)
        _check_read(who, request)
        with self._ps.open_reader(snapshot) as reader:
            plan = reader.plan(request)
        return wire.PlanAnswer(
            tuple((self._tickets.seal(one), sum(span.rows for span in one.spans)) for one in plan.partitions),
            plan.extents,
            plan.damage,
        )

    def _reading(self, who: Principal, body: bytes) -> Reading:
        try:
            from penstock.server.native.arrow import Reading
        except ImportError as error:
            raise BackendNotInstalled("pyarrow", "spark") from error
        asked = _decoded(_decode_read, body)
        partition = self._tickets.open(BulkPartition, asked.partition)
        _check_read(who, partition.request)
        if asked.after_rows < 0:
            raise InvalidMessage(f"after_rows is {asked.after_rows}; accepted: 0 and more")
        if asked.after_rows and partition.snapshot.reader not in UNCHANGING:
            raise BackendUnavailable("the connection broke in the middle of a partition; read it anew")
        reader = self._ps.open_reader(partition.snapshot)
        try:
            return Reading(reader, partition, asked.after_rows)
        except BaseException:
            reader.close()
            raise

    def _renew(self, who: Principal, body: bytes) -> None:
        _check_reads_some(who)
        snapshot = self._tickets.open(Snapshot, _decoded(_decode_text, body))
        with self._ps.open_reader(snapshot) as reader:
            reader.renew()

    def _release(self, who: Principal, body: bytes) -> None:
        _check_reads_some(who)
        release_snapshot(self._tickets.open(Snapshot, _decoded(_decode_text, body)))

    # -- in a thread: writing -----------------------------------------------------------------------

    def begin_write(self, queue: str | None) -> WriteTicket:
        ticket = self._ps.begin_write(queue)
        return WriteTicket(
            writer=NAME,
            id=ticket.id,
            place=self._tickets.seal(ticket),
            at_ns=ticket.at_ns,
            queues={},
            queue=ticket.queue,
        )

    def _staged(self, who: Principal, body: bytes) -> wire.StageAnswer:
        try:
            from penstock.server.native.arrow import staged_rows
        except ImportError as error:
            raise BackendNotInstalled("pyarrow", "spark") from error
        asked, batches = staged_rows(body)
        ticket = self._ticket(who, asked.ticket, asked.at_ns)
        refused: dict[int, str] = {}

        def set_aside(rows: Any) -> None:
            places = (row - asked.first_row for row in rows["row"].to_pylist())
            refused.update(zip(places, rows["reason"].to_pylist(), strict=True))

        with self._ps.open_writer(ticket) as writer:
            staged = writer.stage(asked.txn, asked.partition, batches, set_aside, asked.first_row)
        part = Part(ticket.id, asked.txn, asked.first_row, asked.rows, staged)
        return wire.StageAnswer(self._tickets.seal(part), staged.rows, refused)

    def commit_write(self, who: Principal, given: WriteTicket, txn: Txn, staged: Sequence[Staged]) -> Written:
        ticket = self._ticket(who, wire.text_of(given.place), given.at_ns)
        return self._ps.commit_write(ticket, txn, [self._joined(ticket, txn, one) for one in staged])

    def abort_write(self, who: Principal, given: WriteTicket, txn: Txn) -> None:
        self._ps.abort_write(self._ticket(who, wire.text_of(given.place), given.at_ns), txn)

    def _ticket(self, who: Principal, text: str, at_ns: int) -> WriteTicket:
        """As it was given, from when its job began; what was staged for it is kept no longer than a day."""
        ticket = self._tickets.open(WriteTicket, text)
        where = STORE if ticket.queue is None else ticket.queue
        if not who.may("enqueue", where):
            raise Unauthorized(
                f"a bulk write needs the permission 'enqueue' on {where or '*'!r}, which this key lacks"
            )
        now_ns = self._ps.clock.now_ns()
        began_ns = max(ticket.at_ns, min(at_ns, now_ns))
        if now_ns - began_ns > to_ns(jobs.STAGED_KEPT_S):
            raise InvalidMessage(
                f"ticket {ticket.id} has expired: its job began more than {jobs.STAGED_KEPT_S:.0f} s ago; "
                "run the job again"
            )
        return msgspec.structs.replace(ticket, at_ns=began_ns)

    def _joined(self, ticket: WriteTicket, txn: Txn, given: Staged) -> Staged:
        """What was staged of a partition: all of its rows, each once, whatever else was staged of it."""
        parts = sorted(
            (self._tickets.open(Part, chunk.name) for chunk in given.chunks), key=lambda part: part.first_row
        )
        next_row = 0
        for part in parts:
            if (part.ticket, part.txn, part.staged.partition) != (ticket.id, txn, given.partition):
                raise InvalidMessage(
                    f"a part of partition {given.partition} was staged for another job: run the job again"
                )
            if part.first_row != next_row:
                raise InvalidMessage(
                    f"partition {given.partition} has a part that starts with row {part.first_row} where row "
                    f"{next_row} is next: commit each part once, all of them; or run the job again"
                )
            next_row += part.rows
        none = Staged(partition=given.partition, rows=0, chunks=())
        return jobs.joined([none, *(part.staged for part in parts)])


class Pieces:
    """The body of an answer that is read while it is sent. Whatever happens, it is closed once."""

    def __init__(self, calls: Calls, left: Callable[[], None], listening: Callable[[], bool]) -> None:
        self._calls = calls
        self._listening = listening
        self._left: Callable[[], None] | None = left
        self._reading: Reading | None = None
        self._first: bytes | None = None

    async def open(self, reading: Callable[[], Reading]) -> None:
        """The first piece is made before the answer begins: what is wrong from the start has a status."""

        def begin() -> tuple[Reading, bytes | None]:
            opened = reading()
            try:
                return opened, opened.piece()
            except BaseException:
                opened.close()
                raise

        self._reading, self._first = await self._calls.run(begin)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        assert self._reading is not None
        piece, self._first = self._first, None
        if not self._listening():
            raise StopAsyncIteration  # Without the batch that says that it is whole.
        if piece is None:
            piece = await self._turn(self._reading.piece)
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        left, self._left = self._left, None
        if left is None:
            return
        left()
        if self._reading is not None:
            with suppress(RuntimeError, PenstockError):  # The server's threads have ended before it.
                await self._turn(self._reading.close)

    async def _turn(self, function: Callable[[], T]) -> T:
        """What has begun is not refused for want of room: it waits."""
        while True:
            try:
                return await self._calls.run(function)
            except Busy:
                await asyncio.sleep(TURN_EVERY_S)


def _check_reads_some(who: Principal) -> None:
    """A snapshot is of all queues: what is read of it is looked at when it is planned and read."""
    if not any({"read", "admin"} & granted for granted in who.grants.values()):
        raise Unauthorized("a snapshot needs the permission 'read' on some queue, which this key lacks")


def _check_read(who: Principal, request: BulkRequest) -> None:
    """On each queue that is named; where a pattern names them, or worlds are read, on all."""
    named = request.names if request.table != "entries" else None
    for queue in (STORE,) if named is None else named:
        if not who.may("read", queue):
            where = f"on queue {queue!r}" if queue != STORE else "on all queues ('*'); or name the queues"
            raise Unauthorized(f"a bulk read needs the permission 'read' {where}, which this key lacks")


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Unreadable(f"a request that cannot be read: {error}") from None


def _answered(value: object) -> Response:
    return Response(200, encode_answer(value), CONTENT_TYPE)
