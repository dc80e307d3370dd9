"""A demonstration: four shops, three workers of uneven quality, a restart, and the proof of no loss."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import penstock
from penstock import Delivery, Event, Kind, NewMessage, Penstock, PenstockError, Queue, Retry

QUEUE, DEAD_LETTERS = "parcels", "parcels-dead"
#: shop -> messages in a hundred. The largest must not crowd out the others.
SHOPS = {"bakery": 70, "florist": 15, "bookshop": 10, "toyshop": 5}
BROKEN = {"type": "broken"}
BROKEN_EVERY = 500
ENQUEUE_BATCH, LEASE_BATCH, EVENTS_PAGE = 200, 25, 5000
FIRST_DELIVERIES = 1000
BAR_WIDTH = 32
REFRESH_S = 0.1
#: What a worker pretends to need for a batch, so that there is something to watch.
WORK_S = 0.02


@dataclass
class Worker:
    """One consumer. It counts what it did; `receipts` are those of leases that it let run out."""

    name: str
    lease_s: float
    rng: random.Random
    fails: float = 0.0
    rejects: float = 0.0
    abandons: float = 0.0
    acked: int = 0
    late: int = 0
    receipts: list[str] = field(default_factory=list)

    def run(self, queue: Queue, stop: threading.Event) -> None:
        """Work until told to stop; what it holds then is left as a crash would leave it."""
        while not stop.is_set():
            held = queue.lease(LEASE_BATCH, lease_s=self.lease_s, wait_s=REFRESH_S, consumer=self.name)
            if held and not stop.wait(WORK_S):
                self._finish(queue, held)

    def _finish(self, queue: Queue, held: Sequence[Delivery]) -> None:
        good: list[str] = []
        for delivery in held:
            if delivery.headers == BROKEN:
                queue.nack([delivery.receipt], reason="label cannot be printed")
            elif self.rng.random() < self.fails:
                queue.nack([delivery.receipt], reason="printer jam")
            elif self.rng.random() < self.rejects:
                queue.reject([delivery.receipt], reason="no such address")
            elif self.rng.random() < self.abandons:
                self.receipts.append(delivery.receipt)
            else:
                good.append(delivery.receipt)
        outcomes = queue.ack(good)
        self.acked += sum(outcome.ok for outcome in outcomes)
        self.late += sum(not outcome.ok for outcome in outcomes)

    def ack_late(self, queue: Queue) -> None:
        """Come back to what it let run out: others have finished it, so every receipt is refused."""
        outcomes = queue.ack(self.receipts)
        self.late += sum(not outcome.ok for outcome in outcomes)
        self.receipts.clear()


@dataclass
class Report:
    """What happened, from the journal and from what the demo saw itself."""

    kinds: Counter[Kind] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    acked: Counter[str] = field(default_factory=Counter)
    dead: set[str] = field(default_factory=set)
    first: Counter[str] = field(default_factory=Counter)
    enqueue_s: float = 0.0
    work_s: float = 0.0
    late: int = 0
    shops: dict[str, str] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        self.kinds[event.kind] += 1
        if event.kind == Kind.ACKED:
            self.acked[event.message_id] += 1
        elif event.kind == Kind.DEAD:
            self.dead.add(event.message_id)
            self.reasons[event.reason or "no reason given"] += 1
        elif event.kind == Kind.LEASED and self.kinds[Kind.LEASED] <= FIRST_DELIVERIES:
            self.first[self.shops.get(event.message_id, "?")] += 1

    def missing(self) -> int:
        """Messages that were accepted, and neither acked nor dead-lettered."""
        return sum(message_id not in self.acked and message_id not in self.dead for message_id in self.shops)

    def twice(self) -> int:
        return sum(count > 1 or message_id in self.dead for message_id, count in self.acked.items())


class Screen:
    """Progress on one line, which a terminal sees move and a file sees once."""

    def __init__(self) -> None:
        self._moves = sys.stdout.isatty()

    def progress(self, label: str, done: int, total: int, text: str) -> None:
        if self._moves:
            print(f"\r\033[K{self._line(label, done, total, text)}", end="", flush=True)

    def finish(self, label: str, done: int, total: int, text: str) -> None:
        start = "\r\033[K" if self._moves else ""
        print(start + self._line(label, done, total, text), flush=True)

    def say(self, label: str, text: str) -> None:
        print(f"  {label:<9} {text}", flush=True)

    def _line(self, label: str, done: int, total: int, text: str) -> str:
        filled = BAR_WIDTH * min(done, total) // max(total, 1)
        return f"  {label:<9} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {text}"


def batches(count: int, rng: random.Random) -> Iterator[list[tuple[str, NewMessage]]]:
    """(shop, message) in batches, a few of them broken."""
    shops = rng.choices(list(SHOPS), weights=list(SHOPS.values()), k=count)
    for start in range(0, count, ENQUEUE_BATCH):
        yield [
            (
                shop,
                NewMessage(
                    payload=f"label {number} for {shop}".encode(),
                    headers=BROKEN if number % BROKEN_EVERY == 0 else {},
                    fairness_key=shop,
                ),
            )
            for number, shop in enumerate(shops[start : start + ENQUEUE_BATCH], start=start + 1)
        ]


def fill(queue: Queue, count: int, rng: random.Random, screen: Screen, report: Report) -> None:
    """Enqueue everything, and remember which ids were accepted."""
    began = time.perf_counter()
    for batch in batches(count, rng):
        results = queue.enqueue_many([message for _, message in batch])
        for (shop, _), result in zip(batch, results, strict=True):
            if result.id is None:
                raise result.error or AssertionError("neither id nor error")
            report.shops[result.id] = shop
        screen.progress("filling", len(report.shops), count, f"{len(report.shops):,} enqueued")
    report.enqueue_s = time.perf_counter() - began
    screen.finish("filling", count, count, f"{count:,} enqueued in {report.enqueue_s:.1f} s")


def work(
    queue: Queue, workers: Sequence[Worker], total: int, screen: Screen, until: Callable[[], bool]
) -> float:
    """Run the workers until the condition holds; how long that took."""
    began = time.perf_counter()
    stop, pause = threading.Event(), threading.Event()
    with ThreadPoolExecutor(len(workers)) as pool:
        running: list[Future[None]] = [pool.submit(worker.run, queue, stop) for worker in workers]
        try:
            while not until() and not any(future.done() for future in running):
                acked = sum(worker.acked for worker in workers)
                screen.progress("working", acked, total, f"{acked:,} acked by {len(workers)} workers")
                pause.wait(REFRESH_S)
        finally:
            stop.set()
    for future in running:
        future.result()
    acked = sum(worker.acked for worker in workers)
    took = time.perf_counter() - began
    screen.finish("working", acked, total, f"{acked:,} acked by {len(workers)} workers, {took:.1f} s")
    return took


def set_up(ps: Penstock) -> Queue:
    ps.create_queue(DEAD_LETTERS)
    retry = Retry(policy="fixed", delay_s=0.2)
    return ps.create_queue(QUEUE, lease_s=2, max_attempts=3, retry=retry, dead_letter=DEAD_LETTERS)


def read_journal(queue: Queue, report: Report) -> None:
    after = 0
    while events := queue.events(after=after, limit=EVENTS_PAGE):
        for event in events:
            report.note(event)
        after = events[-1].seq


def play(target: Path, count: int, screen: Screen) -> bool:
    """The whole demonstration; whether everything is accounted for."""
    rng, report = random.Random(7), Report()
    workers = [
        Worker("steady", 2.0, random.Random(1)),
        Worker("clumsy", 2.0, random.Random(2), fails=0.05, rejects=0.003),
        Worker("forgetful", 0.3, random.Random(3), abandons=0.05),
    ]
    with penstock.open(target) as ps:
        queue = set_up(ps)
        info = ps.info().default
        print(f"\n  Penstock {penstock.__version__} on {info.engine}, durability {info.durability}\n")
        fill(queue, count, rng, screen, report)
        half = count // 2
        report.work_s = work(
            queue, workers, count, screen, lambda: sum(worker.acked for worker in workers) >= half
        )
        leased = queue.stats().leased
    began = time.perf_counter()
    with penstock.open(target) as ps:
        queue = ps.queue(QUEUE)
        screen.say(
            "restart", f"closed with {leased} leased, open again in {time.perf_counter() - began:.2f} s"
        )
        report.work_s += work(queue, workers, count, screen, lambda: queue.length() == 0)
        for worker in workers:
            worker.ack_late(queue)
        report.late = sum(worker.late for worker in workers)
        read_journal(queue, report)
        checked = ps.check()
        buried = ps.queue(DEAD_LETTERS).length()
        verdict = "ok" if checked.ok else f"{len(checked.problems)} problems, first: {checked.problems[0]}"
        screen.say("checking", f"{checked.messages:,} messages, {checked.events:,} events: {verdict}")
    show(report, buried)
    return checked.ok and not report.missing() and not report.twice() and buried == len(report.dead)


def show(report: Report, buried: int) -> None:
    """The summary table."""
    kinds, count = report.kinds, len(report.shops)
    acked = len(report.acked)
    reasons = ", ".join(f'{number:,} "{reason}"' for reason, number in report.reasons.most_common())
    rows = [
        ("enqueued", count, _listed(Counter(report.shops.values()))),
        (
            "delivered",
            kinds[Kind.LEASED],
            f"the first {sum(report.first.values()):,}: {_listed(report.first)}",
        ),
        ("acked", acked, "each exactly once" if not report.twice() else f"{report.twice()} more than once"),
        ("retried", kinds[Kind.NACKED], "failed, and came back after 0.2 s"),
        ("released", kinds[Kind.RELEASED], "lease ran out, handed to the next worker"),
        ("late acks", report.late, "refused: the lease was over"),
        ("dead", buried, reasons or "none"),
        ("missing", report.missing(), f"{count:,} enqueued = {acked:,} acked + {len(report.dead):,} dead"),
    ]
    print()
    for name, number, note in rows:
        print(f"  {name:<10} {number:>8,}   {note}")
    per_s = f"{count / report.enqueue_s:,.0f} enqueued/s, {acked / report.work_s:,.0f} acked/s"
    print(f"\n  rates      {per_s} (a batch of {LEASE_BATCH} is {WORK_S * 1000:.0f} ms of pretended work)")


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m penstock.demo", description="Show what Penstock does.")
    parser.add_argument("--messages", type=int, default=20_000, metavar="N", help="how many (20000)")
    parser.add_argument("--path", type=Path, metavar="FOLDER", help="keep the store in a new folder")
    options = parser.parse_args(arguments)
    if options.messages < 1:
        parser.error("--messages must be 1 or more")
    if options.path is not None and options.path.exists():
        parser.error(f"{options.path} exists; name a folder that does not")
    target = options.path or Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        fine = play(target, options.messages, Screen())
    except PenstockError as error:
        print(f"\n  {type(error).__name__}: {error}\n", file=sys.stderr)
        return 1
    if fine and options.path is None:
        shutil.rmtree(target)
        print("  store      was temporary and is removed; --path FOLDER keeps it\n")
    else:
        print(f"  store      {target}\n")
    if not fine:
        print("  Something is missing: the store is kept as it is.\n", file=sys.stderr)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
