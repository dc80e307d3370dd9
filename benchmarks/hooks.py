"""What a script costs a message, against the same queue without one, by batch size.

The two queues take turns batch by batch in one process, so that what else the machine does falls on both.
The cost is the difference of the medians, for each message. Beside it the processor time that the two
processes spend on it, which hardly depends on what else the machine does.

    python -m benchmarks.hooks [--mode os] [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import penstock
from benchmarks.core import MODES, machine
from penstock import EnqueueResult, NewMessage, Outcome, Penstock, Queue

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


class Sides:
    """Times of the same work without a script and with one."""

    def __init__(self, ps: Penstock) -> None:
        self._pool = ps._default._hooking.scripts.pool  # type: ignore[attr-defined]
        self.wall_s: tuple[list[float], list[float]] = ([], [])
        self.cpu_s: tuple[list[float], list[float]] = ([], [])

    def measure(self, side: int, work: Callable[[], Sequence[EnqueueResult | Outcome]]) -> None:
        cpu_s, started_s = self._cpu_s(), time.perf_counter()
        results = work()
        took_s = time.perf_counter() - started_s
        self.wall_s[side].append(took_s)
        self.cpu_s[side].append(self._cpu_s() - cpu_s)
        assert all(result.ok for result in results)

    def _cpu_s(self) -> float:
        """Of this process and of the helper, whose clock Linux has under a number made from its own."""
        pid = self._pool.pid
        return time.process_time() + (time.clock_gettime((~pid << 3) | 2) if pid else 0.0)

    def row(self, name: str, size: int) -> str:
        without, with_script = (statistics.median(found) / size * 1e6 for found in self.wall_s)
        cpu = statistics.median(self.cpu_s[1]) - statistics.median(self.cpu_s[0])
        cost, cpu = with_script - without, cpu / size * 1e6
        return f"| {name} | {size:,} | {without:.1f} | {with_script:.1f} | {cost:.1f} | {cpu:.1f} |"


def compare_enqueues(ps: Penstock, plain: Queue, scripted: Queue, size: int, rounds: int) -> Sides:
    """Without a script the messages come as the script would make them: storing them costs the same."""
    batch, sides = messages(size), Sides(ps)
    scripted.purge()
    scripted.enqueue_many(batch)
    made = {one.headers["tenant"]: one for one in scripted.peek(size)}
    finished = []
    for m in batch:
        one = made[m.headers["tenant"]]
        finished.append(NewMessage(m.payload, m.headers, one.fairness_key, one.weight, (), one.priority))
    for _ in range(rounds):
        sides.measure(0, lambda: plain.enqueue_many(finished))
        sides.measure(1, lambda: scripted.enqueue_many(batch))
    return sides


def compare_nacks(ps: Penstock, plain: Queue, scripted: Queue, size: int, rounds: int) -> Sides:
    sides = Sides(ps)
    for _ in range(rounds):
        for side, q in enumerate((plain, scripted)):
            q.enqueue_many(messages(size))
            receipts = [delivery.receipt for delivery in q.lease(size)]
            sides.measure(side, lambda q=q, r=receipts: q.nack(r, reason="failed"))  # type: ignore[misc]
            q.purge()
    return sides


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


HEADING = """
| `{}` | batch | µs/message without | with | cost, µs | of processor time, µs |
| --- | ---: | ---: | ---: | ---: | ---: |"""


def measure(ps: Penstock, work: int) -> None:
    ps.state.put("vip:tenant-3", b"1")
    plain = ps.create_queue("plain")
    print(HEADING.format("on_enqueue"))
    for name, script in SCRIPTS.items():
        scripted = ps.create_queue(name, on_enqueue=script)
        for size in BATCHES:
            compare_enqueues(ps, plain, scripted, size, 3)
            rounds = min(2000, max(20, work // size // 10))
            print(compare_enqueues(ps, plain, scripted, size, rounds).row(name, size), flush=True)
    print(HEADING.format("on_failure"))
    nacked, decided = ps.create_queue("nacked"), ps.create_queue("decided", on_failure=ON_FAILURE)
    for size in BATCHES:
        rounds = max(10, min(300, work // size // 20))
        print(compare_nacks(ps, nacked, decided, size, rounds).row("a growing delay", size), flush=True)
    print(f"\nA new helper after one was killed: {restart_ms(ps, 10):.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mode", choices=MODES, default="os")
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
    arguments = parser.parse_args()
    print(f"{machine()}, mode {arguments.mode}")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        target = f"rocksdb:{Path(folder)}/store?durability={arguments.mode}"
        with penstock.open(target) as ps:
            measure(ps, 20_000 if arguments.quick else 200_000)


if __name__ == "__main__":
    main()
