"""What a random history is made of. Whoever picks (Hypothesis, or a seeded generator) decides the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from penstock import NewMessage, Retry
from penstock.message import STORED_STATES

T = TypeVar("T")

NAMES = ("a", "b/c:d", "dead é", "fifo")
IDS = tuple(f"018bcfe5-6800-7000-8000-00000000000{n}" for n in range(6))
UNKNOWN_ID = "018bcfe5-6800-7000-8000-ffffffffffff"
THROTTLES = ("t", "t/2 é", "never set")
THROTTLE_SETS = ((), (), ("t",), ("t", "never set"), ("t/2 é", "t"), ("t/2 é", "t/2 é"))
GARBAGE = ("", "not a receipt", "zz" * 28, "00" * 28, "0" * 55)

#: Queues; None: wherever the operation finds most to do.
_NAMES = ("a", "a", "a", "a", "fifo", "fifo", "dead é", "b/c:d")
_SOMEWHERE = (None, None, None, None, None, None, *NAMES)
_YES_ONCE_IN_EIGHT = (False, False, False, False, False, False, False, True)


class Pick(Protocol):
    def __call__(self, options: Sequence[T], /) -> T: ...


class Operation(NamedTuple):
    """A method of the simulation and its arguments."""

    what: str
    arguments: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.what}({', '.join(f'{key}={value!r}' for key, value in self.arguments.items())})"


def draw_operation(pick: Pick) -> Operation:
    what = pick(_BY_WEIGHT)
    return Operation(what, _OPERATIONS[what][1](pick))


def draw_throttled_operation(pick: Pick) -> Operation:
    """The same, but what is about tokens above all: buckets that fill again, and many that want them."""
    what = pick(_THROTTLED_BY_WEIGHT)
    return Operation(what, _THROTTLED[what][1](pick))


def draw_settings(pick: Pick) -> dict[str, object]:
    options: dict[str, Sequence[object]] = {
        "lease_s": (5, 30),
        "max_attempts": (1, 2, 3),
        "dead_letter": (None, "a", "dead é", "fifo"),
        "retention_s": (0, 20),
        "dead_retention_s": (None, 40),
        "dedup_window_s": (0, 15, 300),
        "journal_retention_s": (None, 30),
        "journal_max_bytes": (None, 600),
        "max_leased": (None, None, 1, 4),
        "max_leased_per_key": (None, None, 1, 3),
        "retry": (
            Retry(),
            Retry(delay_s=3),
            Retry(policy="list", delays_s=(1, 0, 5)),
            Retry(policy="exponential", delay_s=2, max_delay_s=5, jitter=False),
        ),
    }
    return {key: pick(values) for key, values in options.items() if pick((False, True))}


def _message(pick: Pick) -> NewMessage:
    return NewMessage(
        payload=pick((b"", b"one", b"two\0")),
        headers=pick(({}, {}, {"type": "é"})),
        fairness_key=pick(("", "", "k", "k/2")),
        weight=pick((1, 1, 3)),
        throttle_keys=pick(THROTTLE_SETS),
        priority=pick((4, 4, 4, 0, 9)),
        delay_s=pick((0, 0, 0, 1, 7)),
        ttl_s=pick((None, None, None, 3, 12)),
        dedup_id=pick((None, None, None, "d1", "d2")),
        id=pick((None, None, None, *IDS)),
    )


def _plain_message(pick: Pick) -> NewMessage:
    return NewMessage(
        payload=pick((b"", b"one")),
        fairness_key=pick(("", "k")),
        throttle_keys=pick(THROTTLE_SETS),
        ttl_s=pick((None, None, None, 3)),
        id=pick((None, None, *IDS)),
    )


def _bad_message(pick: Pick) -> NewMessage:
    return pick(
        (
            NewMessage(priority=10),
            NewMessage(weight=0),
            NewMessage(fairness_key="a\0b"),
            NewMessage(id="x"),
            NewMessage(throttle_keys=("",)),
        )
    )


def _batch(pick: Pick) -> list[NewMessage]:
    kinds = pick(((_message,), (_plain_message,), (_message, _plain_message, _bad_message)))
    return [pick(kinds)(pick) for _ in range(pick((1, 2, 3, 4, 5, 0)))]


def _produce(pick: Pick) -> dict[str, Any]:
    return {"name": pick(_NAMES), "batch": _batch(pick), "fault": pick(_YES_ONCE_IN_EIGHT)}


def _lease(pick: Pick) -> dict[str, Any]:
    return {
        "name": pick(_SOMEWHERE),
        "wanted": pick((1, 2, 3, 5, 8)),
        "lease_s": pick((None, None, 2, 10)),
        "consumer": pick(("", "w")),
        "fault": pick(_YES_ONCE_IN_EIGHT),
    }


def _hand_in(pick: Pick) -> dict[str, Any]:
    """Receipts are counted back from the latest; negative numbers are garbage."""
    receipts = (0, 0, 1, 2, 3, 4, 6, 9, 20, -1, -2, -3, -4, -5)
    return {
        "name": pick(_SOMEWHERE),
        "picks": [pick(receipts) for _ in range(pick((1, 2, 3, 4)))],
        "fault": pick(_YES_ONCE_IN_EIGHT),
    }


def _nack(pick: Pick) -> dict[str, Any]:
    return _hand_in(pick) | {"delay_s": pick((None, None, 0, 4)), "reason": pick(("", "why é"))}


def _move(pick: Pick) -> dict[str, Any]:
    return {
        "name": pick(_SOMEWHERE),
        "to": pick(_NAMES),
        "picks": [pick(range(40)) for _ in range(pick((1, 2, 3, 4)))],
        "fault": pick(_YES_ONCE_IN_EIGHT),
    }


def _redrive(pick: Pick) -> dict[str, Any]:
    return {
        "name": pick(_SOMEWHERE),
        "to": pick((None, None, None, "a", "fifo", "dead é")),
        "limit": pick((100, 100, 2, 1, 0)),
        "fault": pick(_YES_ONCE_IN_EIGHT),
    }


def _throttle(pick: Pick) -> dict[str, Any]:
    return {
        "key": pick(THROTTLES[:2]),
        "rate_per_s": pick((0, 0.3, 1, 7, 0.001)),
        "burst": pick((0, 1, 1, 2, 5)),
        "delete": pick((False, False, True)),
        "fault": pick(_YES_ONCE_IN_EIGHT),
    }


def _cursor(pick: Pick) -> dict[str, Any]:
    return {"name": pick(_NAMES), "cursor": pick(("x", "y"))}


def _some_queues(pick: Pick) -> set[str] | None:
    return {name for name in NAMES if pick((True, False))} if pick((False, True)) else None


#: Weight and arguments of every operation.
_OPERATIONS: dict[str, tuple[int, Callable[[Pick], dict[str, Any]]]] = {
    "enqueue": (7, _produce),
    "upsert": (2, _produce),
    "lease": (9, _lease),
    "ack": (3, _hand_in),
    "nack": (4, _nack),
    "reject": (2, lambda pick: _hand_in(pick) | {"reason": pick(("", "why é"))}),
    "extend": (2, lambda pick: _hand_in(pick) | {"lease_s": pick((2, 20))}),
    "move": (2, _move),
    "redrive": (2, _redrive),
    "purge": (
        1,
        lambda pick: {
            "name": pick(_NAMES),
            "state": pick((None, *STORED_STATES)),
            "fault": pick(_YES_ONCE_IN_EIGHT),
        },
    ),
    "throttle": (2, _throttle),
    "advance": (4, lambda pick: {"seconds": pick((0.001, 0.5, 1, 3, 6, 10, 31, 45, 400))}),
    "sweep": (2, lambda pick: {"fault": pick(_YES_ONCE_IN_EIGHT)}),
    "close_and_reopen": (1, lambda pick: {}),
    "open_cursor": (1, lambda pick: _cursor(pick) | {"required": pick((False, True))}),
    "commit_cursor": (1, lambda pick: _cursor(pick) | {"back": pick(range(-1, 12))}),
    "read_cursor": (1, lambda pick: _cursor(pick) | {"limit": pick((1, 3, 1000))}),
    "drop_cursor": (1, _cursor),
    "create": (
        1,
        lambda pick: {
            "name": pick(_NAMES),
            "settings": draw_settings(pick),
            "fifo": pick((False, True)),
        },
    ),
    "update": (2, lambda pick: {"name": pick(_NAMES), "settings": draw_settings(pick)}),
    "delay": (
        2,
        lambda pick: {"name": pick(("fifo", "fifo", "fifo", "a")), "delay_s": pick((0, 0, 2, 5, 20))},
    ),
    "delete_or_replace": (1, lambda pick: {"name": pick(_NAMES), "keep": _some_queues(pick)}),
    "look_around": (
        1,
        lambda pick: {
            "name": pick(_NAMES),
            "n": pick(range(40)),
            "limit": pick((1, 2, 3)),
            "state": pick(STORED_STATES),
        },
    ),
    "look": (1, lambda pick: {}),
}
_BY_WEIGHT = [what for what, (weight, _) in _OPERATIONS.items() for _ in range(weight)]


# -- what is about tokens -------------------------------------------------------------------------------

_BUSY = ("a", "a", "fifo")
_WANTED = ((), ("t",), ("t/2 é",), ("t", "t/2 é"), ("t/2 é", "t"), ("t", "never set"), THROTTLES)


def _throttled_batch(pick: Pick) -> dict[str, Any]:
    batch = [
        NewMessage(
            fairness_key=pick(("", "k", "k/2", "k/3")),
            weight=pick((1, 1, 1, 3)),
            throttle_keys=pick(_WANTED),
            priority=pick((4, 4, 4, 9)),
            ttl_s=pick((None,) * 7 + (3,)),
            id=pick((None, None, None, *IDS)),
        )
        for _ in range(pick((1, 2, 5)))
    ]
    return {"name": pick(_BUSY), "batch": batch, "fault": pick(_YES_ONCE_IN_EIGHT)}


#: Weight and arguments, by operation: those that need no others come as they are elsewhere.
_THROTTLED: dict[str, tuple[int, Callable[[Pick], dict[str, Any]]]] = {
    "enqueue": (8, _throttled_batch),
    "upsert": (1, _throttled_batch),
    "lease": (14, lambda pick: _lease(pick) | {"name": pick(_BUSY), "lease_s": pick((1000, 1000, 2))}),
    "ack": (7, _hand_in),
    "nack": (3, _nack),
    "move": (2, _move),
    "throttle": (
        2,
        lambda pick: _throttle(pick) | {"rate_per_s": pick((0.3, 1, 1, 7)), "burst": pick((1, 1, 2))},
    ),
    "advance": (9, lambda pick: {"seconds": pick((0.001, 0.1, 0.5, 0.5, 1, 1, 3))}),
    "update": (
        1,
        lambda pick: {
            "name": pick(_BUSY),
            "settings": {"max_leased": pick((None, None, 4)), "max_leased_per_key": pick((None, None, 1, 2))},
        },
    ),
    "purge": (1, lambda pick: {"name": pick(_BUSY), "state": None, "fault": pick(_YES_ONCE_IN_EIGHT)}),
    "close_and_reopen": (1, lambda pick: {}),
}
_THROTTLED_BY_WEIGHT = [what for what, (weight, _) in _THROTTLED.items() for _ in range(weight)]
