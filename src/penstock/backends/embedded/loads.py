"""Bulk writes: tickets, commits that survive a crash, and the clearing away of what nobody commits."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.backends.bulk import UNNAMED, Chunk, Staged, Target, Txn, WriteTicket, Written
from penstock.backends.embedded import load_rows, staged
from penstock.backends.embedded.encryption import read_keys
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.enqueue import Enqueuer
from penstock.backends.embedded.load_rows import LoadProgress, LoadRow
from penstock.backends.embedded.numbers import next_number
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.slices import Load, Slices, active_key
from penstock.backends.tables import jobs
from penstock.backends.tables.jobs import STAGED_KEPT_S as STAGED_KEPT_S
from penstock.clock import to_ns
from penstock.errors import (
    InvalidMessage,
    PenstockError,
    QueueNotFound,
    StorageCorrupt,
    StorageError,
    Unsupported,
    is_of_the_store,
)
from penstock.kv.base import Store
from penstock.kv.rocksdb import RocksStore

log = logging.getLogger("penstock")

#: How often someone looks for that, and for jobs that need not be known any longer.
CLEAR_EVERY_S = 600.0
LOOK_EVERY_S = 0.01
BETWEEN_SLICES_S = 0.001
#: What one turn of the upkeep does of a job.
SLICES_AT_ONCE = 8


#: What the name of a folder ends in that is being removed.
_GOING = ".going"


class Loads:
    """The bulk writes of one store."""

    def __init__(self, engine: Engine, enqueuer: Enqueuer, kv: Store, path: str | None) -> None:
        self._engine = engine
        self._slices = Slices(engine, enqueuer)
        self._path = path
        #: How tables are made; None for a store that takes none.
        self._mode = kv.mode if isinstance(kv, RocksStore) else None
        self._running: set[int] = set()
        self._given_up: dict[int, str] = {}
        self._clear_at_ns = 0

    @property
    def given_up(self) -> list[str]:
        return list(self._given_up.values())

    def _staging(self) -> Path:
        if self._path is None or self._mode is None:
            raise Unsupported("a bulk write", "bulk_write", "the store in memory", ("rocksdb",))
        return staged.staging(self._path)

    # -- what callers ask for -----------------------------------------------------------------------

    def begin(self, queue: str | None) -> WriteTicket:
        self._staging()
        engine, key_id = self._engine, active_key(self._engine)
        with engine.lock:
            engine.check_usable()
            wanted = list(engine.queues.values()) if queue is None else [engine.queue(queue)]
            at_ns = engine.clock.now_ns()
            targets = {q.name: self._target(q, at_ns) for q in wanted}
            listed = read_keys(engine.kv)
        if queue is not None and targets[queue].refusal:
            raise InvalidMessage(targets[queue].refusal)
        return WriteTicket(
            writer="rocksdb",
            id=os.urandom(16).hex(),
            place=os.path.realpath(self._path or ""),
            at_ns=at_ns,
            queues=targets,
            queue=queue,
            mode=self._mode or "",
            key_id=key_id,
            verifier=listed.verifiers[key_id] if listed is not None and key_id else b"",
        )

    def _target(self, q: QueueState, at_ns: int) -> Target:
        loaded = self._engine.sound_queue(q.qid)
        return Target(
            number=q.qid,
            order_ns=at_ns if loaded is None else loaded.next_order_ns(at_ns),
            fifo=q.settings.fifo,
            compress_over_bytes=q.settings.compress_over_bytes,
            refusal=jobs.script_refusal(q.name, q.settings.on_enqueue)
            if loaded is not None
            else f"queue {q.name!r} is damaged; run check with repair",
        )

    def commit(self, ticket: WriteTicket, txn: Txn, parts: Sequence[Staged]) -> Written:
        jobs.check_txn(txn)
        written = self._commit(ticket, txn, parts)
        if written.again or written.superseded:
            self.abort(ticket, txn)  # What was staged for nothing.
        return self._engine.durably(lambda: written)

    def _commit(self, ticket: WriteTicket, txn: Txn, parts: Sequence[Staged]) -> Written:
        engine, first = self._engine, True
        queue, folder = jobs.queue_number(ticket), staged.folder_of(ticket, txn)
        while True:
            with engine.lock:
                engine.check_usable()
                if (known := load_rows.answered(engine, txn, queue, ticket.id)) is not None:
                    return known if first or known.superseded else _as_first(known)
                job = self._under_way(txn, queue)
            first = False
            number = self._start(ticket, txn, parts) if job is None else job[0]
            if number is None or not self._claim(number):
                threading.Event().wait(LOOK_EVERY_S)  # Another thread is at it.
                continue
            try:
                self._run(number)
            except (StorageError, InvalidMessage) as error:
                if not isinstance(error, StorageCorrupt) or job is None or job[1] == folder:
                    raise self._told(number, txn, error) from error
                self._stage_anew(number, ticket, txn, parts)

    def _told(self, number: int, txn: Txn, error: PenstockError) -> PenstockError:
        """That it has failed after it has begun: whoever thinks it undone, and runs it anew, doubles it."""
        with self._engine.lock:
            if self._engine.stopped is None and not load_rows.is_under_way(self._engine, number):
                return error
        rest = "the rest comes by itself"
        if number in self._given_up:
            rest = "the rest comes when the same job is run again"
        then = "run it again only under the same txnAppId and txnVersion, or its rows come twice"
        if txn.app.startswith(UNNAMED):
            then = "it has no txnAppId, so do not run it again: its rows would come twice"
        return type(error)(f"{error}; but the commit has begun, and {rest}: {then}")

    def abort(self, ticket: WriteTicket, txn: Txn) -> None:
        jobs.check_txn(txn)
        self._throw_away(self._staging() / staged.folder_of(ticket, txn))

    def _under_way(self, txn: Txn, queue: int) -> tuple[int, str] | None:
        """Number and folder of a job, if its commit has begun."""
        for number, raw in load_rows.loads(self._engine):
            try:
                row = load_rows.decode_load(raw)
                if (row.txn, row.queue) == (txn, queue):
                    return number, row.folder
            except StorageCorrupt:
                continue  # The upkeep tells of it.
        return None

    def _start(self, ticket: WriteTicket, txn: Txn, parts: Sequence[Staged]) -> int | None:
        """Write down that all of it comes; None if another has meanwhile.

        Whatever speaks against it is said before.
        """
        row = self._row(ticket, txn, parts)
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            if (
                self._under_way(txn, row.queue) is not None
                or load_rows.answered(engine, txn, row.queue, ticket.id) is not None
            ):
                return None
            self._check_targets(ticket, row.chunks)
            with engine.transaction() as change:
                number = next_number(change)
                load_rows.put_load(change, number, row)
                load_rows.put_progress(change, number, LoadProgress())
            return number

    def _row(self, ticket: WriteTicket, txn: Txn, parts: Sequence[Staged]) -> LoadRow:
        """What a job will be; all that was staged for it must be there."""
        folder = self._staging() / staged.folder_of(ticket, txn)
        chunks = jobs.in_order(parts)
        for chunk in chunks:
            staged.check_there(folder, chunk)
        rejected = sum(part.rejected for part in parts)
        queue = jobs.queue_number(ticket)
        return LoadRow(txn.app, txn.version, folder.name, ticket.key_id, chunks, rejected, queue)

    def _stage_anew(self, number: int, ticket: WriteTicket, txn: Txn, parts: Sequence[Staged]) -> None:
        """A job whose staged files are damaged goes on with those of a later run of it.

        From the same place on: so what is in must have been staged the same way again.
        """
        row = self._row(ticket, txn, parts)
        if not self._claim(number):
            return  # It was withdrawn, and begins anew; or another thread is at it.
        engine = self._engine
        try:
            with engine.lock, engine.transaction() as change:
                self._check_targets(ticket, row.chunks)
                progress = load_rows.progress_of(engine, number)
                if progress.ingesting:
                    raise StorageCorrupt(
                        f"bulk write {number} was cut off in the middle of a slice, and its staged files are "
                        "damaged: run check with repair, and then the job again"
                    )
                begun = progress.chunk + (progress.row > 0)
                old = load_rows.load_of(engine, number).chunks[:begun]
                if [_rows_of(chunk) for chunk in old] != [_rows_of(chunk) for chunk in row.chunks[:begun]]:
                    raise InvalidMessage(
                        f"bulk write {number} has enqueued {progress.enqueued} messages of what was staged "
                        "first, and what is staged now does not begin with the same rows: run the job with "
                        "its rows in the same partitions, or end it by check with repair"
                    )
                load_rows.put_load(change, number, row)
        finally:
            self._running.discard(number)

    def _check_targets(self, ticket: WriteTicket, chunks: Sequence[Chunk]) -> None:
        """Refuse a write under another key than the store's, or for queues that take none."""
        if ticket.key_id != active_key(self._engine):
            raise StorageError(
                f"rows were staged under key {ticket.key_id!r}, but the store is now written with "
                f"{active_key(self._engine)!r}: run the job again"
            )
        names = {target.number: name for name, target in ticket.queues.items()}
        for number in {chunk.number for chunk in chunks}:
            q = self._engine.queue_by_number(number)
            if q is None:
                raise QueueNotFound(names.get(number, str(number)))
            if refusal := jobs.script_refusal(q.name, q.settings.on_enqueue):
                raise InvalidMessage(refusal)

    # -- jobs ---------------------------------------------------------------------------------------

    def recover(self) -> None:
        """At opening, before anyone looks: chunks whose tables may be in are brought in wholly.

        So are jobs that were staged under another key: what rekeys the store must find all of it there.
        """
        for number, raw in list(load_rows.loads(self._engine)):
            load = None
            try:
                load = self._load(number, raw)
                if load.progress.ingesting:
                    self._slices.take_chunks(load, load.progress.ingesting)
                while load.row.key_id != active_key(self._engine) and not self._step(load):
                    pass
            except Exception as error:  # noqa: BLE001 (raised again, or logged)
                self._give_up(number, error)
            finally:
                if load is not None:
                    load.close()

    def resume(self) -> int:
        """Some slices of a job that nobody runs; 1 if there is one."""
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            numbers = [number for number, _ in load_rows.loads(engine)]
        for number in numbers:
            if number not in self._given_up and self._claim(number):
                self._run(number, slices=SLICES_AT_ONCE)
                return 1
        return 0

    def _claim(self, number: int) -> bool:
        with self._engine.lock:
            if number in self._running or not load_rows.is_under_way(self._engine, number):
                return False
            self._running.add(number)
            return True

    def _run(self, number: int, slices: int | None = None) -> None:
        """Up to so many slices of a job that was claimed."""
        engine, load = self._engine, None
        try:
            with engine.lock:
                engine.check_usable()
                raw = engine.kv.get(load_rows.load_key(number), engine.meta)
                if raw is None:
                    return
                load = self._load(number, raw)
            done = 0
            while slices is None or done < slices:
                done += 1
                if self._step(load):
                    break
                # A lock that is asked for again at once is not given to those who wait for it.
                threading.Event().wait(BETWEEN_SLICES_S)
        except Exception as error:
            self._withdraw_unbegun(number, error)
            self._give_up(number, error)
            if slices is None:
                raise
        finally:
            if load is not None:
                load.close()
            self._running.discard(number)

    def _load(self, number: int, raw: bytes) -> Load:
        row = load_rows.decode_load(raw)
        return Load(number, row, load_rows.progress_of(self._engine, number), self._staging() / row.folder)

    def _give_up(self, number: int, error: Exception) -> None:
        """What is wrong with one job is no other's; what is wrong with the store is everyone's."""
        if self._engine.stopped is not None or is_of_the_store(error):
            raise error
        with self._engine.lock:
            if not load_rows.is_under_way(self._engine, number):
                return  # It never was.
        self._given_up[number] = (
            f"bulk write {number} was left alone: {error}; it goes on when the same job is run again, and "
            "check with repair ends it"
        )
        log.error("%s", self._given_up[number])

    def _withdraw_unbegun(self, number: int, error: Exception) -> None:
        """What was staged cannot be read, and nothing of it is in: the job never was."""
        engine = self._engine
        if isinstance(error, StorageCorrupt) and engine.stopped is None:
            with engine.lock:
                if load_rows.progress_of(engine, number) == LoadProgress():
                    with engine.transaction() as txn:
                        load_rows.drop_load(txn, number)

    def _step(self, load: Load) -> bool:
        """One slice; True when the job is done."""
        if load.progress.chunk == len(load.row.chunks):
            self._finish(load)
            return True
        self._slices.take(load)
        return False

    def _finish(self, load: Load) -> None:
        engine = self._engine
        with engine.lock, engine.transaction() as txn:
            load_rows.end_load(txn, load.number, load.row, load.progress)
        self._given_up.pop(load.number, None)
        load.close()
        # Files go when no power cut can bring back a job that needs them.
        engine.sync()
        shutil.rmtree(load.folder, ignore_errors=True)

    # -- jobs that do not go on ----------------------------------------------------------------------

    def forget_damage(self) -> None:
        """After a repair: what was given up is tried again, if it is still there."""
        self._given_up.clear()

    def go_on(self) -> None:
        """Before a repair: all that can go on does. Who takes tables in is the first to look into them."""
        self.forget_damage()
        while self.resume():
            pass

    def cut_off(self) -> list[tuple[int, str]]:
        """Jobs that cannot go on with what was staged, as far as that is known: their numbers, and why."""
        with self._engine.lock:
            self._engine.check_usable()
            under_way = load_rows.loads(self._engine)
            return [(number, why) for number, raw in under_way if (why := self._problem(number, raw))]

    def _problem(self, number: int, raw: bytes) -> str:
        if number in self._given_up or number in self._running:
            return self._given_up.get(number, "")
        try:
            load = self._load(number, raw)
            for chunk in load.row.chunks[load.progress.chunk :]:
                staged.check_there(load.folder, chunk)
        except PenstockError as error:
            return str(error)
        return ""

    # -- clearing away ------------------------------------------------------------------------------

    def clear(self) -> int:
        """Now and then: what was staged and given up, and jobs of long ago; 1 if there was something."""
        engine = self._engine
        now_ns = engine.clock.now_ns()
        if self._path is None or now_ns < self._clear_at_ns:
            return 0
        self._clear_at_ns = now_ns + to_ns(CLEAR_EVERY_S)
        cleared = load_rows.forget_old(engine)
        before_ns = now_ns - to_ns(STAGED_KEPT_S)
        folders = self._staging()
        for folder in folders.iterdir() if folders.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):  # Another may be aborting it.
                if folder.suffix == _GOING or folder.stat().st_mtime_ns < before_ns:
                    cleared += self._throw_away(folder)
        return int(cleared > 0)

    def _throw_away(self, folder: Path) -> bool:
        """Unless its commit has begun. It gets another name first: nobody begins one while it goes."""
        going = folder.with_suffix(_GOING)
        with self._engine.lock:
            self._engine.check_usable()
            if folder.name in self._folders_in_use() or not folder.exists():
                return False
            folder.replace(going)
        shutil.rmtree(going, ignore_errors=True)
        return True

    def _folders_in_use(self) -> set[str]:
        return {load_rows.decode_load(raw).folder for _, raw in load_rows.loads(self._engine)}


def _rows_of(chunk: Chunk) -> tuple[object, ...]:
    """Which rows a chunk has, whatever its files are."""
    return chunk.number, chunk.rows, chunk.first, chunk.last, chunk.ids, chunk.repeated


def _as_first(written: Written) -> Written:
    """What a job is answered that was done just now."""
    return msgspec.structs.replace(written, again=False)
