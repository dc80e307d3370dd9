"""Key layout of the embedded backend; nothing else builds keys.

Numbers are big-endian, variable parts carry their length: no name can leak into another's range.
Every key starts with its queue's number, but for the due-time index (what, then time) and `meta`.
"""

from __future__ import annotations

import enum
import functools
import hashlib

SPACES = ("messages", "ready", "state", "due", "dedup", "journal", "entries", "held", "meta")

ORDER_AND_ID_BYTES = 24


class StateCode(enum.IntEnum):
    """States as stored. GONE: removed, body kept because a required cursor has not read so far."""

    DELAYED = 0
    READY = 1
    LEASED = 2
    DONE = 3
    DEAD = 4
    GONE = 5


class Due(enum.IntEnum):
    """What falls due. Each kind is a range of its own: a pile of one never hides another."""

    LEASE = 1
    DELAY = 2
    TTL = 3
    RETENTION = 4
    DEDUP = 5
    #: Messages that wait for their queue's delay: by queue and place, for it says when they are due.
    LINE = 6


class Meta(enum.IntEnum):
    """What a row of `meta` is, the first byte of its key."""

    FORMAT = 1
    QUEUE = 2
    COUNTERS = 3
    WORLD = 4
    CURSOR = 5
    USER_STATE = 6
    JOB = 7
    LANE_HINT = 8
    DUE_HINT = 9
    NEXT_NUMBER = 10
    OPENINGS = 11
    KEYS = 12
    SECRET = 13
    REKEY = 14
    QUARANTINE = 15
    REINDEX = 16
    CALL = 17
    THROTTLE = 18
    LOAD = 19
    TXN = 20


def u16(n: int) -> bytes:
    return n.to_bytes(2, "big")


def u32(n: int) -> bytes:
    return n.to_bytes(4, "big")


def u64(n: int) -> bytes:
    return n.to_bytes(8, "big")


def after_prefix(prefix: bytes) -> bytes | None:
    """The first key after every key that starts with `prefix`; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


@functools.lru_cache(maxsize=4096)
def lane(priority: int, fairness_key: bytes, throttle_keys: tuple[bytes, ...]) -> bytes:
    """What ready messages are grouped by; goes between queue and order in a ready key."""
    throttle = b"".join(u16(len(key)) + key for key in sorted(set(throttle_keys)))
    return bytes((9 - priority,)) + u16(len(fairness_key)) + fairness_key + u16(len(throttle)) + throttle


def lane_priority(lane_bytes: bytes) -> int:
    return 9 - lane_bytes[0]


def lane_fairness_bytes(lane_bytes: bytes) -> bytes:
    return lane_bytes[3 : 3 + int.from_bytes(lane_bytes[1:3], "big")]


def lane_fairness_key(lane_bytes: bytes) -> str:
    return lane_fairness_bytes(lane_bytes).decode()


def lane_throttle_keys(lane_bytes: bytes) -> list[str]:
    at = 5 + int.from_bytes(lane_bytes[1:3], "big")
    found = []
    while at < len(lane_bytes):
        end = at + 2 + int.from_bytes(lane_bytes[at : at + 2], "big")
        found.append(lane_bytes[at + 2 : end].decode(errors="replace"))
        at = end
    return found


def lanes_of_key(priority: int, fairness_key: bytes) -> bytes:
    """The common start of every lane of a fairness key at a priority."""
    return bytes((9 - priority,)) + u16(len(fairness_key)) + fairness_key


def message(qid: int, raw_id: bytes) -> bytes:
    return u32(qid) + raw_id


def ready(qid: int, lane_bytes: bytes, order_ns: int, raw_id: bytes) -> bytes:
    return u32(qid) + lane_bytes + u64(order_ns) + raw_id


def state(qid: int, code: int, raw_id: bytes) -> bytes:
    return u32(qid) + bytes((code,)) + raw_id


def state_prefix(qid: int, code: int) -> bytes:
    return u32(qid) + bytes((code,))


def due(what: int, at_ns: int, qid: int, raw_id: bytes) -> bytes:
    if what == Due.LINE:
        return line(qid, at_ns, raw_id)
    return bytes((what,)) + u64(at_ns) + u32(qid) + raw_id


def due_prefix(what: int, at_ns: int, qid: int) -> bytes:
    return bytes((what,)) + u64(at_ns) + u32(qid)


def line(qid: int, order_ns: int, raw_id: bytes) -> bytes:
    """What waits for its queue's delay; its time is its place in line."""
    return bytes((Due.LINE,)) + u32(qid) + u64(order_ns) + raw_id


def line_prefix(qid: int) -> bytes:
    return bytes((Due.LINE,)) + u32(qid)


def due_number(key: bytes) -> int:
    """The number of a due row's queue."""
    return int.from_bytes(key[1:5] if key[0] == Due.LINE else key[9:13], "big")


def parse_due(key: bytes) -> tuple[int, int, int, bytes]:
    """(what, time, queue number, id or dedup hash)"""
    if key[0] == Due.LINE:
        return key[0], int.from_bytes(key[5:13], "big"), int.from_bytes(key[1:5], "big"), key[13:]
    return (
        key[0],
        int.from_bytes(key[1:9], "big"),
        int.from_bytes(key[9:13], "big"),
        key[13:],
    )


def dedup(qid: int, dedup_id: str, secret: bytes) -> bytes:
    """A hash, so that keys have one length and dedup ids are not readable in them.

    With the store's secret, they cannot be guessed and compared either; a store from before has none: b"".
    """
    return u32(qid) + hashlib.blake2b(dedup_id.encode(), digest_size=16, key=secret).digest()


def journal(number: int, last_seq: int) -> bytes:
    return u32(number) + u64(last_seq)


def held(number: int, seq: int, raw_id: bytes) -> bytes:
    return u32(number) + u64(seq) + raw_id


def meta(kind: int, rest: bytes = b"") -> bytes:
    return bytes((kind,)) + rest


def cursor(number: int, name: bytes) -> bytes:
    return bytes((Meta.CURSOR,)) + u32(number) + name


def lane_hint(qid: int, lane_bytes: bytes) -> bytes:
    return bytes((Meta.LANE_HINT,)) + u32(qid) + lane_bytes
