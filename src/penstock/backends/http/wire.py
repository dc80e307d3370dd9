"""Bulk reads and writes over HTTP: what client and server say to each other besides calls.

What a client holds of the server's (a snapshot, a ticket, a partition, a part that was staged) is a text that
the server alone can make or read; see `server/native/tickets.py`. In a `Snapshot` or `WriteTicket` it stands
in `place`, behind the URL: `http://host:9324#TEXT`.

    POST /v1/bulk/plan      MessagePack: the snapshot's text, a `BulkRequest`   ->  MessagePack: `PlanAnswer`
    POST /v1/bulk/read      MessagePack: `ReadAsked`                            ->  Arrow
    POST /v1/bulk/renew     MessagePack: the snapshot's text                    ->  MessagePack: null
    POST /v1/bulk/release   MessagePack: the snapshot's text                    ->  MessagePack: null
    POST /v1/bulk/stage     Arrow, with `StageAsked` in its schema's metadata   ->  MessagePack: `StageAnswer`

Arrow is a stream of Arrow's IPC format. What is read ends with a batch that has no rows, and in its metadata
either how many rows came before it or the error that ended it: without that batch it is not whole.
"""

from __future__ import annotations

import msgspec

from penstock.backends.bulk import Damage, Extent, Txn

PREFIX = "/v1/bulk/"
ARROW = "application/vnd.apache.arrow.stream"

#: Rows that are staged at once.
MOST_ROWS = 1_000_000
#: Metadata of the schema of rows that are staged: a `StageAsked`.
ASKED = b"penstock.stage"
#: Metadata of a batch that is read: what was set aside before it; of the last one how it ends.
TOLD, ENDED, FAILED = b"penstock.damage", b"penstock.rows", b"penstock.error"


class ReadAsked(msgspec.Struct, frozen=True, array_like=True):
    """The rows of a partition, but for the first ones, which came before the connection broke."""

    partition: str
    after_rows: int = 0


class PlanAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The texts of partitions, each with its estimated rows, and what there is."""

    partitions: tuple[tuple[str, int], ...]
    extents: dict[str, Extent]
    damage: tuple[Damage, ...] = ()


class StageAsked(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Some rows of a partition: where they belong, and how many they are."""

    ticket: str
    #: When the job began, where that is later than the ticket was given: batches of a stream share one.
    at_ns: int
    txn: Txn
    partition: int
    first_row: int
    rows: int


class StageAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The text of the part, and of its rows those that were refused, by their places in it, and why."""

    part: str
    rows: int
    refused: dict[int, str] = {}


def text_of(place: str) -> str:
    """What stands behind the URL."""
    return place.rpartition("#")[2]


decode_told = msgspec.msgpack.Decoder(list[Damage]).decode
