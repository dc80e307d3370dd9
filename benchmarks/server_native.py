"""What a client of the native interface sends, as bytes, and the same work on a store without a server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator

import msgspec

import penstock
from benchmarks.server_load import Measured, Script
from penstock import NewMessage, Queue
from penstock.backends.forwarding.methods import encoded

LEASE_S = 600.0


class _Leased(msgspec.Struct):
    """What an ack needs of a delivery; the rest of it is passed over."""

    raw_id: bytes
    token: bytes


_deliveries = msgspec.msgpack.Decoder(list[_Leased]).decode
_answers = msgspec.msgpack.Decoder(list[dict[str, object]]).decode


class Native:
    """One queue of a server, reached as `penstock.open("http://…")` reaches it, call ids included."""

    def __init__(self, address: tuple[str, int], queue: str, payload: str) -> None:
        self._address = address
        self._queue = queue
        self._payload = payload.encode()
        with penstock.open(f"http://{address[0]}:{address[1]}") as ps:
            ps.create_queue(queue)

    def _caller(self) -> Callable[[str, bytes], bytes]:
        """Makes the requests of one client: its calls are numbered, so that none happens twice."""
        caller, number = os.urandom(16).hex(), 0
        host = f"{self._address[0]}:{self._address[1]}"

        def request(method: str, body: bytes) -> bytes:
            nonlocal number
            number += 1
            return (
                f"POST /v1/call/{method} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\n"
                "content-type: application/msgpack\r\naccept: application/msgpack\r\n"
                f"penstock-call: {caller}/{number}\r\nContent-Length: {len(body)}\r\n\r\n"
            ).encode() + body

        return request

    def sends(self, batch: int) -> Script:
        """Enqueue a batch."""
        request, body = self._caller(), self._enqueue(batch)

        def script() -> Generator[bytes, bytes, int]:
            _check((yield request("enqueue", body)), batch)
            return batch

        return script

    def cycles(self, batch: int) -> Script:
        """Enqueue a batch, lease as many, ack what was leased."""
        request, body = self._caller(), self._enqueue(batch)
        lease = encoded("lease", (self._queue, batch, LEASE_S, 0.0, "bench"), {})

        def script() -> Generator[bytes, bytes, int]:
            _check((yield request("enqueue", body)), batch)
            leased = _deliveries((yield request("lease", lease)))
            if leased:
                receipts = [(one.raw_id + one.token).hex() for one in leased]
                _check((yield request("ack", encoded("ack", (self._queue, receipts), {}))), len(leased))
            return len(leased)

        return script

    def _enqueue(self, batch: int) -> bytes:
        return encoded("enqueue", (self._queue, [NewMessage(self._payload)] * batch), {})


def _check(answer: bytes, count: int) -> None:
    """A fast refusal is no speed."""
    answers = _answers(answer)
    if len(answers) != count or any(one.get("error") for one in answers):
        raise RuntimeError(f"A benchmark must not fail: {answer[:500]!r}")


class Embedded:
    """A queue of a store of this process: as many threads as there would be clients."""

    def __init__(self, q: Queue, payload: str) -> None:
        self._q = q
        self._payload = payload.encode()

    def sends(self, batch: int) -> int:
        results = self._q.enqueue_many([NewMessage(self._payload) for _ in range(batch)])
        assert all(one.ok for one in results)
        return batch

    def cycles(self, batch: int) -> int:
        self.sends(batch)
        leased = self._q.lease(batch, lease_s=LEASE_S)
        outcomes = self._q.ack([one.receipt for one in leased])
        assert all(one.ok for one in outcomes)
        return len(leased)


def run_embedded(step: Callable[[], int], threads: int, warm_up_s: float, seconds: float) -> Measured:
    """The same loop as over HTTP, with calls in the place of requests."""
    first_s = time.perf_counter() + warm_up_s
    last_s = first_s + seconds
    parts = [Measured(threads) for _ in range(threads)]
    failed: list[BaseException] = []

    def work(part: Measured) -> None:
        now_s = time.perf_counter()
        try:
            while now_s < last_s:
                begun_s, messages = now_s, step()
                now_s = time.perf_counter()
                if now_s >= first_s:
                    part.messages += messages
                    part.rounds_s.append(now_s - begun_s)
        except BaseException as error:  # noqa: BLE001  (raised in the thread that waits for this one)
            failed.append(error)

    running = [threading.Thread(target=work, args=(part,)) for part in parts]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failed:
        raise failed[0]
    return Measured.of(parts, time.perf_counter() - first_s)
