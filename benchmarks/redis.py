"""Redis lists or streams against raw commands by hand in the same run: rates, latencies, memory, flatness.

    .venv/bin/python benchmarks/redis.py                 # batches of 1, 10 and 100
    .venv/bin/python benchmarks/redis.py --kind streams
    .venv/bin/python benchmarks/redis.py --flat 1000000  # also: 1,000 against so many waiting

A server of its own is started on a free port with `--fsync` (always, everysec, no) for its log. What is raw
is what one would write by hand: a pipeline of LPUSH, of LMOVE, of LREM, one command a message; for streams a
pipeline of XADD, one XREADGROUP, one XACK with one XDEL. `cycle` is all three together. `ratio` is of the
rates, `of p50` of the median times of a call: where others use the machine too, it wavers less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# In the place of this folder, in which `redis` would be this very file.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import penstock  # noqa: E402 - the path comes first
from penstock import NewMessage, Queue  # noqa: E402
from tests.redis.one_server import started  # noqa: E402
from tests.redis.servers import RunningServer  # noqa: E402

#: Rewriting the log forks the server: that belongs to no measured call.
NO_REWRITES = {"auto-aof-rewrite-percentage": "0"}

PAYLOAD = b"x" * 100


class Timed:
    """How long calls take, and how many messages a second that is."""

    def __init__(self) -> None:
        self.calls_s: list[float] = []
        self.messages = 0

    def run(self, call: Callable[[], int]) -> None:
        begun = time.perf_counter()
        self.messages += call()
        self.calls_s.append(time.perf_counter() - begun)

    @classmethod
    def together(cls, steps: list[Timed]) -> Timed:
        """Messages that went through all of these steps, and how long that took."""
        out = cls()
        out.calls_s = [sum(calls) for calls in zip(*(one.calls_s for one in steps), strict=True)]
        out.messages = steps[0].messages
        return out

    @property
    def per_s(self) -> float:
        return self.messages / sum(self.calls_s)

    def quantile_ms(self, which: float) -> float:
        return sorted(self.calls_s)[min(len(self.calls_s) - 1, int(which * len(self.calls_s)))] * 1000


class ByHand:
    """What one would write without Penstock: one command a message, a batch in one pipeline."""

    def __init__(self, client: Any, batch: int) -> None:
        self._client = client
        self._batch = batch
        self._held: list[bytes] = []
        client.delete("raw", "raw-held")

    def enqueue(self) -> int:
        pipeline = self._client.pipeline(transaction=False)
        for n in range(self._batch):
            pipeline.lpush("raw", b"%08d" % n + PAYLOAD)
        return len(pipeline.execute())

    def lease(self) -> int:
        pipeline = self._client.pipeline(transaction=False)
        for _ in range(self._batch):
            pipeline.lmove("raw", "raw-held", "RIGHT", "LEFT")
        self._held = pipeline.execute()
        return len(self._held)

    def ack(self) -> int:
        pipeline = self._client.pipeline(transaction=False)
        for one in self._held:
            pipeline.lrem("raw-held", -1, one)
        return len(pipeline.execute())


class ByHandOnStreams:
    """The same on a stream: reading and acking take a whole batch in a command."""

    def __init__(self, client: Any, batch: int) -> None:
        self._client = client
        self._batch = batch
        self._held: list[bytes] = []
        client.delete("raw")
        client.xgroup_create("raw", "group", mkstream=True)

    def enqueue(self) -> int:
        pipeline = self._client.pipeline(transaction=False)
        for n in range(self._batch):
            pipeline.xadd("raw", {b"b": b"%08d" % n + PAYLOAD})
        return len(pipeline.execute())

    def lease(self) -> int:
        ((_, entries),) = self._client.xreadgroup("group", "me", {"raw": ">"}, count=self._batch)
        self._held = [entry for entry, _ in entries]
        return len(self._held)

    def ack(self) -> int:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xack("raw", "group", *self._held)
        pipeline.xdel("raw", *self._held)
        return int(pipeline.execute()[0])


BY_HAND: dict[str, Any] = {"lists": ByHand, "streams": ByHandOnStreams}


class ByPenstock:
    def __init__(self, q: Queue, batch: int) -> None:
        self._q = q
        self._batch = batch
        self._held: list[str] = []

    def enqueue(self) -> int:
        return len(self._q.enqueue_many([NewMessage(PAYLOAD) for _ in range(self._batch)]))

    def lease(self) -> int:
        self._held = [delivery.receipt for delivery in self._q.lease(self._batch, lease_s=600)]
        return len(self._held)

    def ack(self) -> int:
        return len(self._q.ack(self._held))


def side_by_side(client: Any, q: Queue, kind: str, batch: int, calls: int) -> dict[str, tuple[Timed, Timed]]:
    """Both in turn, call by call: whatever else the machine does, it does to both."""
    by_hand, by_penstock = BY_HAND[kind](client, batch), ByPenstock(q, batch)
    out = {name: (Timed(), Timed()) for name in ("enqueue", "lease", "ack")}
    for _ in range(calls):
        out["enqueue"][0].run(by_hand.enqueue)
        out["enqueue"][1].run(by_penstock.enqueue)
    for _ in range(calls):
        for name in ("lease", "ack"):
            out[name][0].run(getattr(by_hand, name))
            out[name][1].run(getattr(by_penstock, name))
    out["cycle"] = (
        Timed.together([hand for hand, _ in out.values()]),
        Timed.together([one for _, one in out.values()]),
    )
    return out


def compare(server: RunningServer, kind: str, batches: list[int], total: int, rounds: int) -> None:
    columns = ("raw/s", "ours/s", "ratio", "of p50", "p50 ms", "p99 ms")
    print("batch         " + " ".join(f"{name:>8}" for name in columns))
    with server.client() as client, penstock.open(server.url(kind)) as ps:
        for batch in batches:
            calls = max(1, min(total // batch, 2000))
            found: dict[str, list[tuple[float, float, float, float, float]]] = {}
            for number in range(rounds):
                q = ps.create_queue(f"bench-{batch}-{number}")
                for name, (hand, one) in side_by_side(client, q, kind, batch, calls).items():
                    half = hand.quantile_ms(0.5)
                    values = (hand.per_s, one.per_s, half, one.quantile_ms(0.5), one.quantile_ms(0.99))
                    found.setdefault(name, []).append(values)
                ps.delete_queue(q.name)
            for name, rows in found.items():
                raw, own, half, p50, p99 = (statistics.median(column) for column in zip(*rows, strict=True))
                ratios = f"{own / raw:>8.2f} {half / p50:>8.2f}"
                print(f"{batch:>5} {name:8} {raw:>8.0f} {own:>8.0f} {ratios} {p50:>8.2f} {p99:>8.2f}")


def memory(server: RunningServer, kind: str, count: int) -> None:
    """Bytes of the server's memory a waiting message, and what is left when all are acked."""
    with server.client() as client, penstock.open(server.url(kind)) as ps:
        client.flushall()
        ps.create_queue("warm")
        q = ps.create_queue("memory", journal_retention_s=0.001)
        start = int(client.info("memory")["used_memory"])
        for _ in range(count // 1000):
            q.enqueue_many([NewMessage(PAYLOAD) for _ in range(1000)])
        full = int(client.info("memory")["used_memory"])
        keys = client.dbsize()
        while held := q.lease(1000):
            q.ack([delivery.receipt for delivery in held])
        while ps.sweep():
            pass
        left = int(client.info("memory")["used_memory"]) - start
        print(
            f"memory: {(full - start) / count:.0f} bytes a message of {len(PAYLOAD)} bytes, journal included"
        )
        print(f"memory: {left} bytes more than before when all are acked and swept; {keys} keys")


def flat(server: RunningServer, kind: str, backlog: int) -> None:
    """The same work on a short line and on a long one, in turn."""
    with penstock.open(server.url(kind)) as ps:
        work: dict[int, tuple[Turnover, dict[str, Timed]]] = {}
        for waiting in (1000, backlog):
            q = ps.create_queue(f"flat-{waiting}")
            for _ in range(waiting // 1000):
                q.enqueue_many([NewMessage(PAYLOAD, fairness_key=f"k{n % 100}") for n in range(1000)])
            work[waiting] = Turnover(q), {name: Timed() for name in ("enqueue", "lease", "ack")}
        for _ in range(300):
            for turnover, timed in work.values():
                for name, one in timed.items():
                    one.run(getattr(turnover, name))
        for waiting, (_, timed) in work.items():
            times = ", ".join(f"{name} {one.quantile_ms(0.5):.2f} ms" for name, one in timed.items())
            print(f"flat: {waiting} waiting in 100 keys, 100 messages of 100 keys a call, medians: {times}")


class Turnover:
    """A hundred in and a hundred out, again and again: the line stays as long as it is."""

    def __init__(self, q: Queue) -> None:
        self._q = q
        self._held: list[str] = []

    def enqueue(self) -> int:
        return len(self._q.enqueue_many([NewMessage(PAYLOAD, fairness_key=f"k{n}") for n in range(100)]))

    def lease(self) -> int:
        self._held = [delivery.receipt for delivery in self._q.lease(100)]
        return len(self._held)

    def ack(self) -> int:
        return len(self._q.ack(self._held))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--total", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", default="1,10,100")
    parser.add_argument("--fsync", default="everysec", choices=["always", "everysec", "no"])
    parser.add_argument("--flat", type=int, default=0)
    parser.add_argument("--kind", default="lists", choices=["lists", "streams"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = started(Path(folder), appendfsync=options.fsync, **NO_REWRITES)
        try:
            with server.client() as client:
                version = client.info("server")["redis_version"]
            print(
                f"redis {version}, appendonly yes, appendfsync {options.fsync}, payload {len(PAYLOAD)} bytes"
            )
            print(f"{options.kind}; load average before: {os.getloadavg()[0]:.1f}")
            batches = [int(one) for one in options.batches.split(",") if one]
            compare(server, options.kind, batches, options.total, options.rounds)
            memory(server, options.kind, 50_000)
            if options.flat:
                flat(server, options.kind, options.flat)
            print(f"load average after: {os.getloadavg()[0]:.1f}")
        finally:
            server.kill()


if __name__ == "__main__":
    main()
