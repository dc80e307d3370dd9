"""The demonstration from start to end: fill, work, break, and prove that nothing was lost."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

import penstock
from penstock import BackendNotInstalled, Kind, Penstock, PenstockError, Queue
from penstock.backends.base import CheckReport
from penstock.demo.crew import Crew
from penstock.demo.history import examine, keep
from penstock.demo.proof import Report
from penstock.demo.screen import Screen, progress_bar
from penstock.demo.shops import DEAD_LETTERS, QUEUE, batches, set_up

SEED = 7
ENQUEUE_BATCH = 500
#: The shops send for so long, unless there is little: the queue fills while it is worked on.
SENDING_S = 15.0
LOOK_EVERY_S = 0.2
#: Parts of the work after which the owner of the store is killed.
KILL_OWNER_AT = (0.25, 0.5, 0.75)
#: Longer than this is not slow, but stuck.
PATIENCE_S = 600.0
_NONE_IS_GOOD = ("missing", "audit")


class Shops(threading.Thread):
    """Enqueues everything, and remembers which ids were accepted."""

    def __init__(self, queue: Queue, count: int, report: Report, ending: threading.Event) -> None:
        super().__init__(name="shops", daemon=True)
        self.accepted: Counter[str] = Counter()
        self.error: BaseException | None = None
        self._queue, self._count, self._report, self._ending = queue, count, report, ending

    def run(self) -> None:
        try:
            pause_s = SENDING_S * ENQUEUE_BATCH / max(self._count, 100 * ENQUEUE_BATCH)
            for batch in batches(self._count, ENQUEUE_BATCH, random.Random(SEED)):
                results = self._queue.enqueue_many([message for _, message in batch])
                for (shop, _), result in zip(batch, results, strict=True):
                    if result.id is None:
                        raise result.error or AssertionError("neither id nor error")
                    self._report.shops[result.id] = shop
                    self.accepted[shop] += 1
                if self._ending.wait(pause_s):
                    return
        except BaseException as error:  # noqa: BLE001 (raised by the main thread)
            self.error = error


def work(ps: Penstock, count: int, crew: Crew, screen: Screen, report: Report) -> None:
    """Until everything is acked or dead."""
    queue, dead = ps.queue(QUEUE), ps.queue(DEAD_LETTERS)
    ending, kills = threading.Event(), list(KILL_OWNER_AT)
    shops = Shops(queue, count, report, ending)
    try:
        shops.start()
        with screen.shown():
            for _ in range(round(PATIENCE_S / LOOK_EVERY_S)):
                stats = queue.stats()
                finished = stats.acked_total + dead.length()
                screen.update(shops.accepted, stats, finished)
                if shops.error is not None:
                    raise shops.error
                if finished >= count:
                    return
                if kills and finished >= kills[0] * count:
                    kills.pop(0)
                    crew.kill_owner()
                crew.replace_the_dead()
                if crew.failed_to_start():
                    raise PenstockError("worker processes cannot open the store; their errors are above")
                ending.wait(LOOK_EVERY_S)
        raise PenstockError(f"not finished after {PATIENCE_S:.0f} s; the store is kept as it is")
    finally:
        ending.set()


def prove(ps: Penstock, console: Console, report: Report) -> CheckReport:
    """Read the whole journal, then have the store checked."""
    with progress_bar(console) as bars:
        reading = bars.add_task("journal", total=None)
        report.read(ps.queue(QUEUE), lambda done, of: bars.update(reading, completed=done, total=of))
        checking = bars.add_task("check", total=None)
        return ps.check(progress=lambda _, done, of: bars.update(checking, completed=done, total=of or None))


def summary(report: Report, crew: Crew, buried: int, took_s: float) -> list[tuple[str, int, str]]:
    """(what, how many, in words)"""
    kinds, count, acked = report.kinds, len(report.shops), len(report.acked)
    reasons = ", ".join(f'{number:,} "{reason}"' for reason, number in report.reasons.most_common())
    deaths = sum(member.deaths for member in crew.members)
    late = sum(member.late for member in crew.members)
    first = f"the first {report.first.total():,}: {_listed(report.first)}"
    return [
        ("enqueued", count, _listed(Counter(report.shops.values()))),
        ("delivered", kinds[Kind.LEASED], first),
        ("acked", acked, "each exactly once" if not report.twice() else f"{report.twice()} more than once"),
        ("retried", kinds[Kind.NACKED], "failed, and came back after 0.2 s"),
        ("released", kinds[Kind.RELEASED], "lease ran out: its worker died or dawdled"),
        ("late acks", late, "refused: the lease was over"),
        ("dead", buried, reasons or "none"),
        (
            "crashes",
            deaths,
            f"kill -9 of worker processes, {crew.owners_killed} of them owning the store",
        ),
        ("missing", report.missing(), f"{count:,} enqueued = {acked:,} acked + {len(report.dead):,} dead"),
        ("rate", round(count / took_s), f"messages a second from first to last, in {took_s:.0f} s"),
    ]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.most_common())


def play(folder: Path, count: int, console: Console) -> tuple[bool, dict[str, int]]:
    """The work, and the proof: whether everything is accounted for, and the numbers."""
    target = folder / "store"
    report, crew = Report(), Crew(target, batch=max(5, min(100, count // 200)), seed=SEED)
    with penstock.open(target) as ps:
        set_up(ps)
        keep(ps)
        info = ps.info().default
    where = f"{penstock.__version__} on {info.engine}, durability {info.durability}"
    what = f"{count:,} messages, {len(crew.members)} worker processes"
    console.print(f"\n  Penstock {where}: {what}\n", highlight=False, soft_wrap=True)
    began = time.perf_counter()
    with crew, penstock.open(target) as ps:
        work(ps, count, crew, Screen(console, crew, count), report)
        crew.end()
        took_s = time.perf_counter() - began
        checked = prove(ps, console, report)
        buried = ps.queue(DEAD_LETTERS).length()
    rows = summary(report, crew, buried, took_s)
    show(console, rows)
    verdict = "ok" if checked.ok else f"{len(checked.problems)} problems, first: {checked.problems[0]}"
    looked = f"{checked.messages:,} messages, {checked.events:,} events, {checked.queues} queues"
    console.print(Text(f"  {'check':<10} {verdict:>9}   {looked}", style="green" if checked.ok else "red"))
    fine = checked.ok and not report.missing() and not report.twice() and buried == len(report.dead)
    numbers = {name.replace(" ", "_"): number for name, number, _ in rows}
    numbers["rate_per_s"] = numbers.pop("rate")
    return fine, numbers


def tell(folder: Path, console: Console) -> tuple[bool, dict[str, int]]:
    """What Spark makes of its history, if it is installed: whether that fits, and the numbers."""
    try:
        history = examine(folder, console)
    except BackendNotInstalled as error:
        console.print(f"  {'report':<10}   not made: {error}", highlight=False, soft_wrap=True)
        return True, {}
    show(console, history.rows)
    console.print(f"  {'report':<10}   {history.page}", highlight=False, soft_wrap=True)
    return history.ok, {name: number for name, number, _ in history.rows}


def show(console: Console, rows: list[tuple[str, int, str]]) -> None:
    for name, number, note in rows:
        line = Text(f"  {name:<10} ").append(f"{number:>9,}", style="bold").append(f"   {note}")
        if name in _NONE_IS_GOOD:
            line.stylize("bold red" if number else "bold green")
        console.print(line, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="penstock demo", description="Show what Penstock does.")
    parser.add_argument("--messages", type=int, default=100_000, metavar="N", help="how many (100000)")
    parser.add_argument("--path", type=Path, metavar="FOLDER", help="keep all of it in a new folder")
    parser.add_argument("--no-spark", action="store_true", help="end without archive, audit and report")
    parser.add_argument("--json", action="store_true", help="print the numbers as one line of JSON")
    options = parser.parse_args(arguments)
    if options.messages < 1:
        parser.error("--messages must be 1 or more")
    if options.path is not None and options.path.exists():
        parser.error(f"{options.path} exists; name a folder that does not")
    folder = (options.path or Path(tempfile.mkdtemp(prefix="penstock-demo-"))).absolute()
    console = Console(stderr=options.json)
    try:
        fine, numbers = play(folder, options.messages, console)
        if not options.no_spark:
            fits, told = tell(folder, console)
            fine, numbers = fine and fits, {**numbers, **told}
    except PenstockError as error:
        Console(stderr=True).print(f"\n  {type(error).__name__}: {error}\n", markup=False)
        return 1
    except KeyboardInterrupt:
        Console(stderr=True).print(f"\n  stopped; everything is left in {folder}\n")
        return 130
    if options.json:
        print(json.dumps({"ok": fine, **numbers}))
    if fine and options.path is None:
        for made in ("store", "archive"):
            shutil.rmtree(folder / made, ignore_errors=True)
        with suppress(OSError):  # The report stays.
            folder.rmdir()
        console.print("  store      was temporary and is removed; --path FOLDER keeps it\n", highlight=False)
    else:
        console.print(f"  store      {folder / 'store'}\n", highlight=False, soft_wrap=True)
    if not fine:
        Console(stderr=True).print("  Something is not as it should be: the store is kept as it is.\n")
    return 0 if fine else 4


if __name__ == "__main__":
    sys.exit(main())
