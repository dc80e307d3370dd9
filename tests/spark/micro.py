"""What Spark does with the reader of a stream, batch by batch, in this process: to be stopped anywhere."""

from __future__ import annotations

import json
import pickle
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from penstock import Penstock
from penstock.spark.offsets import Noted
from penstock.spark.source import PenstockSource
from penstock.spark.stream import JournalStream
from tests.spark.stores import place

Seen = list[tuple[str, int]]


class Query:
    """Started again, it goes on from its checkpoint, which is what it has noted in `ends` and `commits`."""

    def __init__(self, ps: Penstock, **options: object) -> None:
        self._options = {"url": place(ps), **options}
        #: The ends of batches, noted before they are read; the first is where the query has started.
        self.ends: list[Noted] = []
        #: How many of the batches are done.
        self.commits = 0
        self.batches: list[Seen] = []

    def reader(self, **more: object) -> JournalStream:
        given = {name.lower(): str(value) for name, value in {**self._options, **more}.items()}
        source = PenstockSource(given)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, JournalStream)
        return reader

    def run(self, **more: object) -> Seen:
        """What there is now, with the trigger availableNow; what of it this run has read."""
        before = len(self.batches)
        reader = self.reader(**more)
        try:
            reader.prepareForTriggerAvailableNow()
            self.replay(reader)
            while self.step(reader):
                pass
        finally:
            reader.stop()
        return [event for batch in self.batches[before:] for event in batch]

    def replay(self, reader: JournalStream) -> None:
        """A query that was stopped in a batch begins it anew."""
        if not self.ends:
            self.ends.append(_noted(reader.initialOffset()))
        if len(self.ends) > self.commits + 1:
            self._read(reader)

    def step(self, reader: JournalStream, limit: ReadLimit | None = None) -> bool:
        """The next batch; False if there is none."""
        if self.commits:
            reader.commit(self.ends[self.commits])
        end = _noted(reader.latestOffset(dict(self.ends[-1]), limit or reader.getDefaultReadLimit()))
        if json.dumps(end) == json.dumps(self.ends[-1]):
            return False
        self.ends.append(end)
        self._read(reader)
        return True

    def _read(self, reader: JournalStream) -> None:
        start, end = self.ends[-2:]
        parts: list[InputPartition] = pickle.loads(pickle.dumps(list(reader.partitions(start, end))))
        found: list[dict[str, Any]] = [
            row for part in parts for batch in reader.read(part) for row in batch.to_pylist()
        ]
        self.batches.append(sorted((row["queue"], row["seq"]) for row in found))
        self.commits += 1


def _noted(offset: Noted) -> Noted:
    """As Spark keeps it: as text."""
    noted: Noted = json.loads(json.dumps(offset))
    return noted


def read_up_to(offset: Noted | None) -> dict[str, int]:
    """By queue; the time when it was made left out."""
    return {name: seq for name, (seq, _) in (offset or {}).items()}


def seqs(seen: Seen, queue: str) -> list[int]:
    """In the order of batches, and inside one by number."""
    return [seq for name, seq in seen if name == queue]
