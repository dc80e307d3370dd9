"""What the servers of a store have in memory, and what they may have."""

from __future__ import annotations

from typing import NamedTuple

from penstock.backends.redis.connecting import Server
from penstock.backends.redis.profiles import parse_info
from penstock.errors import PenstockError


class Memory(NamedTuple):
    """Of all servers together; `ratio` is that of the fullest one. None: no limit, or nothing is told."""

    used_bytes: int | None = None
    limit_bytes: int | None = None
    ratio: float | None = None


def memory_of(server: Server) -> Memory:
    try:
        told = [parse_info(one) for one in server.everywhere("INFO", "memory")]
        used = [int(one["used_memory"]) for one in told]
        limits = [int(one.get("maxmemory", 0)) for one in told]
    except (PenstockError, KeyError, ValueError):
        return Memory()
    ratios = [has / most for has, most in zip(used, limits, strict=True) if most]
    return Memory(sum(used), sum(limits) if all(limits) else None, max(ratios, default=None))
