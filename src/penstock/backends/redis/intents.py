"""What a transfer between queues of a cluster is, as it is written down where it starts."""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.backends.redis.transferring import flags_of
from penstock.errors import StorageCorrupt

#: Before what was written down: when.
TIME_BYTES = 8
#: kind, flags, number of the target, bytes of its name
_HEAD = struct.Struct(">BBIH")
_COUNT = struct.Struct(">I")


class Intent(NamedTuple):
    """What a transfer is, as it is written down at its source."""

    kind: int
    target: str
    number: int
    ids: list[bytes]
    #: As the source's journal is to have them.
    reasons: list[bytes]


def encode_intent(intent: Intent) -> bytes:
    name = intent.target.encode()
    return b"".join(
        (
            _HEAD.pack(intent.kind, flags_of(intent.kind), intent.number, len(name)),
            name,
            _COUNT.pack(len(intent.ids)),
            *intent.ids,
            *(_COUNT.pack(len(reason)) for reason in intent.reasons),
            *intent.reasons,
        )
    )


def decode_intent(raw: bytes) -> Intent:
    try:
        kind, _, number, size = _HEAD.unpack_from(raw)
        at = _HEAD.size + size
        target = raw[_HEAD.size : at].decode()
        (count,) = _COUNT.unpack_from(raw, at)
        at += _COUNT.size
        ids = [raw[i : i + 16] for i in range(at, at + 16 * count, 16)]
        at += 16 * count
        sizes = struct.unpack_from(f">{count}I", raw, at)
        at += 4 * count
        reasons = []
        for length in sizes:
            reasons.append(raw[at : at + length])
            at += length
    except (struct.error, UnicodeDecodeError) as error:
        raise StorageCorrupt(f"a transfer that was written down does not decode: {error}") from error
    return Intent(kind, target, number, ids, reasons)
