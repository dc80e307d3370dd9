"""Bulk writes on Redis: tickets, commits that survive a crash, and what was done.

A commit is a record of the store first. From then on all of it comes: a script takes the next rows of a
chunk, makes messages of them and counts them, in one step, until the chunk is empty. How far a job is, its
chunks say: whoever takes part in it, now or after a crash, and how many, nothing comes twice.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from penstock.backends.bulk import UNNAMED, Staged, Target, Txn, WriteTicket, Written
from penstock.backends.redis.connecting import Arg
from penstock.backends.redis.engine import CHANGED, Engine, Known, QueueChanged
from penstock.backends.redis.records import decode_counters
from penstock.backends.redis.staging import WRITER, body_of, folder_of, rows_at_once
from penstock.backends.tables import jobs
from penstock.backends.unlocking import PLAIN
from penstock.codec.sealed import key_id_of
from penstock.errors import (
    BackendUnavailable,
    InvalidMessage,
    PenstockError,
    QueueNotFound,
    StorageCorrupt,
    StorageError,
)

log = logging.getLogger("penstock")

T = TypeVar("T")

#: What one script call takes in: it must not keep the server from others for long.
SLICE_ROWS, SLICE_BYTES = 500, 4 << 20
#: How long a job is left to whoever was at it last.
BUSY_MS = 5000
SLICES_AT_ONCE = 8
_VERSION, _TICKET, _IS_DONE, _REST = slice(0, 8), slice(8, 40), slice(40, 41), slice(41, None)


class Part(msgspec.Struct, array_like=True, frozen=True):
    """A chunk of a job whose commit has begun."""

    queue: str
    number: int
    name: str
    rows: int
    at_once: int
    order_us: int


class Job(msgspec.Struct, array_like=True, frozen=True):
    """What is committed."""

    parts: list[Part]
    rejected: int
    at_us: int
    key_id: str


class Done(msgspec.Struct, array_like=True, frozen=True):
    """What came of it."""

    enqueued: int
    existing: int
    rejected: int


_decode_job = msgspec.msgpack.Decoder(Job).decode
_decode_done = msgspec.msgpack.Decoder(Done).decode


class JobRow(msgspec.Struct, frozen=True):
    """What the store knows of an application's job for a queue."""

    version: int
    ticket: str
    is_done: bool
    rest: bytes


