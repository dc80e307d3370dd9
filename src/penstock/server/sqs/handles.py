"""Receipt handles: a receipt, of which receive and when, and of which queue: a handle works on no other."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from penstock.clock import NS_PER_S
from penstock.message import Delivery, parse_receipt
from penstock.server.sqs.errors import SqsError

_HANDLE = re.compile(r"(.+)([0-9a-f]{8})([0-9a-f]{10})([0-9a-f]{8})", re.ASCII)


class Handle(NamedTuple):
    """What a handle says."""

    receipt: str
    #: Of the message.
    raw_id: bytes
    #: The how manieth receive of its message it is from.
    attempts: int
    received_at_s: int


def handle(one: Delivery) -> str:
    return f"{one.receipt}{one.attempts:08x}{one.leased_at_ns // NS_PER_S:010x}{_mark(one.queue)}"


def parsed(text: str, queue: str) -> Handle:
    """`ReceiptHandleIsInvalid` for what was never a handle of the queue."""
    match = _HANDLE.fullmatch(text)
    receipt = match and parse_receipt(match[1])
    if match is None or receipt is None or match[4] != _mark(queue):
        raise SqsError(
            "ReceiptHandleIsInvalid", "The input receipt handle is not a valid receipt handle of this queue."
        )
    return Handle(match[1], receipt[0], int(match[2], 16), int(match[3], 16))


@lru_cache(maxsize=1024)
def _mark(queue: str) -> str:
    return f"{crc32(queue.encode('utf-8', 'surrogatepass')):08x}"
