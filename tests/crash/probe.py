"""Opens and uses a store in a process of its own, and says how far it came.

A hang or a crash of the interpreter then is an answer too.
"""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

import penstock
from penstock import NewMessage, Penstock, PenstockError, QueueAlreadyExists
from tests.crash.clocks import now_clock

NOBODY = 65534


class ProbeOrder(msgspec.Struct, tag="probe", kw_only=True):
    """`look` opens, checks and uses a store; `fill` works until files may not grow any more."""

    what: Literal["look", "fill"]
    path: str
    answer: str
    unprivileged: bool = False
    limit_bytes: int = 0
    size_bytes: int = 0
    durability: str = "sync"


class Answer(msgspec.Struct, kw_only=True):
    """Which step failed, and how; `done` if none did."""

    step: str
    error: str = ""
    text: str = ""
    is_storage_error: bool = False
    messages: int = 0
    problems: list[str] = []
    #: What a repair left.
    left: list[str] = []
    #: What the filler was told before the disk was full: ids stored, and ids acked.
    stored: list[str] = []
    acked: list[str] = []
    retry_error: str = ""
    health: str = ""


class _Steps:
    def __init__(self) -> None:
        self.answer = Answer(step="open")

    def fail(self, error: Exception) -> None:
        self.answer.error, self.answer.text = type(error).__name__, str(error)
        self.answer.is_storage_error = isinstance(error, penstock.StorageError)


def _look(steps: _Steps, path: str) -> None:
    answer = steps.answer
    system = penstock.open(path, clock=now_clock())
    answer.step = "check"
    report = system.check()
    answer.messages, answer.problems = report.messages, [problem.what for problem in report.problems]
    if report.problems:
        answer.step = "repair"
        system.check(repair=True)
        answer.left = [problem.what for problem in system.check().problems]
    answer.step = "use"
    for settings in system.queues():
        queue = system.queue(settings.name)
        queue.ack([delivery.receipt for delivery in queue.lease(5)])
        queue.enqueue(b"another")
        assert sum(1 for _ in queue.iter()) == queue.length() + queue.stats().done + queue.stats().dead
        queue.events(limit=1_000_000)
    answer.step = "close"
    system.sweep()
    system.close()
    answer.step = "done"


def _fill(steps: _Steps, order: ProbeOrder) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (order.limit_bytes, resource.RLIM_INFINITY))
    system = penstock.open(f"rocksdb:{order.path}?durability={order.durability}&mode=low_space")
    try:
        _fill_queue(steps.answer, system, order.size_bytes)
    except PenstockError as error:
        steps.fail(error)
        steps.answer.health = system.health().status
        try:
            system.state.put("another", b"try")
        except PenstockError as again:
            steps.answer.retry_error = type(again).__name__
    system.close()


def _fill_queue(answer: Answer, system: Penstock, size_bytes: int) -> None:
    answer.step = "create"
    try:
        queue = system.create_queue("q")
    except QueueAlreadyExists:
        queue = system.queue("q")
    while True:
        answer.step = "enqueue"
        results = queue.enqueue_many([NewMessage(bytes(size_bytes)) for _ in range(5)])
        answer.stored += [result.id for result in results if result.id is not None]
        answer.step = "lease"
        deliveries = queue.lease(1)
        answer.step = "ack"
        outcomes = queue.ack([delivery.receipt for delivery in deliveries])
        answer.acked += [d.id for d, outcome in zip(deliveries, outcomes, strict=True) if outcome.ok]


def run(order: ProbeOrder) -> None:
    """In a process that ends with it: limits and rights are not given back."""
    steps = _Steps()
    answer = os.open(order.answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    if order.unprivileged and os.geteuid() == 0:
        # What is imported when a store is used may lie where nobody but root can read it later.
        with tempfile.TemporaryDirectory() as folder:
            _look(_Steps(), folder)
        os.setgroups([])  # Permissions do not bind root.
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        if order.what == "look":
            _look(steps, order.path)
        else:
            _fill(steps, order)
    except Exception as error:  # noqa: BLE001  # whatever it is, the test judges it
        steps.fail(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.write(answer, msgspec.json.encode(steps.answer))


def read_answer(order: ProbeOrder) -> Answer:
    return msgspec.json.decode(Path(order.answer).read_bytes(), type=Answer)
