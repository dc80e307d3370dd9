"""A moment of an archive: which history of each queue counts, how far, and the queue's settings then."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from penstock.errors import InvalidConfig
from penstock.event import Kind
from penstock.settings import QueueSettings
from penstock.spark.archive.layout import ArchiveTable
from penstock.spark.archive.log import ArchiveFile, Position
from penstock.spark.archive.reading import Archive
from penstock.spark.jobs.as_stored import of_history
from penstock.spark.jobs.lives import IS_HOLE


class Until(msgspec.Struct, frozen=True):
    """A moment: by the number of an event, or by time; both count. None: everything there is."""

    seq: int | None = None
    at_ns: int | None = None

    def __str__(self) -> str:
        if self.seq is not None:
            return f"event {self.seq}"
        return "the end" if self.at_ns is None else _utc(self.at_ns)


def _utc(at_ns: int, *, or_before: bool = False) -> str:
    """To the second, not before it or not after it."""
    at_s = at_ns // 10**9 if or_before else -(-at_ns // 10**9)
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class History:
    """Queues of an archive as they were at a moment; those that were not there then are not among them.

    Queues that are named are an exception: one that was deleted is as it stood in the end.
    """

    def __init__(
        self,
        spark: SparkSession,
        folder: str,
        queues: tuple[str, ...] | None = None,
        until: Until | None = None,
    ) -> None:
        self.archive = Archive(spark, folder)
        self.until = until or Until()
        self._spark = spark
        #: Of each queue the history that counts.
        self.positions = self._all() if queues is None else self._named(queues)
        self._check_begun()
        for name, position in self.positions.items():
            self._check_known(name, position)
            self._check_archived(name, position)
        self.settings = self._settings()
        #: Of each queue its last event at the moment.
        self.ends = self._ends()
        self._check_holes()

    def table(self, table: ArchiveTable, names: Collection[str] | None = None) -> DataFrame:
        """Rows of the generations that count."""
        return self.archive.read(table, self._files(table, self.positions if names is None else names))

    def _files(self, table: ArchiveTable, names: Collection[str]) -> list[ArchiveFile]:
        return [
            file
            for file in self.archive.files(table, set(names))
            if self.positions[file.name].generation == file.generation
        ]

    def messages(self, ends: Mapping[str, int] | None = None) -> DataFrame:
        """As `of_history` has them, and `newer`: the body was replaced before it was archived.

        With `ends`, of these queues alone, and each up to that event.
        """
        ends = self.ends if ends is None else ends
        spans = self._spans(ends)
        fifo = [name for name in ends if self.settings[name].fifo]
        events = self.table("events", ends)
        found = of_history(events, self.table("bodies", ends), self.table("base", ends), spans, fifo)
        if self.until == Until():
            return found.withColumn("newer", fn.lit(False))
        return found.join(_replaced(events, spans), ["queue", "id"], "left").withColumn(
            "newer", fn.coalesce(fn.col("replaced_seq") <= fn.col("read_seq"), fn.lit(False))
        )

    def _spans(self, ends: Mapping[str, int]) -> DataFrame:
        known = [(name, self.positions[name].base_seq, end) for name, end in ends.items()]
        return self._spark.createDataFrame(known, "queue string, base_seq long, end_seq long")

    def _all(self) -> dict[str, Position]:
        found = {name: self._begun(name) for name in sorted(self.archive.state.queues)}
        at_ns = self.until.at_ns
        return {
            name: one
            for name, one in found.items()
            if one is not None and not (one.gone_ns and (at_ns is None or one.gone_ns <= at_ns))
        }

    def _named(self, queues: tuple[str, ...]) -> dict[str, Position]:
        found = {}
        for name in sorted(queues):
            self.archive.check_queue(name)
            position = self._begun(name)
            if position is None:
                raise InvalidConfig(f"queue {name!r} was not there at {self.until}: it was made later")
            found[name] = position
        return found

    def _begun(self, name: str) -> Position | None:
        """The last history, or the last that had begun at the moment."""
        at_ns = self.until.at_ns
        begun = [one for one in self.archive.state.histories(name) if at_ns is None or one.began_ns <= at_ns]
        return begun[-1] if begun else None

    def _check_known(self, name: str, position: Position) -> None:
        """A history that was cut off when it was begun is known from its base on, and by nobody before."""
        base_seq = position.base_seq
        if position.seq < base_seq:
            raise InvalidConfig(
                f"queue {name!r} is archived up to event {position.seq}, and how it stood is known "
                f"from event {base_seq} on; run penstock pipeline archive until it has caught up"
            )
        seq, at_ns = self.until.seq, self.until.at_ns
        if (seq is not None and seq < base_seq) or (at_ns is not None and at_ns < position.base_at_ns):
            raise InvalidConfig(
                f"how queue {name!r} stood at {self.until} is not known: when it was archived, events had "
                f"been removed or lost; it is known from event {base_seq} on, {_utc(position.base_at_ns)}"
            )

    def _check_begun(self) -> None:
        """There may have been no queues at a moment; but before all of them, nobody knows."""
        histories = [one for name in self.archive.state.queues for one in self.archive.state.histories(name)]
        first_ns = min((one.began_ns for one in histories), default=0)
        if self.until.at_ns is not None and self.until.at_ns < first_ns:
            raise InvalidConfig(
                f"{self.until} is before anything that is archived; the first queue was made at "
                f"{_utc(first_ns)}"
            )

    def _check_archived(self, name: str, position: Position) -> None:
        """What is not archived yet may have happened before the moment. Of a queue that is gone, all is."""
        later = f"{self.until} is later; run penstock pipeline archive first"
        if self.until.seq is not None and self.until.seq > position.seq:
            raise InvalidConfig(f"queue {name!r} is archived up to event {position.seq}, and {later}")
        is_last = position.generation == self.archive.state.queues[name].generation
        if self.until.at_ns is None or position.gone_ns or not is_last:
            return
        known_ns = max(position.at_ns, position.base_at_ns, self.archive.moments.get(name, 0))
        if self.until.at_ns > known_ns:
            known = _utc(known_ns, or_before=True)
            raise InvalidConfig(f"queue {name!r} is archived up to {known}, and {later}")

    def _check_holes(self) -> None:
        """Where a journal has a hole, another history is begun; one that has it in itself was not made so."""
        files = [
            file
            for file in self._files("events", self.positions)
            if file.repaired
            and file.last_seq > self.positions[file.name].base_seq
            and file.first_seq <= self.ends[file.name]
        ]
        if not files:
            return
        lost = (
            self.archive.read("events", files)
            .where(IS_HOLE)
            .join(fn.broadcast(self._spans(self.ends)), "queue")
        )
        counting = lost.where("seq > base_seq AND seq <= end_seq")
        for name, seq in counting.groupBy("queue").agg(fn.min("seq")).sort("queue").take(1):
            raise InvalidConfig(
                f"how queue {name!r} stood at {self.until} is not known: event {seq} was lost before it was "
                f"archived; it is known up to event {seq - 1}: rebuild that with --until-seq, or archive the "
                "store into another folder"
            )

    def _ends(self) -> dict[str, int]:
        """By number, whatever clocks say: what comes before the last event at the moment is before it."""
        ends = {name: position.seq for name, position in self.positions.items()}
        if self.until.at_ns is not None:
            ends = self._ends_by_time(self.until.at_ns)
        if self.until.seq is not None:
            ends = {name: min(seq, self.until.seq) for name, seq in ends.items()}
        return ends

    def _ends_by_time(self, at_ns: int) -> dict[str, int]:
        """Read are only files that the moment is in the middle of."""
        ends = dict.fromkeys(self.positions, 0)
        events = [file for file in self._files("events", self.positions) if file.first_at_ns <= at_ns]
        for file in events:
            if file.last_at_ns <= at_ns:
                ends[file.name] = max(ends[file.name], file.last_seq)
        divided = [file for file in events if file.last_seq > ends[file.name]]
        if divided:
            before = self.archive.read("events", divided).where(fn.col("at_ns") <= at_ns)
            for row in before.groupBy("queue").agg(fn.max("seq").alias("seq")).collect():
                ends[row.queue] = max(ends[row.queue], row.seq)
        return ends

    def _settings(self) -> dict[str, QueueSettings]:
        """As they were last given to the queue before the moment, or seen.

        If neither was, as they were seen first: the queue is older than that look.
        """
        found: dict[str, str] = {}
        until_ns = self.until.at_ns
        looks = [
            (at_ns, name, text)
            for at_ns, name, generation, text in self.archive.settings()
            if name in self.positions and self.positions[name].generation == generation
        ]
        given = [
            one
            for one in (self.archive.administration(until_ns) if until_ns is not None else [])
            if one[1] in self.positions and one[0] >= self.positions[one[1]].began_ns
        ]
        # At one time, what was given is what a look saw, or came after it.
        for at_ns, name, text in sorted([*looks, *given], key=lambda one: one[0]):
            if name not in found or until_ns is None or at_ns <= until_ns:
                found[name] = text
        return {name: msgspec.json.decode(found[name], type=QueueSettings) for name in self.positions}


def _replaced(events: DataFrame, spans: DataFrame) -> DataFrame:
    """Of events after the moment, the first of each message that brought another body."""
    later = events.join(fn.broadcast(spans), "queue").where(fn.col("seq") > fn.col("end_seq"))
    bringing = later.where(fn.col("kind").isin(str(Kind.ENQUEUED), str(Kind.UPDATED)))
    return bringing.groupBy("queue", fn.col("message_id").alias("id")).agg(
        fn.min("seq").alias("replaced_seq")
    )
