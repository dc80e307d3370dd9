"""Handlers that worker processes import. A payload is a JSON object that says what to do."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import Delivery, Reject, RetryLater
from penstock.worker import context

#: Only a test that fails waits so long.
LIMIT_S = 30.0


def order(**what: Any) -> bytes:
    """A payload for `obey`."""
    return json.dumps(
        {key: str(value) if isinstance(value, Path) else value for key, value in what.items()}
    ).encode()


def note(path: str, line: str) -> None:
    """Append a line: one write, so that lines of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def notes(path: Path) -> list[str]:
    """The lines that are there, without one that is being written."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


def obey(delivery: Delivery) -> None:
    """Note that it starts, do what the payload says, note that it ends."""
    todo = json.loads(delivery.payload)
    log = todo.get("log")
    if log:
        note(log, f"start {delivery.id} {delivery.attempts} {os.getpid()}")
    _do(todo, delivery)
    if log:
        note(log, f"end {delivery.id} {delivery.attempts} {os.getpid()}")


def _do(todo: dict[str, Any], delivery: Delivery) -> None:
    if "do" in todo:
        DEEDS[todo["do"]](todo, delivery)


Todo = dict[str, Any]


def _fail(todo: Todo, delivery: Delivery) -> None:
    raise ValueError("no such product")


def _reject(todo: Todo, delivery: Delivery) -> None:
    raise Reject("unknown product")


def _retry(todo: Todo, delivery: Delivery) -> None:
    raise RetryLater(3600, "the shop is closed")


def _reject_with_an_error(todo: Todo, delivery: Delivery) -> None:
    try:
        _fail(todo, delivery)
    except ValueError as error:
        raise Reject(error) from error


def _retry_with_a_number(todo: Todo, delivery: Delivery) -> None:
    raise RetryLater(3600, reason=503)


class _Strange(RetryLater):
    """An error that nobody can look at, with a delay that no queue takes."""

    def __init__(self) -> None:
        self.delay_s = [1.0]  # type: ignore[assignment]

    def __str__(self) -> str:
        raise RuntimeError("no text")


def _fail_strangely(todo: Todo, delivery: Delivery) -> None:
    raise _Strange


def _kill(todo: Todo, delivery: Delivery) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _start_a_program(todo: Todo, delivery: Delivery) -> None:
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note(todo["pids"], str(program.pid))
    program.wait()


def _wait_until_lost(todo: Todo, delivery: Delivery) -> None:
    while not context().lost:
        threading.Event().wait(0.005)


def _wait_until_stopping(todo: Todo, delivery: Delivery) -> None:
    while not context().stopping:
        threading.Event().wait(0.005)


def _be_signalled(todo: Todo, delivery: Delivery) -> None:
    """The system hands the signal to this thread, so that it interrupts no wait of the main one."""
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    _wait_until_stopping(todo, delivery)


def _the_first_time(deed: Callable[[Todo, Delivery], object]) -> Callable[[Todo, Delivery], object]:
    return lambda todo, delivery: deed(todo, delivery) if delivery.attempts == 1 else None


DEEDS: dict[str, Callable[[Todo, Delivery], object]] = {
    "burn": lambda todo, _: burn(todo["for_s"]),
    "burn holding the interpreter": lambda todo, _: hold_interpreter(todo["for_s"]),
    "sleep": lambda todo, _: threading.Event().wait(todo["for_s"]),
    "sleep first": _the_first_time(lambda todo, _: threading.Event().wait(todo["for_s"])),
    "wait": lambda todo, _: wait_for(Path(todo["file"])),
    "fail": _fail,
    "fail first": _the_first_time(_fail),
    "reject": _reject,
    "retry": _retry,
    "reject with an error": _reject_with_an_error,
    "retry with a number": _retry_with_a_number,
    "fail strangely": _fail_strangely,
    "kill": _kill,
    "kill first": _the_first_time(_kill),
    "exit": lambda todo, _: os._exit(7),
    "exit politely": lambda todo, _: sys.exit("enough"),
    "start a program": _start_a_program,
    "wait until lost": _wait_until_lost,
    "wait until stopping": _wait_until_stopping,
    "be signalled": _be_signalled,
}


def obey_all(deliveries: list[Delivery]) -> list[BaseException | None]:
    """A batch: each of its own."""
    answers: list[BaseException | None] = []
    for delivery in deliveries:
        try:
            obey(delivery)
        except (ValueError, Reject, RetryLater) as error:
            answers.append(error)
        else:
            answers.append(None)
    return answers


def burn(for_s: float) -> None:
    """Pure Python that never waits."""
    until_s, sums = time.monotonic() + for_s, 0
    while time.monotonic() < until_s:
        sums += sum(range(1000))


def hold_interpreter(for_s: float) -> None:
    """C code that keeps the interpreter's lock: no other thread of the process runs meanwhile."""
    ctypes.PyDLL(None).usleep(round(for_s * 1_000_000))


def wait_for(path: Path) -> None:
    until_s, pause = time.monotonic() + LIMIT_S, threading.Event()
    while not path.exists():
        assert time.monotonic() < until_s, f"{path} did not come"
        pause.wait(0.005)


def digest(delivery: Delivery) -> None:
    """Some work, for a load."""
    hashlib.sha256(delivery.payload).digest()
    log = delivery.headers["log"]
    note(log, f"end {delivery.id} {delivery.attempts} {os.getpid()}")
