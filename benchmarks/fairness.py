"""Fair shares: how far they are from what the weights say, and what they cost.

python benchmarks/fairness.py [shares] [noisy] [cost] [keys] [steps] [--mode os] [--waiting N] [--json FILE]

`--mode` is of the cost and its steps; the others are measured in mode os.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import os
import platform
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import penstock
from penstock import NewMessage, Penstock, Queue
from penstock.kv.rocksdb import RocksStore

PAYLOAD = b"x" * 200
BATCH = 100


def store(folder: Path, name: str, mode: str = "os") -> Penstock:
    return penstock.open(f"rocksdb:{folder / name}?durability={mode}")


# -- shares -----------------------------------------------------------------------------------------


class Shares:
    """Deliveries beside what is due: a fluid that flows, as much at a time, to all keys with work by weight.

    `virtual` moves on by 1 when every key is due its weight. A key that comes with some work is through with
    it when `virtual` has come as far as that is, divided by its weight, whenever it is really served.
    """

    def __init__(self, weights: dict[str, int]) -> None:
        self.weights = weights
        self.left = dict.fromkeys(weights, 0)
        self.served = dict.fromkeys(weights, 0)
        self.joined = self.parted = 0
        self._given = dict.fromkeys(weights, 0)
        self._through = dict.fromkeys(weights, 0.0)
        self._virtual = 0.0
        self._flowing = 0
        self._ends: list[tuple[float, str]] = []

    def add(self, key: str, count: int) -> None:
        self.joined += not self.left[key]
        self.left[key] += count
        self._given[key] += count
        if self._through[key] <= self._virtual:
            self._flowing += self.weights[key]
        start = max(self._through[key], self._virtual)
        self._through[key] = start + count / self.weights[key]
        heapq.heappush(self._ends, (self._through[key], key))

    def deliver(self, key: str) -> None:
        self.served[key] += 1
        self.left[key] -= 1
        self.parted += not self.left[key]
        flow = 1.0
        while flow > 0 and self._ends:
            end, first = self._ends[0]
            if end < self._through[first]:
                heapq.heappop(self._ends)  # It got more to do since.
            elif (end - self._virtual) * self._flowing <= flow:
                flow -= (end - self._virtual) * self._flowing
                self._virtual = end
                self._flowing -= self.weights[first]
                heapq.heappop(self._ends)
            else:
                self._virtual += flow / self._flowing
                flow = 0

    def due(self, key: str) -> float:
        return self._given[key] - max(0.0, self._through[key] - self._virtual) * self.weights[key]

    def worst(self) -> dict[str, float]:
        """Of all keys: the deviation against what is allowed, against its due, and in turns of the key."""
        allowed = relative = turns = 0.0
        for key, weight in self.weights.items():
            due = self.due(key)
            off = int(abs(self.served[key] - due))  # The fluid has parts of messages, deliveries have none.
            allowed = max(allowed, off / max(0.02 * due, weight))
            relative = max(relative, off / max(due, weight))
            turns = max(turns, off / weight)
        return {"of_allowed": round(allowed, 3), "of_due": round(relative, 4), "turns": round(turns, 2)}


def shares_of(q: Queue, keys: int, batch: int, deliveries: int, moving: bool) -> dict[str, Any]:
    """Lease and ack so many; if `moving`, keys run out of work and come back all the time."""
    rng = random.Random(keys * batch)
    shares = Shares({f"key-{n}": rng.choice((1, 2, 3, 5, 8)) for n in range(keys)})

    def enqueue(key: str, count: int) -> None:
        for at in range(0, count, 1000):
            message = NewMessage(PAYLOAD, fairness_key=key, weight=shares.weights[key])
            q.enqueue_many([message] * min(1000, count - at))
        shares.add(key, count)

    total = sum(shares.weights.values())
    for key, weight in shares.weights.items():
        enough = 2 * deliveries * weight // total + 2 * weight
        enqueue(key, rng.randrange(1, enough // 4 + 2) if moving and rng.random() < 0.5 else enough)
    done = 0
    while done < deliveries:
        held = q.lease(min(batch, deliveries - done))
        done += len(held)
        for delivery in held:
            shares.deliver(delivery.fairness_key)
        q.ack([delivery.receipt for delivery in held])
        if moving and done % 1000 < batch:
            for key in rng.sample(list(shares.weights), max(1, keys // 50)):
                if not shares.left[key]:
                    enqueue(key, rng.randrange(1, 2 * deliveries // keys + 2))
    found = shares.worst()
    if moving:
        found |= {"joined": shares.joined, "parted": shares.parted}
    return found


def shares(folder: Path, deliveries: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    with store(folder, "shares") as ps:
        for keys in (2, 10, 1000):
            for batch in (1, 100):
                for moving in (False, True):
                    name = f"{keys} keys, batch {batch}{', joining and leaving' if moving else ''}"
                    q = ps.create_queue(name, lease_s=3600, journal_retention_s=None)
                    out[name] = shares_of(q, keys, batch, deliveries, moving)
                    ps.delete_queue(name)
    out["worst_of_allowed"] = max(one["of_allowed"] for one in out.values())
    return out


def noisy(folder: Path, messages: int) -> dict[str, Any]:
    """One key has a million messages; how many deliveries until another key's first message comes."""
    with store(folder, "noisy") as ps:
        q = ps.create_queue("q", lease_s=3600)
        for _ in range(messages // 1000):
            q.enqueue_many([NewMessage(PAYLOAD, fairness_key="noisy")] * 1000)
        waited: list[int] = []
        times: list[float] = []
        for n in range(100):
            q.lease(1 + n % 7)
            q.enqueue(PAYLOAD, fairness_key=f"quiet-{n}")
            started, count = time.perf_counter(), 0
            while True:
                (delivery,) = q.lease(1)
                if delivery.fairness_key != "noisy":
                    break
                count += 1
            times.append((time.perf_counter() - started) * 1e3)
            waited.append(count)
    return {
        "messages_of_the_noisy_key": messages,
        "deliveries_before_the_other": {"median": statistics.median(waited), "most": max(waited)},
        "ms_until_the_other": {"median": round(statistics.median(times), 3), "most": round(max(times), 3)},
    }


# -- cost -------------------------------------------------------------------------------------------


def batches(keys: int, count: int, at_random: bool, rng: random.Random, start: int) -> list[list[NewMessage]]:
    def key(n: int) -> int:
        return rng.randrange(keys) if at_random else (start + n) % keys

    messages = [NewMessage(PAYLOAD, fairness_key=f"key-{key(n)}") for n in range(count)]
    return [messages[at : at + BATCH] for at in range(0, count, BATCH)]


def cycle_us(q: Queue, made: list[list[NewMessage]]) -> tuple[float, float]:
    """Enqueue, lease and ack of one message: by the clock, and of this thread's processor time."""
    gc.collect()
    started, busy = time.perf_counter(), time.thread_time()
    for batch in made:
        q.enqueue_many(batch)
    held = [q.lease(max_messages=BATCH) for _ in made]
    for deliveries in held:
        q.ack([delivery.receipt for delivery in deliveries])
    count = sum(map(len, made))
    return (time.perf_counter() - started) / count * 1e6, (time.thread_time() - busy) / count * 1e6


def cost(folder: Path, rounds: int, mode: str, waiting: int) -> dict[str, Any]:
    """The same work on one key, ten and a thousand, round by round in turn; so many are always waiting."""
    out: dict[str, Any] = {}
    for at_random in (False, True):
        with store(folder, f"cost-{at_random}", mode) as ps:
            rng, queues = random.Random(1), {n: ps.create_queue(f"{n}", lease_s=3600) for n in (1, 10, 1000)}
            for keys, q in queues.items():
                for batch in batches(keys, waiting, at_random, rng, 0):
                    q.enqueue_many(batch)
            found: dict[int, list[tuple[float, float]]] = {keys: [] for keys in queues}
            for n in range(rounds):
                for keys, q in queues.items():
                    made = batches(keys, 10 * BATCH, at_random, rng, n * 10 * BATCH)
                    found[keys].append(cycle_us(q, made))
        part: dict[str, Any] = {}
        for place, name in enumerate(("by the clock", "processor time")):
            medians = {
                keys: statistics.median(one[place] for one in values) for keys, values in found.items()
            }
            part[name] = {
                "cycle_us": {keys: round(value, 2) for keys, value in medians.items()},
                "over_one_key": {keys: round(medians[keys] / medians[1], 3) for keys in (10, 1000)},
            }
        out["keys at random" if at_random else "keys in turn"] = part
    return out


class Steps:
    """What the steps of a cycle take of this thread's processor time, and what of it RocksDB does."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}
        self._spent: dict[str, float] = {}

    def watch(self, method: str, name: str) -> None:
        plain = getattr(RocksStore, method)
        self._spent[name] = 0.0

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return plain(*args, **kwargs)
            finally:
                self._spent[name] += time.thread_time() - started

        setattr(RocksStore, method, timed)

    def run(self, name: str, call: Callable[[Any], Any], given: list[Any]) -> list[Any]:
        self._spent = dict.fromkeys(self._spent, 0.0)
        started = time.thread_time()
        results = [call(one) for one in given]
        whole = time.thread_time() - started
        parts = {**self._spent, "Python": whole - sum(self._spent.values())}
        for part, seconds in parts.items():
            per_message = seconds / (len(given) * BATCH) * 1e6
            self.found.setdefault(f"{name}: {part}", []).append(per_message)
        return results


def steps(folder: Path, rounds: int, mode: str, waiting: int) -> dict[str, Any]:
    """The cost by steps, keys at random.

    An eighth of all rounds was as fast, step by step: what else the machine does has little part in it.
    """
    measured, counts = Steps(), (1, 10, 1000)
    measured.watch("write", "write")
    measured.watch("get_many", "look-ups")
    with store(folder, "steps", mode) as ps:
        rng, queues = random.Random(1), {n: ps.create_queue(f"{n}", lease_s=3600) for n in counts}
        for keys, q in queues.items():
            for batch in batches(keys, waiting, True, rng, 0):
                q.enqueue_many(batch)
        for _ in range(rounds):
            for keys, q in queues.items():
                made = batches(keys, 10 * BATCH, True, rng, 0)
                gc.collect()
                measured.run(f"{keys}, enqueue", q.enqueue_many, made)
                held = measured.run(f"{keys}, lease", q.lease, [BATCH] * len(made))
                receipts = [[delivery.receipt for delivery in deliveries] for deliveries in held]
                measured.run(f"{keys}, ack", q.ack, receipts)
    return {name: round(sorted(values)[rounds // 8], 2) for name, values in measured.found.items()}


def rss_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def many_keys(folder: Path, keys: int) -> dict[str, Any]:
    """All of them active at once, and again after reopening."""
    with store(folder, "keys") as ps:
        q = ps.create_queue("q", lease_s=3600)
        q.enqueue_many([NewMessage(PAYLOAD, fairness_key="key-0")] * BATCH)
        q.ack([delivery.receipt for delivery in q.lease(BATCH)])
        gc.collect()
        before = rss_mib()
        made = batches(keys, 3 * keys, False, random.Random(1), 0)
        for batch in made:
            q.enqueue_many(batch)
        del made, batch
        gc.collect()
        grown = rss_mib() - before
        started = time.perf_counter()
        served: set[str] = set()
        for _ in range(keys // BATCH):
            held = q.lease(BATCH)
            served.update(delivery.fairness_key for delivery in held)
            q.ack([delivery.receipt for delivery in held])
        per_message = (time.perf_counter() - started) / keys * 1e6
        started = time.perf_counter()
        q.stats()
        stats_ms = (time.perf_counter() - started) * 1e3
    with store(folder, "keys") as ps:
        q = ps.queue("q")
        times = []
        for _ in range(keys // BATCH):
            started = time.perf_counter()
            q.ack([delivery.receipt for delivery in q.lease(BATCH)])
            times.append((time.perf_counter() - started) * 1e3)
    return {
        "keys": keys,
        "served_in_the_first_round": len(served),
        "memory_mib": round(grown, 1),
        "memory_bytes_per_key": round(grown * 2**20 / keys),
        "lease_and_ack_us_per_message": round(per_message, 2),
        "first_stats_ms": round(stats_ms, 1),
        "after_reopening": {
            "first_lease_ms": round(times[0], 1),
            "slowest_lease_ms": round(max(times), 1),
            "lease_and_ack_us_per_message": round(statistics.median(times) * 1e3 / BATCH, 2),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", help="shares, noisy, cost, steps, keys; all without it")
    parser.add_argument("--deliveries", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--mode", choices=("os", "interval", "sync"), default="os")
    parser.add_argument(
        "--waiting", type=int, default=20 * BATCH, help="messages of each queue, of cost and steps"
    )
    parser.add_argument("--json", type=Path, help="write the results there too")
    args = parser.parse_args()
    machine = f"{platform.platform()} {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{datetime.now(UTC):%Y-%m-%d} {machine}, payload {len(PAYLOAD)} bytes, mode {args.mode}")
    runs: dict[str, Callable[[Path], dict[str, Any]]] = {
        "shares": lambda folder: shares(folder, args.deliveries),
        "noisy": lambda folder: noisy(folder, args.messages),
        "cost": lambda folder: cost(folder, args.rounds, args.mode, args.waiting),
        "keys": lambda folder: many_keys(folder, args.keys),
        # Last: it is slower from then on.
        "steps": lambda folder: steps(folder, args.rounds, args.mode, args.waiting),
    }
    results: dict[str, Any] = {}
    for name in args.parts or runs:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = runs[name](Path(folder))
        print(name, json.dumps(results[name], indent=2), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
