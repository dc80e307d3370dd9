"""Receipt handles: a receipt, and which queue it is of, so that a handle works on no other."""

from __future__ import annotations

from zlib import crc32

from penstock.message import parse_receipt
from penstock.server.sqs.errors import SqsError


def handle(receipt: str, queue: str) -> str:
    return receipt + _mark(queue)


def receipt(handle: str, queue: str) -> str:
    """`ReceiptHandleIsInvalid` for what was never a handle of the queue."""
    found = handle[:-8]
    if handle[-8:] != _mark(queue) or parse_receipt(found) is None:
        raise SqsError(
            "ReceiptHandleIsInvalid", "The input receipt handle is not a valid receipt handle of this queue."
        )
    return found


def _mark(queue: str) -> str:
    return f"{crc32(queue.encode('utf-8', 'surrogatepass')):08x}"