class Writing:
    """The bulk writes of one store."""

    def __init__(self, engine: Engine, place: str) -> None:
        self._engine = engine
        self._place = place

    # -- what callers ask for

    def begin(self, queue: str | None) -> WriteTicket:
        engine = self._engine
        at_us = engine.now_us()
        if queue is None:
            rows = engine.all_queues()
            queues = {name: engine.known(name, row) for name, row in rows.items()}
        else:
            queues = {queue: self._fresh(queue)}
        targets = {name: self._target(q, at_us, exact=queue is not None) for name, q in queues.items()}
        if queue is not None and targets[queue].refusal:
            raise InvalidMessage(targets[queue].refusal)
        active, row = engine.seals.active or "", engine.seals.row
        return WriteTicket(
            writer=WRITER,
            id=os.urandom(16).hex(),
            place=self._place,
            at_ns=at_us * 1000,
            queues=targets,
            queue=queue,
            key_id=active,
            verifier=row.verifiers.get(active, b"") if row is not None and active else b"",
        )

    def _fresh(self, queue: str) -> Known:
        known = self._engine.load(queue)
        if known is None:
            raise QueueNotFound(queue)
        return known

    def _target(self, q: Known, at_us: int, *, exact: bool) -> Target:
        order_us = at_us
        if exact:  # Of very many queues, each is not asked: their lines end now, unless the clock went back.
            raw = self._engine.server.command("GET", q.keys[0])
            order_us = at_us if raw is None else max(at_us, decode_counters(raw).order_us)
        return Target(
            number=q.number,
            order_ns=order_us * 1000,
            fifo=q.settings.fifo,
            compress_over_bytes=q.compress_over_bytes,
            refusal=jobs.script_refusal(q.name, q.settings.on_enqueue),
        )

    def commit(self, ticket: WriteTicket, txn: Txn, parts: Sequence[Staged]) -> Written:
        jobs.check_txn(txn)
        jobs.check_ticket(ticket)
        self._engine.check_process()
        written = self._commit(ticket, txn, parts)
        if written.again or written.superseded or written.by:
            self.abort(ticket, txn)  # What was staged for nothing.
        return written

    def _commit(self, ticket: WriteTicket, txn: Txn, parts: Sequence[Staged]) -> Written:
        job, again = _job_key(txn, jobs.queue_number(ticket)), True
        while True:
            known = self._known(job)
            if known is not None and known.is_done and known.version >= txn.version:
                return _answer(known, txn, ticket.id, again=again)
            if known is None or known.is_done:
                known = self._start(job, ticket, txn, parts)
            again = again and known.version != txn.version
            try:
                self._run(job, known)
            except (StorageError, BackendUnavailable) as error:
                raise _told(error, txn) from error

    def abort(self, ticket: WriteTicket, txn: Txn) -> None:
        jobs.check_txn(txn)
        jobs.check_ticket(ticket)
        known = self._known(_job_key(txn, jobs.queue_number(ticket)))
        if known is not None and not known.is_done and known.ticket == ticket.id:
            return
        for queue in ticket.queues:
            self._throw_away(queue, folder_of(ticket.id, txn.version))

    def _throw_away(self, queue: str, folder: str) -> None:
        engine = self._engine
        listed = engine.keys.staged(queue, f"{folder}:chunks")
        for name in engine.server.command("SMEMBERS", listed):
            engine.server.command("UNLINK", engine.keys.staged(queue, f"{folder}:{name.decode()}"))
        engine.server.command("DEL", listed)

    def resume(self) -> int:
        """Some slices of a job that nobody is at; 1 if there is one."""
        engine = self._engine
        for job in engine.server.command("SMEMBERS", engine.keys.jobs[2]):
            if not engine.server.command("SET", engine.keys.busy(job), b"", "NX", "PX", BUSY_MS):
                continue
            try:
                known = self._known(job)
                if known is None or known.is_done:
                    continue
                self._run(job, known, SLICES_AT_ONCE)
            except (StorageError, QueueNotFound) as error:
                log.error("bulk write %r is left alone for now: %s", job[4:].decode(errors="replace"), error)
                continue
            engine.server.command("DEL", engine.keys.busy(job))
            return 1
        return 0

    def finish_others(self) -> bool:
        """Some slices of what was begun under other keys than new values have; whether there was none.

        Its rows are sealed as they were staged: what rekeys the store must find all of them there.
        """
        for job in self._engine.server.command("SMEMBERS", self._engine.keys.jobs[2]):
            known = self._known(job)
            if known is not None and not known.is_done and self._is_of_others(known):
                self._run(job, known, SLICES_AT_ONCE)
                return False
        return True

    def _is_of_others(self, known: JobRow) -> bool:
        try:
            return _decoded(_decode_job, known.rest).key_id != (self._engine.seals.active or PLAIN)
        except StorageCorrupt:
            return False  # Nothing of it can come any more.

    def forget_others(self) -> None:
        """Staged rows that are sealed with another key, or none: no commit would take them any more."""
        engine, active = self._engine, self._engine.seals.active
        for page in engine.server.scan(engine.keys.all_staged):
            for key in page:
                if key.endswith((b":chunks", b":done")):
                    continue
                for row in engine.server.command("LRANGE", key, 0, 0):
                    if key_id_of(body_of(row)) != active:
                        engine.server.command("UNLINK", key)

    # -- jobs

    def _is_listed(self, key_id: str) -> bool:
        row = self._engine.seals.row
        return key_id == PLAIN if row is None else key_id in row.verifiers

    def _known(self, job: bytes) -> JobRow | None:
        raw = self._engine.server.command("HGET", self._engine.keys.jobs[0], job)
        return None if raw is None else _parsed(raw)

    def _call(
        self, what: str, job: bytes, version: int, ticket: str, rest: bytes, fence: bytes = b""
    ) -> bytes | None:
        """What is known of it already, b"" where it was done as asked; None where other keys count by now."""
        engine = self._engine
        kept_us = [round(seconds * 1_000_000) for seconds in (jobs.NAMED_KEPT_S, jobs.UNNAMED_KEPT_S)]
        args: list[Arg] = [
            what,
            job,
            version.to_bytes(8, "big"),
            ticket,
            rest,
            *kept_us,
            jobs.TXNS_KEPT,
            UNNAMED,
            fence,
        ]
        keys = [*engine.keys.jobs, engine.keys.store]
        reply = engine.server.run(engine.script("job"), keys, [*engine.head(), *args])
        return None if reply[0] == CHANGED else bytes(reply[2])

    def _start(self, job: bytes, ticket: WriteTicket, txn: Txn, parts: Sequence[Staged]) -> JobRow:
        """Write down that all of it comes. Whatever speaks against it is said before."""
        rest = msgspec.msgpack.encode(self._job(ticket, txn, parts))
        while True:
            # What rekeys the store finishes what was begun before: nothing else may begin under other keys.
            fence = self._fence(ticket)
            known = self._call("begin", job, txn.version, ticket.id, rest, fence)
            if known is not None:
                return _parsed(known) if known else JobRow(txn.version, ticket.id, False, rest)

    def _fence(self, ticket: WriteTicket) -> bytes:
        """The list of keys as it is now: new values are still sealed as those that were staged."""
        seals = self._engine.seals
        seals.look()
        fence = seals.fence
        if ticket.key_id != (seals.active or ""):
            raise StorageError(
                f"rows were staged under key {ticket.key_id!r}, but the store is now written with "
                f"{seals.active!r}: run the job again"
            )
        return fence

    def _job(self, ticket: WriteTicket, txn: Txn, parts: Sequence[Staged]) -> Job:
        engine = self._engine
        names = {target.number: name for name, target in ticket.queues.items()}
        made: list[Part] = []
        checked: set[int] = set()
        for chunk in jobs.in_order(parts):
            name = names.get(chunk.number)
            if name is None:
                raise InvalidMessage(f"staged chunk {chunk.name!r:.80} is of no queue of its ticket")
            if chunk.number not in checked:
                self._check_target(name, chunk.number)
                checked.add(chunk.number)
            key = engine.keys.staged(name, f"{folder_of(ticket.id, txn.version)}:{chunk.name}")
            found = int(engine.server.command("LLEN", key))
            if found != chunk.rows:
                raise StorageCorrupt(
                    f"staged chunk {chunk.name} of queue {name!r} has {found} rows, not {chunk.rows}: it was "
                    "aborted, or swept away; run the job again"
                )
            at_once = rows_at_once(chunk, SLICE_ROWS, SLICE_BYTES)
            order_us = max(ticket.at_ns, ticket.queues[name].order_ns) // 1000
            made.append(Part(name, chunk.number, chunk.name, chunk.rows, at_once, order_us))
        rejected = sum(part.rejected for part in parts)
        return Job(made, rejected, ticket.at_ns // 1000, ticket.key_id)

    def _check_target(self, name: str, number: int) -> None:
        q = self._engine.load(name)
        if q is None or q.number != number:
            raise QueueNotFound(name)
        if refusal := jobs.script_refusal(name, q.settings.on_enqueue):
            raise InvalidMessage(refusal)

    def _run(self, job: bytes, known: JobRow, slices: int | None = None) -> None:
        """Up to so many slices of a job that is under way, and its end."""
        engine, made = self._engine, _decoded(_decode_job, known.rest)
        folder = folder_of(known.ticket, known.version)
        for part in made.parts:
            engine.server.command("PERSIST", engine.keys.staged(part.queue, f"{folder}:{part.name}"))
        done = 0
        for part in made.parts:
            for _ in self._slices(part, made, folder):
                engine.server.command("SET", engine.keys.busy(job), b"", "PX", BUSY_MS)
                done += 1
                if slices is not None and done >= slices:
                    return
        self._finish(job, known, made, folder)

    def _slices(self, part: Part, made: Job, folder: str) -> Iterator[None]:
        """The rows of a chunk become messages, slice by slice."""
        engine = self._engine
        further = (
            engine.keys.staged(part.queue, f"{folder}:{part.name}"),
            engine.keys.staged(part.queue, f"{folder}:done"),
        )

        def act(q: Known) -> int:
            if q.number != part.number:
                raise QueueNotFound(part.queue)
            if not self._is_listed(made.key_id):
                raise StorageError(
                    f"rows were staged under key {made.key_id!r}, which the store has given up"
                )
            args = [*engine.head(), q.changed, part.at_once, made.at_us, part.order_us]
            reply = engine.server.run(engine.script("ingest"), (*q.keys, *further, *q.views), args)
            if reply[0] < 0:
                raise QueueChanged(q.name)
            return int(reply[2])

        try:
            while engine.with_queue(part.queue, act):
                yield
            yield
        except QueueNotFound:
            log.warning("queue %r was deleted while a bulk write came in: its rows are gone", part.queue)
            engine.server.command("UNLINK", *further)

    def _finish(self, job: bytes, known: JobRow, made: Job, folder: str) -> None:
        engine = self._engine
        enqueued = existing = 0
        expected: dict[str, int] = {}
        for part in made.parts:
            q = engine.load(part.queue)
            if q is not None and q.number == part.number:
                expected[part.queue] = expected.get(part.queue, 0) + part.rows
        for queue in expected:
            found = engine.server.command(
                "HMGET", engine.keys.staged(queue, f"{folder}:done"), "enqueued", "existing"
            )
            enqueued, existing = enqueued + int(found[0] or 0), existing + int(found[1] or 0)
        if enqueued + existing != sum(expected.values()):
            now = self._known(job)
            if now is None or now.is_done or now.ticket != known.ticket:
                return  # Somebody else was faster.
            log.error(
                "bulk write of ticket %s: of %d staged rows %d came; the server has lost the others",
                known.ticket,
                sum(expected.values()),
                enqueued + existing,
            )
        rest = msgspec.msgpack.encode(Done(enqueued, existing, made.rejected))
        self._call("end", job, known.version, known.ticket, rest)
        for queue in {part.queue for part in made.parts}:
            self._throw_away(queue, folder)
            engine.server.command("DEL", engine.keys.staged(queue, f"{folder}:done"))


def _decoded(decode: Callable[[bytes], T], raw: bytes) -> T:
    try:
        return decode(raw)
    except msgspec.DecodeError as error:
        raise StorageCorrupt(f"record of a bulk write does not decode: {error}") from error


def _job_key(txn: Txn, queue: int) -> bytes:
    return queue.to_bytes(4, "big") + txn.app.encode()


def _parsed(raw: bytes) -> JobRow:
    return JobRow(
        int.from_bytes(raw[_VERSION], "big"), raw[_TICKET].decode(), raw[_IS_DONE] == b"1", bytes(raw[_REST])
    )


def _answer(known: JobRow, txn: Txn, ticket: str, *, again: bool) -> Written:
    if known.version > txn.version:
        return Written(superseded=True)
    done = _decoded(_decode_done, known.rest)
    return Written(
        enqueued=done.enqueued,
        existing=done.existing,
        rejected=done.rejected,
        again=again,
        by="" if known.ticket == ticket else known.ticket,
    )


def _told(error: PenstockError, txn: Txn) -> PenstockError:
    """That it has failed after it has begun: whoever thinks it undone, and runs it anew, doubles it."""
    then = "run it again only under the same txnAppId and txnVersion, or its rows come twice"
    if txn.app.startswith(UNNAMED):
        then = "it has no txnAppId, so do not run it again: its rows would come twice"
    return type(error)(f"{error}; but the commit has begun, and the rest comes by itself: {then}")
