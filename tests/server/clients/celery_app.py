"""A Celery app as its users write one: tasks that leave files behind; the environment names its broker."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_ready

RESULTS = Path(os.environ["RESULTS"])
COUNTDOWN_S = 2

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.update(
    task_default_queue="work",
    task_ignore_result=True,
    task_routes={"*.long": {"queue": "late"}, "*.slow": {"queue": "late"}},
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "is_secure": False,
        "region": "us-east-1",
        "visibility_timeout": 120,
        "wait_time_seconds": 1,
        "polling_interval": 0.1,
    },
    # Over SQS it needs SNS, which is another service.
    worker_enable_remote_control=False,
)


def note(name: str) -> None:
    """That it was done, by whom and when: a file of its own each time, so that twice can be seen."""
    (RESULTS / f"{name}.{uuid.uuid4().hex}.new").write_text(f"{os.getpid()} {time.monotonic()}")
    for path in RESULTS.glob(f"{name}.*.new"):
        path.rename(path.with_suffix(".done"))


@worker_ready.connect
def ready(**_: Any) -> None:
    note("ready")


@app.task
def short(number: int) -> None:
    note(f"short-{number}")


@app.task
def later() -> None:
    note("later")


@app.task(bind=True, autoretry_for=(ValueError,), retry_kwargs={"countdown": 1, "max_retries": 3})
def fails_twice(self: Any) -> None:
    note(f"try-{self.request.retries}")
    if self.request.retries < 2:
        raise ValueError("not yet")


@app.task(acks_late=True)
def long() -> None:
    """Whoever has it first never comes to its end."""
    is_first = not list(RESULTS.glob("begun.*"))
    note("begun")
    if is_first:
        threading.Event().wait(600)
    note("ended")


@app.task(acks_late=True)
def slow(seconds: float) -> None:
    """Takes longer than the queue keeps it for its worker."""
    threading.Event().wait(seconds)
    note("slow")
