"""A side of a comparison, or the source of a job: a store as it is, or an archive at a moment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import InvalidConfig, QueueNotFound
from penstock.settings import QueueSettings
from penstock.spark.archive.log import ArchiveLog
from penstock.spark.jobs.as_stored import BODY, of_stored
from penstock.spark.jobs.history import History, Until
from penstock.spark.jobs.inputs import of_store
from penstock.spark.store import Store

_COLUMNS = (
    "queue", "id", "state", *BODY, "visible_at_ns", "expires_at_ns", "until_ns", "order_ns", "attempts",
    "reason",
)  # fmt: skip


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A store or, without one, the archive in a folder, up to a moment."""

    place: str
    store: Store | None = None
    until: Until = Until()


class Standing(NamedTuple):
    """Messages of a side, as `as_stored.STORED` has them, the moment that they are of, and their queues."""

    messages: DataFrame
    at_ns: int | None
    queues: dict[str, QueueSettings]


def side(place: str, until: Until | None = None) -> Side:
    """What a place is, which its folder tells."""
    scheme = place.split(os.sep)[0].partition(":")[1]
    if not scheme and ArchiveLog(place).exists():
        return Side(place=place, until=until or Until())
    if until not in (None, Until()):
        raise InvalidConfig(
            f"{place} is no archive: how a store was at an earlier moment only an archive knows"
        )
    return Side(place=place, store=Store(place))


def check_there(of: Side, queues: tuple[str, ...] | None) -> None:
    """Refuse a side that is not there, or has not these queues; without Spark, so that it is soon known."""
    if of.store is None:
        known = ArchiveLog(of.place).read().queues
        for name in queues or ():
            if name not in known:
                raise QueueNotFound(name)
        return
    with of.store.open() as ps:
        for name in queues or ():
            ps.queue(name)


@contextmanager
def standing(spark: SparkSession, of: Side, queues: tuple[str, ...] | None) -> Iterator[Standing]:
    """The messages of some queues, or of all."""
    if of.store is None:
        history = History(spark, of.place, queues, of.until)
        messages = history.messages().where("body_seq IS NOT NULL")
        yield Standing(messages, of.until.at_ns, history.settings)
        return
    with of.store.open() as ps:
        found = {one.name: one for one in ps.queues() if queues is None or one.name in queues}
    with of_store(spark, of.store, {"messages": _COLUMNS}, queues) as inputs:
        yield Standing(of_stored(inputs.tables["messages"]), inputs.at_ns, found)
