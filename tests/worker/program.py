"""A program with a worker, to be signalled and killed: `python -m tests.worker.program STORE OPTIONS`."""

from __future__ import annotations

import functools
import json
import logging
import sys
from typing import Any

import penstock
from penstock import Delivery, Worker
from tests.worker import handlers
from tests.worker.conftest import as_coroutine


def main(store: str, options: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    handler = getattr(handlers, options.pop("handler"))
    if options["mode"] == "asyncio":
        handler = as_coroutine(handler)
    with penstock.open(store) as ps:
        worker = Worker(ps, "q", handler, on_start=functools.partial(say, "start"), **options)
        stats = worker.run()
        sys.stdout.write(json.dumps({"succeeded": stats.succeeded, "returned": stats.returned}) + "\n")


def say(what: str, delivery: Delivery) -> None:
    sys.stdout.write(f"{what} {delivery.id}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
