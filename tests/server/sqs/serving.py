"""A server of SQS in a thread of the test's process, over a store and a clock that the test holds too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import botocore.session
from botocore.config import Config

import penstock
from penstock import Penstock
from penstock.clock import ManualClock, SystemClock
from penstock.server.access import Credentials
from penstock.server.app import ServerApp
from penstock.server.calls import StoreCalls
from penstock.server.credentials import NoCredentials
from penstock.server.door import Door
from penstock.server.request_log import RequestLog
from penstock.server.sqs.endpoint import SqsEndpoint
from penstock.server_config import Limits, ServerSettings

TIMEOUT_S = 20
ACCESS_KEY, SECRET = "AKIDEXAMPLE", "a-secret-of-enough-letters"


class Serving(NamedTuple):
    """What a test holds of it."""

    url: str
    ps: Penstock
    clock: ManualClock
    endpoint: SqsEndpoint


@contextmanager
def serving(
    credentials: Credentials | None = None, settings: ServerSettings | None = None, url: str = "memory:"
) -> Iterator[Serving]:
    """Its clock is the store's, and starts with the machine's, by which clients sign."""
    clock = ManualClock(SystemClock().now_ns())
    with penstock.open(url, clock=clock) as ps:
        loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
        found: list[Serving] = []

        async def serve() -> None:
            calls, log = StoreCalls(ps, Limits()), RequestLog("off")
            given = credentials or NoCredentials()
            endpoint = SqsEndpoint(ps, calls, given, settings or ServerSettings(), clock)
            door = Door(ServerApp(ps, calls, given, [endpoint], log, clock), Limits(), clock)
            server = await loop.create_server(door.connection, "127.0.0.1", 0)
            door.start()
            await endpoint.start()
            port = server.sockets[0].getsockname()[1]
            found.append(Serving(f"http://127.0.0.1:{port}", ps, clock, endpoint))
            ready.set()
            await stop.wait()
            server.close()
            calls.polls.stop()
            await door.stop(TIMEOUT_S)
            await endpoint.stop()
            calls.close()
            log.close()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        try:
            assert ready.wait(TIMEOUT_S)
            yield found[0]
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(TIMEOUT_S)
            loop.close()


def client(url: str, models: str | None = None, secret: str = SECRET, **config: Any) -> Any:
    """AWS's own client; `models` is the folder with the model of another protocol. It tries once."""
    session = botocore.session.Session()
    if models is not None:
        session.set_config_variable("data_path", models)
    return session.create_client(
        "sqs",
        endpoint_url=url,
        region_name=config.pop("region_name", "us-east-1"),
        aws_access_key_id=config.pop("access_key", ACCESS_KEY),
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=TIMEOUT_S, **config),
    )
