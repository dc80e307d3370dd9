"""A server that is killed under load, or told to end while clients wait: what it acknowledged is there."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError

import penstock
from penstock import NewMessage
from tests.cli.calling import Cli
from tests.redis.servers import wait_until
from tests.server.clients.served import ACCESS_KEY, SECRET, TOKEN, signed_server
from tests.server.processes import TIMEOUT_S, Served

CLIENTS = 50
BATCH = 5
#: What is acknowledged of each server before it is killed.
ENOUGH = 4 * CLIENTS * BATCH


class Told:
    """What clients tried, and what they were told; each body is one of a kind."""

    def __init__(self) -> None:
        self.tried: set[str] = set()
        self.sent: set[str] = set()
        #: Every delivery, in the order in which they came.
        self.received: list[str] = []
        self.deleting: set[str] = set()
        self.deleted: set[str] = set()
        #: The clients that were told so since the server was started.
        self.at_work: set[int] = set()

    def wait_for_more(self) -> None:
        """Until the server that runs now is at work for all: who tries again once a second misses it else."""
        before = len(self.sent)
        self.at_work.clear()

        def is_enough() -> bool:
            return len(self.sent) >= before + ENOUGH and len(self.at_work) == CLIENTS

        assert wait_until(is_enough, TIMEOUT_S), "the clients do not go on"

    def check(self, store: Path) -> None:
        """Against what the store has. What was under way may be there or not."""
        assert Cli(store.parent).process("check").code == 0
        with penstock.open(store) as ps:
            held = [message.payload.decode() for message in ps.queue("q").iter()]
        there = set(held)
        assert len(held) == len(there), "a message is there twice"
        assert there <= self.tried
        assert not (self.sent - self.deleting) - there, "what was acknowledged is lost"
        assert not self.deleted & there, "what was deleted is back"
        # No lease ends while the test runs: whoever got a message is the only one.
        assert self.twice() == 0, "a message was delivered twice"

    def show(self, kills: int) -> None:
        sys.stdout.write(  # Shown by -rP.
            f"{kills} kills: {len(self.sent)} sends acknowledged, {len(self.received)} deliveries, of which "
            f"{self.twice()} of one message again, {len(self.deleted)} deletions acknowledged\n"
        )

    def twice(self) -> int:
        """Deliveries of what had been delivered before."""
        received = list(self.received)
        return len(received) - len(set(received))


class Load:
    """Clients, a thread each, half of either interface; they go on while the server is away."""

    def __init__(self, told: Told, url: str) -> None:
        self._told = told
        self._url = url
        self._ends = threading.Event()
        self._sqs_client = sqs_client(url)
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._work = [self._pool.submit(self._sqs if at % 2 else self._native, at) for at in range(CLIENTS)]

    def end(self) -> None:
        """Raises what a client was told that it should not have been."""
        self._ends.set()
        for work in self._work:
            work.result(TIMEOUT_S)
        self._pool.shutdown()

    def _bodies(self, at: int, turn: int) -> list[str]:
        bodies = [f"{at}-{turn}-{number}" for number in range(BATCH)]
        self._told.tried.update(bodies)
        return bodies

    def _sqs(self, at: int) -> None:
        """An error of the connection is all that a client of a killed server may see."""
        turn = 0
        while not self._ends.is_set():
            turn += 1
            try:
                self._send_and_receive(at, self._bodies(at, turn))
            except BotoCoreError:
                self._ends.wait(0.1)

    def _send_and_receive(self, at: int, bodies: list[str]) -> None:
        client, told, url = self._sqs_client, self._told, f"{self._url}/000000000000/q"
        entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)]
        answer = client.send_message_batch(QueueUrl=url, Entries=entries)
        told.sent.update(bodies[int(one["Id"])] for one in answer["Successful"])
        told.at_work.add(at)
        for one in client.receive_message(QueueUrl=url, WaitTimeSeconds=1).get("Messages", []):
            told.received.append(one["Body"])
            told.deleting.add(one["Body"])
            client.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
            told.deleted.add(one["Body"])

    def _native(self, at: int) -> None:
        """It makes its calls again until the server is back, and sees no error."""
        told, turn = self._told, 0
        with penstock.open(native_url(self._url)) as ps:
            queue = ps.queue("q")
            while not self._ends.is_set():
                turn += 1
                bodies = self._bodies(at, turn)
                results = queue.enqueue_many([NewMessage(body.encode()) for body in bodies])
                assert all(one.ok for one in results)
                told.sent.update(bodies)
                told.at_work.add(at)
                for one in queue.lease(1, wait_s=1):
                    told.received.append(one.payload.decode())
                    told.deleting.add(one.payload.decode())
                    [outcome] = queue.ack([one.receipt])
                    if outcome.ok:
                        told.deleted.add(one.payload.decode())


def sqs_client(url: str) -> Any:
    config = Config(max_pool_connections=CLIENTS, retries={"total_max_attempts": 1})
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET,
        config=config,
    )


def native_url(url: str) -> str:
    return url.replace("http://", f"http://{TOKEN}@")


def made(folder: Path) -> Path:
    with penstock.open(folder / "penstock-data") as ps:
        ps.create_queue("q", lease_s=600)
    return folder / "penstock-data"


@pytest.mark.parametrize(
    "kills", [pytest.param(1, id="once"), pytest.param(10, id="ten-times", marks=pytest.mark.soak)]
)
def test_what_fifty_clients_were_told_is_true_after_the_server_is_killed(tmp_path: Path, kills: int) -> None:
    store, told = made(tmp_path), Told()
    load: Load | None = None
    port = 0
    try:
        for _ in range(kills):
            with signed_server(tmp_path, "--port", str(port)) as server:
                port = server.port
                load = load or Load(told, server.url)
                told.wait_for_more()
                server.process.kill()
                server.process.wait(TIMEOUT_S)
            told.check(store)
        with signed_server(tmp_path, "--port", str(port)) as server:
            told.wait_for_more()
            assert load is not None
            load.end()
            load = None
            assert server.stop() == 0
            assert "Traceback" not in server.errors
    finally:
        if load is not None:
            with suppress(Exception):
                load.end()
    told.check(store)
    told.show(kills)


def test_a_server_that_is_told_to_end_answers_its_polls_and_loses_no_send(tmp_path: Path) -> None:
    store = made(tmp_path)
    with penstock.open(store) as ps:
        ps.create_queue("empty")
    told = Told()
    with signed_server(tmp_path) as server, ThreadPoolExecutor(3) as pool:
        client = sqs_client(server.url)

        def receive() -> tuple[int, Any]:
            answer = client.receive_message(QueueUrl=f"{server.url}/000000000000/empty", WaitTimeSeconds=20)
            return answer["ResponseMetadata"]["HTTPStatusCode"], answer.get("Messages")

        def lease() -> list[Any]:
            with penstock.open(native_url(server.url)) as ps:
                return list(ps.queue("empty").lease(1, wait_s=20))

        def send() -> None:
            with suppress(BotoCoreError):
                for turn in range(1_000_000):
                    told.tried.add(f"{turn}")
                    client.send_message(QueueUrl=f"{server.url}/000000000000/q", MessageBody=f"{turn}")
                    told.sent.add(f"{turn}")

        polls: list[Callable[[], Any]] = [receive, lease]
        answers = [pool.submit(poll) for poll in polls]
        pool.submit(send)
        assert wait_until(lambda: polls_waiting(server) == 2 and len(told.sent) > 20, 20)
        began_s = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began_s < 10
        assert answers[0].result(TIMEOUT_S) == (200, None)
        assert answers[1].result(TIMEOUT_S) == []
        assert "Traceback" not in server.errors
    told.check(store)


def polls_waiting(server: Served) -> int:
    _, text = server.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    [line] = [line for line in text.splitlines() if line.startswith("penstock_server_waiting_polls")]
    return int(float(line.split()[-1]))
