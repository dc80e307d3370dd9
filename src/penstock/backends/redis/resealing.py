"""What a rekeying makes of stored bytes: records and frames with other reasons, all else as it was."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

from penstock.backends.redis.records import ATTEMPTS, DIGITS, DUE, HEAD, RUN, TEXTS, split_texts
from penstock.errors import StorageCorrupt

#: Another reason for one of a message.
Replace = Callable[[bytes, bytes], bytes]

_KEY_LENGTH_AT = 71
_REASONS = TEXTS[1]


def _reason_at(record: bytes) -> int:
    """Where the length of a state record's reason stands."""
    consumer_at = _KEY_LENGTH_AT + 2 + int.from_bytes(record[_KEY_LENGTH_AT : _KEY_LENGTH_AT + 2], "big")
    return consumer_at + 2 + int.from_bytes(record[consumer_at : consumer_at + 2], "big")


def reason_of(record: bytes) -> bytes | None:
    """None for a record that is damaged."""
    at = _reason_at(record)
    reason = record[at + 4 :]
    whole = len(record) >= at + 4 and int.from_bytes(record[at : at + 4], "big") == len(reason)
    return reason if whole else None


def with_reason(record: bytes, reason: bytes) -> bytes:
    return record[: _reason_at(record)] + len(reason).to_bytes(4, "big") + reason


def with_reasons(frame: bytes, replace: Replace) -> bytes:
    """A frame of a journal with every reason replaced; the very same bytes if none is another."""
    at, end = HEAD.size, len(frame) - DIGITS
    runs = [frame[: HEAD.size]]
    try:
        while at < end:
            run, size = _run(frame, at, replace)
            runs.append(run)
            at += size
    except struct.error as error:
        raise StorageCorrupt(f"journal frame of {len(frame)} bytes does not decode: {error}") from error
    whole = b"".join(runs)
    if whole == frame[:-DIGITS]:
        return frame
    return whole + hashlib.sha1(whole, usedforsecurity=False).hexdigest()[:DIGITS].encode()


def _run(frame: bytes, start: int, replace: Replace) -> tuple[bytes, int]:
    """A run with other reasons, and how many bytes it had."""
    code, columns, rows, at_us, attempt, due_us, consumer, reason, extra = RUN.unpack_from(frame, start)
    ids_at = start + RUN.size
    numbers = 16 + (4 if columns & ATTEMPTS else 0) + (8 if columns & DUE else 0)
    reason_at = ids_at + numbers * rows + consumer
    end = reason_at + reason + extra
    blob = frame[reason_at : reason_at + reason]
    old = split_texts(blob, rows) if columns & _REASONS else [blob] * rows
    new = [replace(frame[ids_at + 16 * i : ids_at + 16 * i + 16], text) for i, text in enumerate(old)]
    if new == old:
        return frame[start:end], end - start
    columns &= ~_REASONS
    blob = new[0]
    if any(text != blob for text in new):
        columns |= _REASONS
        blob = struct.pack(f">{rows}I", *map(len, new)) + b"".join(new)
    head = RUN.pack(code, columns, rows, at_us, attempt, due_us, consumer, len(blob), extra)
    return head + frame[ids_at:reason_at] + blob + frame[reason_at + reason : end], end - start
