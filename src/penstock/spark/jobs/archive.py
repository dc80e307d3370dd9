"""`penstock pipeline archive`: what happened since the last time, into Parquet, each event once.

Each commit is data and position in one step (`penstock.spark.archive.log`), so a job that is killed anywhere
goes on where the last commit ended. Cursors follow the commits, never lead them.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Iterable, Mapping

import msgspec
from pyspark.sql import SparkSession

from penstock.backends.bulk import BulkRequest, SeqRange
from penstock.clock import Clock, SystemClock, to_ns
from penstock.errors import PenstockError, StorageCorrupt
from penstock.spark.archive.cursors import move_cursors
from penstock.spark.archive.files import Reading, write_files
from penstock.spark.archive.layout import SOURCES, ArchiveTable
from penstock.spark.archive.log import ArchiveFile, ArchiveLog, ArchiveState, Commit
from penstock.spark.archive.moment import ArchiveOptions, Moment, moment_of
from penstock.spark.archive.ranges import after_hole
from penstock.spark.failures import translated
from penstock.spark.jobs.watch import Progress
from penstock.spark.offsets import advanced
from penstock.spark.plan import Part, rows
from penstock.spark.schema import spark_schema
from penstock.spark.store import Store, opened

_log = logging.getLogger("penstock.archive")

#: From where, and up to and with where, of each journal.
Spans = dict[str, tuple[int, int]]


class Archived(msgspec.Struct, kw_only=True):
    """What a run has done. `bodies_missing` had left the store before the archive was begun.

    `anew`: queues that are not those that were archived, or whose journal has a hole since, and have another
    history now; `gone`: deleted ones.
    """

    commits: int = 0
    events: int = 0
    bodies: int = 0
    bodies_missing: int = 0
    base: int = 0
    entries: int = 0
    queues: int = 0
    files: int = 0
    size_bytes: int = 0
    anew: list[str] = []
    gone: list[str] = []
    positions: dict[str, int] = {}


def archive(
    spark: SparkSession,
    store: Store,
    folder: str,
    options: ArchiveOptions | None = None,
    told: Progress | None = None,
) -> Archived:
    """Everything up to now, in as many commits as it takes; killed anywhere, the next run goes on."""
    return _archived(spark, store, ArchiveLog(folder), options or ArchiveOptions(), told)


def _archived(
    spark: SparkSession, store: Store, log: ArchiveLog, options: ArchiveOptions, told: Progress | None
) -> Archived:
    with moment_of(store, options, log) as moment:
        return _Run(spark, store, log, options, moment).run(told)


def follow(
    spark: SparkSession,
    store: Store,
    folder: str,
    options: ArchiveOptions | None = None,
    told: Progress | None = None,
    *,
    every_s: float = 10.0,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
) -> Archived:
    """The same again and again, until `stop` is set; what it did is added up.

    What was well once and fails with what may pass, such as an owner that restarts, is tried again.
    """
    stop, clock, woken = stop or threading.Event(), clock or SystemClock(), threading.Condition()
    log, total = ArchiveLog(folder), None
    while not stop.is_set():
        next_ns = clock.now_ns() + to_ns(every_s)
        try:
            with translated():
                last = _archived(spark, store, log, options or ArchiveOptions(), told)
            total = last if total is None else _together(total, last)
        except PenstockError as error:
            if total is None or not error.retryable:
                raise
            _log.warning("archiving will be tried again: %s", error)
        while not stop.is_set() and (left_ns := next_ns - clock.now_ns()) > 0:
            with woken:
                clock.wait(woken, min(left_ns, to_ns(0.2)))
    return total or Archived()


def _together(total: Archived, last: Archived) -> Archived:
    summed = {
        name: getattr(total, name) + getattr(last, name)
        for name in Archived.__struct_fields__
        if name != "positions"
    }
    return Archived(**summed, positions=last.positions)


class _Run:
    """One moment of a store on its way into an archive."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        log: ArchiveLog,
        options: ArchiveOptions,
        moment: Moment,
    ) -> None:
        self._spark = spark
        self._store = store
        self._log = log
        self._options = options
        self._moment = moment
        self._state = moment.state
        self._queues = dict(moment.begun.positions)
        self._worlds = dict(moment.world_positions)
        #: Queues whose state is to be archived, for no events say it.
        self._based = list(moment.begun.based)
        #: Of journals that have a hole, the last event before it.
        self._before_holes: dict[str, int] = {}
        self._done = Archived(anew=moment.begun.anew, gone=sorted(set(moment.gone) - set(moment.queues)))

    def run(self, told: Progress | None) -> Archived:
        moment = self._moment
        total = sum(extent.last_seq - self._queues[name].seq for name, extent in moment.queues.items())
        first = True
        while True:
            self._begin_after_holes()
            queues, worlds = self._due()
            if not first and not queues and not worlds:
                break
            commit = self._archived(queues, worlds, first=first)
            if commit is None:
                continue
            if commit.added or commit.queues or commit.gone:
                self._commit(commit)
                if told is not None:
                    told("archiving events", self._done.events, total)
            first = False
        self._note_moment()
        self._done.positions = {name: position.seq for name, position in self._queues.items()}
        return self._done

    def _note_moment(self) -> None:
        """Up to this moment everything is archived, also of queues in which nothing has happened."""
        if self._state.number:
            extents, at_ns = self._moment.queues, self._moment.snapshot.at_ns
            whole = [name for name, at in self._queues.items() if at.seq == extents[name].last_seq]
            self._log.note_moments(self._state, dict.fromkeys(whole, at_ns))

    def _due(self) -> tuple[Spans, Spans]:
        """What comes next of queues and of worlds; of the former, nothing beyond the next hole."""
        limit = self._options.events_per_commit
        at = {name: position.seq for name, position in self._queues.items()}
        ends = advanced(at, self._moment.queues, limit)
        ends = {name: min(end, self._before_holes.get(name, end)) for name, end in ends.items()}
        world_at = {name: position.seq for name, position in self._worlds.items()}
        return _spans(at, ends), _spans(world_at, advanced(world_at, self._moment.worlds, limit))

    def _begin_after_holes(self) -> None:
        """Histories of queues that are archived up to a hole: what is behind it is another one."""
        for name, stop in list(self._before_holes.items()):
            if self._queues[name].seq < stop:
                continue
            del self._before_holes[name]
            was, before, moment = self._queues[name], self._state.queues.get(name), self._moment
            known = before is not None and before.generation == was.generation
            last_seq, at_ns = moment.queues[name].last_seq, moment.snapshot.at_ns
            self._queues[name] = after_hole(was, last_seq, at_ns, known=known)
            self._based.append(name)
            if known:
                self._done.anew.append(name)

    def _archived(self, queues: Spans, worlds: Spans, *, first: bool) -> Commit | None:
        """Files of these parts of the journals, durable, and counted: not yet part of the archive.

        None: there are holes, which are known now; what was written is thrown away.
        """
        commit = Commit(
            gone=self._moment.gone if first else {},
            store_id=self._moment.store_id,
            store_place=self._store.url,
        )
        wanted: dict[ArchiveTable, Spans] = {"events": queues, "bodies": queues, "entries": worlds}
        if self._based:  # How messages stood where history has no beginning: no event says it.
            wanted["base"] = dict.fromkeys(self._based, (0, 0))
        commit.added = self._written(wanted)
        events = [file for file in commit.added if file.table == "events"]
        _check_whole(events, queues)
        if self._find_holes(events):
            for file in commit.added:
                (self._log.root / file.path).unlink(missing_ok=True)
            return None
        for name, (_, last) in queues.items():
            end = next(one for one in events if _ends(one, name, last))
            commit.queues[name] = msgspec.structs.replace(
                self._queues[name], seq=last, at_ns=end.end_at_ns, id=end.end_id
            )
        for name, (_, last) in worlds.items():
            end = next(one for one in commit.added if one.table == "entries" and _ends(one, name, last))
            commit.worlds[name] = msgspec.structs.replace(
                self._worlds[name], seq=last, at_ns=end.end_at_ns, id=end.end_id
            )
        self._add_queues(commit)
        self._count(commit)
        return commit

    def _find_holes(self, events: Iterable[ArchiveFile]) -> bool:
        """Whether there are any that no base makes up for. Too rare for reading journals in advance."""
        found: dict[str, int] = {}
        for file in events:
            base_seq = self._queues[file.name].base_seq
            if file.last_hole_seq > base_seq:
                stop = max(file.first_hole_seq - 1, base_seq, self._queues[file.name].seq)
                found[file.name] = min(stop, found.get(file.name, stop))
        self._before_holes.update(found)
        return bool(found)

    def _add_queues(self, commit: Commit) -> None:
        """Those that are new, though nothing has happened in them, and the settings that have changed."""
        known, other = self._state.queues, set()
        for name, position in self._queues.items():
            if position != known.get(name):
                commit.queues.setdefault(name, position)
            if name not in known or position.generation != known[name].generation:
                other.add(name)
        table = self._moment.queue_rows
        names: list[str] = [str(name) for name in table["name"].to_pylist()]
        texts = [str(text) for text in table["settings"].to_pylist()]
        sums = {name: zlib.crc32(text.encode()) for name, text in zip(names, texts, strict=True)}
        before = self._state.settings
        # Each history has its own, though they may be the same.
        commit.settings = {
            name: one for name, one in sums.items() if name in other or before.get(name) != one
        }
        if commit.settings:
            changed = table.filter([name in commit.settings for name in names])
            readings = self._readings("queues", commit.settings)
            commit.added += write_files(changed.to_batches(), str(self._log.root), "queues", readings)

    def _written(self, wanted: Mapping[ArchiveTable, Spans]) -> list[ArchiveFile]:
        """By as many tasks as the rows are worth; of one that is tried again, what it made last."""
        tasks = [(table, part) for table, spans in wanted.items() for part in self._planned(table, spans)]
        if not tasks:
            return []
        root = str(self._log.root)
        readings = {table: self._readings(table, spans) for table, spans in wanted.items()}
        schemas = {table: spark_schema(SOURCES[table][0]) for table in wanted}

        def write(task: tuple[ArchiveTable, Part]) -> list[ArchiveFile]:
            table, part = task
            return write_files(rows(part, schemas[table]), root, table, readings[table])

        made = self._spark.sparkContext.parallelize(tasks, len(tasks)).map(write).collect()
        return [file for files in made for file in files]

    def _planned(self, table: ArchiveTable, spans: Spans) -> list[Part]:
        if not spans:
            return []
        by_seq = {name: SeqRange(after + 1, last + 1) for name, (after, last) in spans.items()}
        request = BulkRequest(
            table=SOURCES[table][0],
            names=tuple(spans),
            seqs={} if table == "base" else by_seq,
            partitions=self._options.partitions or self._spark.sparkContext.defaultParallelism,
        )
        with opened(self._moment.snapshot, self._moment.keys) as reader:
            return [Part(one, self._moment.keys, None) for one in reader.plan(request).partitions]

    def _readings(self, table: ArchiveTable, names: Iterable[str]) -> dict[str, Reading]:
        moment = self._moment
        worlds = table == "entries"
        positions, extents = (self._worlds, moment.worlds) if worlds else (self._queues, moment.queues)
        at_ns = moment.snapshot.at_ns
        return {name: Reading(positions[name].generation, extents[name].last_seq, at_ns) for name in names}

    def _commit(self, commit: Commit) -> None:
        before = self._state

        def still_good(state: ArchiveState) -> bool:
            touched = {*commit.queues, *commit.gone}
            return all(state.queues.get(name) == before.queues.get(name) for name in touched) and all(
                state.worlds.get(name) == before.worlds.get(name) for name in commit.worlds
            )

        self._state = self._log.commit(commit, still_good)
        self._queues.update(commit.queues)
        self._worlds.update(commit.worlds)
        self._based.clear()
        self._done.commits += 1
        # Only now: what the cursors let go is in files that are on disk and part of the archive.
        with self._store.open() as ps:
            move_cursors(
                ps, {name: position.seq for name, position in commit.queues.items()}, self._options.cursor
            )

    def _count(self, commit: Commit) -> None:
        done = self._done
        rows_of: dict[str, int] = dict.fromkeys(SOURCES, 0)
        for file in commit.added:
            rows_of[file.table] += file.rows
        done.files += len(commit.added)
        done.size_bytes += sum(file.size_bytes for file in commit.added)
        for table, count in rows_of.items():
            setattr(done, table, getattr(done, table) + count)
        due = sum(file.bringing for file in commit.added)
        # A repair may bring a body or take one away: beside such, the number is the least that it can be.
        missing = max(0, due - rows_of["bodies"])
        done.bodies_missing += missing
        commit.counts = {**rows_of, "bodies_missing": missing}


def _ends(file: ArchiveFile, name: str, last_seq: int) -> bool:
    """Whether it is the one that has this event, the last of a part, of the queue or world."""
    return file.name == name and file.last_seq == last_seq


def _spans(start: Mapping[str, int], end: Mapping[str, int]) -> Spans:
    return {name: (start[name], last) for name, last in end.items() if last > start[name]}


def _check_whole(files: list[ArchiveFile], spans: Spans) -> None:
    """Every event of each part, once: else nothing is committed."""
    found = {name: [0, 0, 0] for name in spans}
    for file in files:
        one = found[file.name]
        one[0] += file.rows
        one[1] = file.first_seq if not one[1] else min(one[1], file.first_seq)
        one[2] = max(one[2], file.last_seq)
    for name, (after, last) in spans.items():
        if found[name] != [last - after, after + 1, last]:
            rows_found, first_found, last_found = found[name]
            raise StorageCorrupt(
                f"queue {name!r}: of events {after + 1} to {last} the store gave {rows_found}, from "
                f"{first_found} to {last_found}; nothing was archived: run penstock check"
            )
