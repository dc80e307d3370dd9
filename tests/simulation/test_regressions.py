"""Short histories that once went wrong, as the walks found them and shortened them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import NewMessage
from tests.simulation.operations import IDS, Operation
from tests.simulation.stores import MemorySimulation, RocksSimulation
from tests.simulation.system import Simulation

A, B = IDS[0], IDS[1]
DEAD = "dead é"


def op(what: str, **arguments: Any) -> Operation:
    return Operation(what, arguments)


def enqueue(name: str, *batch: NewMessage) -> Operation:
    return op("enqueue", name=name, batch=list(batch), fault=False)


def upsert(name: str, *batch: NewMessage) -> Operation:
    return op("upsert", name=name, batch=list(batch), fault=False)


def lease(name: str | None = None, wanted: int = 8, lease_s: float | None = None) -> Operation:
    return op("lease", name=name, wanted=wanted, lease_s=lease_s, consumer="w", fault=False)


def ack(*picks: int) -> Operation:
    return op("ack", name="fifo", picks=list(picks), fault=False)


def throttle(key: str, rate_per_s: float, burst: int) -> Operation:
    return op("throttle", key=key, rate_per_s=rate_per_s, burst=burst, delete=False, fault=False)


def reject(*picks: int) -> Operation:
    return op("reject", name=None, picks=list(picks or (0,)), reason="bad", fault=False)


def nack(delay_s: float | None = None) -> Operation:
    return op("nack", name=None, picks=[0], delay_s=delay_s, reason="", fault=False)


def redrive(name: str, limit: int = 100) -> Operation:
    return op("redrive", name=name, to=None, limit=limit, fault=False)


def advance(seconds: float) -> Operation:
    return op("advance", seconds=seconds)


LOOK, SWEEP, REOPEN = op("look"), op("sweep", fault=False), op("close_and_reopen")

HISTORIES: dict[str, list[Operation]] = {
    "a delay that has passed is counted after reopening": [
        enqueue("a", NewMessage(delay_s=1)),
        advance(2),
        SWEEP,
        REOPEN,
        lease("a"),
    ],
    "a nacked message blocks its fifo key while it is delayed": [
        enqueue("fifo", NewMessage(b"1"), NewMessage(b"2")),
        lease("fifo"),
        nack(delay_s=10),
        lease("fifo"),
        advance(10),
        lease("fifo"),
    ],
    "a delay that is set, changed and taken away counts for what waits, and nothing overtakes it": [
        op("delay", name="fifo", delay_s=5),
        enqueue("fifo", NewMessage(b"1"), NewMessage(b"2")),
        advance(3),
        op("delay", name="fifo", delay_s=20),
        enqueue("fifo", NewMessage(b"3", id=A)),
        advance(6),
        REOPEN,
        op("delay", name="fifo", delay_s=2),
        op("delay", name="fifo", delay_s=0),
        enqueue("fifo", NewMessage(b"4")),
        *([lease("fifo"), ack(0)] * 4),
        LOOK,
    ],
    "the age of the oldest is known though its lane was empty before": [
        enqueue("a", NewMessage(b"a1")),
        lease("a", 1),
        enqueue("a", NewMessage(b"b1", priority=9)),
        LOOK,
        enqueue("a", NewMessage(b"a2")),
        lease("a", 1),
        advance(5),
        LOOK,
    ],
    "a message dies twice though a cursor still holds its first burial": [
        op("open_cursor", name=DEAD, cursor="x", required=True),
        enqueue("a", NewMessage()),
        lease("a"),
        reject(),
        redrive(DEAD),
        lease("a"),
        reject(),
        LOOK,
    ],
    "an expired message does not keep the place that its id had": [
        enqueue("a", NewMessage(b"1", ttl_s=3, id=A)),
        advance(6),
        enqueue("a", NewMessage(b"2", id=A)),
        LOOK,
    ],
    "an expired message whose dedup id is remembered is gone altogether": [
        enqueue("a", NewMessage(b"1", ttl_s=3, id=A, dedup_id="d1")),
        advance(31),
        enqueue("a", NewMessage(b"2", id=A, dedup_id="d1"), NewMessage(b"3", delay_s=1)),
        LOOK,
    ],
    "an expired message in the dead-letter queue is no obstacle to a lease that ends": [
        op("update", name="a", settings={"max_attempts": 1}),
        enqueue(DEAD, NewMessage(ttl_s=3, id=A)),
        enqueue("a", NewMessage(id=A)),
        lease("a", lease_s=2),
        advance(6),
        lease("a"),
        LOOK,
    ],
    "a mended dead letter can still be redriven": [
        enqueue("a", NewMessage(b"bad", id=A)),
        lease("a"),
        reject(),
        upsert(DEAD, NewMessage(b"good", id=A)),
        redrive(DEAD),
        lease("a"),
    ],
    "a dead letter that cannot go does not hold up the others": [
        enqueue("a", NewMessage(id=A), NewMessage(id=B)),
        lease("a"),
        reject(1, 0),
        enqueue("a", NewMessage(id=A)),
        redrive(DEAD, limit=1),
        LOOK,
    ],
    "a message that was redriven and replaced became visible when it was redriven": [
        op("update", name="a", settings={"dead_letter": None}),
        enqueue("a", NewMessage(id=A)),
        lease("a"),
        reject(),
        advance(0.5),
        redrive("a"),
        upsert("a", NewMessage(b"new", id=A)),
    ],
    "a repeated id that cannot be moved is answered twice alike": [
        enqueue("a", NewMessage(id=A)),
        enqueue(DEAD, NewMessage(id=A)),
        op("move", name="a", to=DEAD, picks=[0, 0], fault=False),
    ],
    "a lease extended twice in one call is extended": [
        enqueue("a", NewMessage()),
        lease("a"),
        op("extend", name=None, picks=[0, 0], lease_s=20, fault=False),
    ],
    "of two messages of one id the one whose lease ends first has the place among the dead": [
        op("update", name="a", settings={"max_attempts": 1}),
        op("update", name="fifo", settings={"max_attempts": 1, "dead_letter": DEAD}),
        enqueue("a", NewMessage(id=B), NewMessage(b"later", id=A)),
        enqueue("fifo", NewMessage(b"sooner", id=A)),
        lease("a", 1, lease_s=2),
        lease("fifo", lease_s=5),
        lease("a", lease_s=10),
        advance(31),
        SWEEP,
    ],
    "a fifo key whose only message waited for a token gets it": [
        throttle("t", 1, 1),
        enqueue("fifo", NewMessage(throttle_keys=("t",)), NewMessage(fairness_key="k", throttle_keys=("t",))),
        lease("fifo"),
        advance(1),
        lease("fifo"),
    ],
    "a fifo key is free of a token that the message before needed": [
        throttle("t", 1, 1),
        *(
            enqueue("fifo", NewMessage(fairness_key=key, throttle_keys=("t",)), NewMessage(fairness_key=key))
            for key in ("k", "k/2")
        ),
        lease("fifo"),
        *(
            operation
            for _ in range(2)
            for operation in (advance(1), lease("fifo"), ack(0, 1), lease("fifo"), ack(0, 1), lease("fifo"))
        ),
    ],
    "a store can be reopened after it has refused something": [
        enqueue("a", NewMessage(priority=10), NewMessage(id="x")),
        upsert("a", NewMessage(weight=0)),
        op("move", name="a", to=DEAD, picks=[7], fault=False),
        REOPEN,
    ],
}


@pytest.mark.parametrize("simulated", [MemorySimulation, RocksSimulation])
@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_that_once_went_wrong_agrees_with_the_model(name: str, simulated: type[Simulation]) -> None:
    simulation = simulated()
    try:
        for operation in HISTORIES[name]:
            simulation.do(operation)
        simulation.look()
    finally:
        simulation.close()
