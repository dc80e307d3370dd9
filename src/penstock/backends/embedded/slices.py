"""Slices of a bulk write: some chunks, or some rows of one, become messages in one moment."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.backends.bulk import Chunk
from penstock.backends.embedded import load_rows, staged
from penstock.backends.embedded.chunks import rows_of_work
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.enqueue import Enqueuer
from penstock.backends.embedded.ingesting import (
    Loaded,
    StagedBodies,
    any_exists,
    enter_chunk,
    take_in_bodies,
    take_in_ready,
)
from penstock.backends.embedded.load_rows import LoadProgress, LoadRow
from penstock.errors import StorageCorrupt, StorageError
from penstock.kv.sealed import SealedStore

#: What comes in by one write, one chunk at least: rows, chunks with tables, and bytes of the others.
SLICE_ROWS = 131_072
SLICE_TABLES = 128
SLICE_BYTES = 32 << 20
#: Rows where they go in one by one.
LOOSE_ROWS = 500


class Load:
    """A job whose commit has begun, and how far it is."""

    def __init__(self, number: int, row: LoadRow, progress: LoadProgress, folder: Path) -> None:
        self.number = number
        self.row = row
        self.progress = progress
        self.folder = folder
        self.bodies: StagedBodies | None = None

    def close(self) -> None:
        bodies, self.bodies = self.bodies, None
        if bodies is not None:
            bodies.close()


def active_key(engine: Engine) -> str:
    """The id of the key that the store is written with; empty without encryption."""
    kv = engine.kv
    return (kv.active or "") if isinstance(kv, SealedStore) else ""


def _together(chunks: Sequence[Chunk], are_loose: Container[int]) -> int:
    """How many of them, from the first on, are a slice. Rows for the queues `are_loose` go in one by one."""
    count = rows = tables = size = 0
    for chunk in chunks:
        rows += rows_of_work(chunk.rows, chunk.ids, chunk.timed)
        if staged.has_tables(chunk):
            tables += 1
        else:
            size += chunk.sizes_bytes[2]
        full = rows > SLICE_ROWS or tables > SLICE_TABLES or size > SLICE_BYTES
        if chunk.ids == "dedup" or chunk.number in are_loose or (count and full):
            break
        count += 1
    return count


class Slices:
    """Takes jobs in, slice by slice."""

    def __init__(self, engine: Engine, enqueuer: Enqueuer) -> None:
        self._engine = engine
        self._enqueuer = enqueuer

    def take(self, load: Load) -> None:
        """The next slice of a job that has one."""
        if load.progress.ingesting:  # What was announced, and no more: its ids are not looked up again.
            self.take_chunks(load, load.progress.ingesting)
            return
        count = 0
        if not load.progress.row and load.row.key_id == active_key(self._engine):
            chunks = load.row.chunks[load.progress.chunk :]
            count = _together(chunks, self._with_lines({chunk.number for chunk in chunks}))
        while count and not self.take_chunks(load, count):
            count //= 2
        if not count:
            self._take_loose(load)

    def _with_lines(self, numbers: set[int]) -> set[int]:
        """Those queues in which messages wait for the queue's delay: it counts from when they come in."""
        with self._engine.lock:
            found = ((number, self._engine.queue_by_number(number)) for number in numbers)
            return {number for number, q in found if q is not None and q.lines_up}

    def take_chunks(self, load: Load, count: int) -> bool:
        """So many chunks at once; False, and nothing is done, if ids of theirs are there already."""
        engine, progress = self._engine, load.progress
        loaded: list[Loaded] = []
        for chunk in load.row.chunks[progress.chunk : progress.chunk + count]:
            staged.check_there(load.folder, chunk)
            loaded.append((chunk, staged.read_rows(load.folder, chunk)))
        with engine.lock:
            engine.check_usable()
            # Those of a queue that was deleted meanwhile are gone with it.
            loaded = [one for one in loaded if engine.queue_by_number(one[0].number) is not None]
            with_lines = self._with_lines({chunk.number for chunk, _ in loaded})
            if not progress.ingesting and (with_lines or any_exists(engine, loaded)):
                return False
            if any(staged.has_tables(chunk) for chunk, _ in loaded) or progress.ingesting:
                self._ingest(load, loaded, count)
            else:
                self._enter(load, loaded, count)
        return True

    def _ingest(self, load: Load, loaded: Sequence[Loaded], count: int) -> None:
        engine, chunks = self._engine, [chunk for chunk, _ in loaded]
        try:
            if not load.progress.ingesting:
                self._announce(load, count)
                self._take_in_bodies(load, chunks)
            else:  # They may be in, for a crash came between: nobody has seen them.
                take_in_bodies(engine, load.folder, chunks)
        except Exception:
            raise
        except BaseException as error:  # Ctrl-C: how far they have come is not known.
            self._stop(error)
            raise
        with self._stopping():
            take_in_ready(engine, load.folder, chunks)
            self._enter(load, loaded, count)

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Work that is done wholly, or nothing is answered after it."""
        try:
            yield
        except BaseException as error:
            self._stop(error)
            raise

    def _stop(self, error: BaseException) -> None:
        """The store has what nothing tells of: nothing is answered before it is opened again."""
        why = str(error) or type(error).__name__
        self._engine.stop(StorageError(f"a bulk write was cut short, and goes on at the next opening: {why}"))

    def _take_in_bodies(self, load: Load, chunks: Sequence[Chunk]) -> None:
        """All of them or none: then what was announced is not to come, for others may use its ids now."""
        try:
            take_in_bodies(self._engine, load.folder, chunks)
        except Exception as error:
            with self._stopping(), self._engine.transaction() as txn:
                load.progress.ingesting = 0
                load_rows.put_progress(txn, load.number, load.progress)
            if isinstance(error, StorageCorrupt):
                raise StorageCorrupt(f"what was staged is damaged, run the job again: {error}") from error
            raise

    def _announce(self, load: Load, count: int) -> None:
        """In every mode durable before the tables are: these are at once."""
        engine, progress = self._engine, load.progress
        with engine.transaction() as txn:
            progress.ingesting = count
            load_rows.put_progress(txn, load.number, progress)
        engine.sync()

    def _enter(self, load: Load, loaded: Sequence[Loaded], count: int) -> None:
        engine, progress = self._engine, load.progress
        with engine.transaction() as txn:
            for chunk, rows in loaded:
                q = engine.queue_by_number(chunk.number)
                assert q is not None
                enter_chunk(txn, q, rows)
                progress.enqueued += chunk.rows
                progress.existing += chunk.repeated
            progress.chunk, progress.row, progress.ingesting = progress.chunk + count, 0, 0
            load_rows.put_progress(txn, load.number, progress)

    def _take_loose(self, load: Load) -> None:
        """Some rows of a chunk, as `enqueue` takes them in."""
        engine, progress = self._engine, load.progress
        chunk = load.row.chunks[progress.chunk]
        if load.bodies is None:
            staged.check_there(load.folder, chunk)
            rows = staged.read_rows(load.folder, chunk)
            load.bodies = StagedBodies(engine, load.folder, chunk, rows)
        messages = list(load.bodies.messages(progress.row, LOOSE_ROWS, engine.clock.now_ns()))
        with engine.lock, engine.transaction() as txn:
            q = engine.queue_by_number(chunk.number)
            results = [] if q is None else self._enqueuer.enqueue_in(txn, q, messages)
            for result in results:
                if result.error is not None:
                    raise result.error
                progress.existing += result.duplicate
                progress.enqueued += not result.duplicate
            progress.row += len(messages)
            if progress.row >= chunk.rows:
                progress.existing += chunk.repeated if q is not None else 0
                progress.chunk, progress.row = progress.chunk + 1, 0
            load_rows.put_progress(txn, load.number, progress)
        if not progress.row:
            load.close()
