"""The one table of how servers of the Redis family differ."""

from __future__ import annotations

import msgspec


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """What one server of the family has of its own.

    `lacks` names features; `answers_as` the names under which it may answer. The rest are the values of
    settings that the configuration leaves out.
    """

    lacks: tuple[str, ...] = ()
    answers_as: tuple[str, ...] = ()
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 5.0
    write_timeout_s: float = 5.0
    pool_size: int = 20
    pipeline_size: int = 100
    compression: bool = False


#: KeyDB and Dragonfly use many threads, so that longer pipelines pay there. Dragonfly runs a script only
#: if every key is declared, and has no cluster bus of Redis's own kind.
DIFFERENCES: dict[str, Differences] = {
    "redis": Differences(answers_as=("redis",)),
    "valkey": Differences(answers_as=("valkey",)),
    "keydb": Differences(answers_as=("keydb",), lacks=("functions",), pipeline_size=1000),
    "dragonfly": Differences(
        answers_as=("dragonfly",), lacks=("functions", "wait", "aof"), pipeline_size=1000
    ),
}

#: Before these, a server lacks what the backends need: LMOVE, and streams that can be trimmed by id.
OLDEST = {"redis": (6, 2), "valkey": (7, 2), "keydb": (6, 3), "dragonfly": (1, 0)}
