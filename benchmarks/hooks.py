"""What a script costs a message, against the same queue without one, by batch size.

The two queues take turns batch by batch in one process, so that what else the machine does falls on both.
The cost is the difference of the medians, for each message.

    python -m benchmarks.hooks [--mode os] [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import penstock
from benchmarks.core import MODES, machine
from penstock import NewMessage, Penstock, Queue

BATCHES = (1, 10, 100, 1000)
PAYLOAD = b"x" * 200

#: What it does -> on_enqueue.
SCRIPTS = {
    "nothing": "function on_enqueue(message) end",
    "fairness key from a header": """
        function on_enqueue(message)
          message.fairness_key = message.headers.tenant
        end
    """,
    "a policy of ten lines": """
        function on_enqueue(message)
          local tenant = message.headers.tenant
          if not tenant then return "refuse", "no tenant" end
          message.fairness_key = tenant
          if message.headers.type == "report" then
            message.priority = 2
            message.delay_s = 0
          end
          message.weight = penstock.get("vip:" .. tenant) and 10 or 1
        end
    """,
}
ON_FAILURE = "function on_failure(message, failure) return 'retry', 10 * message.attempts end"


def messages(count: int) -> list[NewMessage]:
    return [NewMessage(PAYLOAD, {"tenant": f"tenant-{n % 10}", "type": "email"}) for n in range(count)]


def enqueue_s(q: Queue, batch: list[NewMessage]) -> float:
    started = time.perf_counter()
    results = q.enqueue_many(batch)
    took = time.perf_counter() - started
    assert all(result.ok for result in results)
    return took


def compare(plain: Queue, scripted: Queue, size: int, rounds: int) -> tuple[float, float]:
    """Microseconds a message: without, with."""
    batch = messages(size)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for q, found in zip((plain, scripted), times, strict=True):
            found.append(enqueue_s(q, batch))
    without, with_script = (statistics.median(found) / size * 1e6 for found in times)
    return without, with_script


def compare_nacks(plain: Queue, scripted: Queue, size: int, rounds: int) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for q, found in zip((plain, scripted), times, strict=True):
            q.enqueue_many(messages(size))
            receipts = [delivery.receipt for delivery in q.lease(size)]
            started = time.perf_counter()
            q.nack(receipts, reason="failed")
            found.append(time.perf_counter() - started)
            q.purge()
    without, with_script = (statistics.median(found) / size * 1e6 for found in times)
    return without, with_script


def restart_ms(ps: Penstock, times: int) -> float:
    """How long a message takes whose helper is killed, and the next: the helper's start, mostly."""
    bomb = (
        "function on_enqueue(m) if m.payload == 'b' then string.find(('a'):rep(30000), '.-.-.-.-.-b') end end"
    )
    found = []
    for n in range(times):
        q = ps.create_queue(f"restarted-{n}", on_enqueue=bomb)
        q.enqueue(b"")
        q.enqueue_many([NewMessage(b"b")])
        started = time.perf_counter()
        q.enqueue(b"")
        found.append(time.perf_counter() - started)
    return statistics.median(found) * 1e3


def measure(ps: Penstock, work: int) -> None:
    ps.state.put("vip:tenant-3", b"1")
    plain = ps.create_queue("plain")
    print("| `on_enqueue` | batch | µs/message without | with | cost, µs |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, script in SCRIPTS.items():
        scripted = ps.create_queue(name, on_enqueue=script)
        for size in BATCHES:
            rounds = max(20, work // size // 10)
            compare(plain, scripted, size, 3)
            without, with_script = compare(plain, scripted, size, min(rounds, 2000))
            cost = with_script - without
            print(f"| {name} | {size:,} | {without:.1f} | {with_script:.1f} | {cost:.1f} |", flush=True)
    print("\n| `on_failure` | batch | µs/message without | with | cost, µs |")
    print("| --- | ---: | ---: | ---: | ---: |")
    nacked, decided = ps.create_queue("nacked"), ps.create_queue("decided", on_failure=ON_FAILURE)
    for size in BATCHES:
        without, with_script = compare_nacks(nacked, decided, size, max(10, min(300, work // size // 20)))
        cost = with_script - without
        print(f"| a growing delay | {size:,} | {without:.1f} | {with_script:.1f} | {cost:.1f} |", flush=True)
    print(f"\nA new helper after one was killed: {restart_ms(ps, 10):.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mode", choices=MODES, default="os")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    arguments = parser.parse_args()
    print(f"{machine()}, mode {arguments.mode}\n")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        target = f"rocksdb:{Path(folder)}/store?durability={arguments.mode}"
        with penstock.open(target) as ps:
            measure(ps, 20_000 if arguments.quick else 200_000)


if __name__ == "__main__":
    main()
