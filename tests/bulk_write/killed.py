"""A process that forks others, each of which opens a store, commits a job and is killed on the way.

It has no store open itself and no threads, so that what it forks is as good as a process of its own. Orders
come as lines of JSON: folder, plan, what to do, the step to die at, before it or after it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from penstock.kv.rocksdb import RocksStore
from tests.bulk_write import scenario

#: What changes a store on disk, besides its own background work.
STEPS = ("write", "sync", "ingest")


class Killer:
    """Counts the steps of the stores of this process, and kills it at one of them."""

    def __init__(self, step: int, moment: str, sizes: Path) -> None:
        self._step, self._moment, self._sizes = step, moment, sizes
        self.armed = False
        self.taken = 0

    def patch(self) -> None:
        for name in STEPS:
            setattr(RocksStore, name, self._counted(name, getattr(RocksStore, name)))

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def step(store: RocksStore, *args: Any, **kwargs: Any) -> Any:
            if "scratch" in store._path:
                return method(store, *args, **kwargs)
            self.taken += self.armed
            due = self.armed and self.taken == self._step
            if due and self._moment == "before":
                self.die()
            answer = method(store, *args, **kwargs)
            if name == "sync" or kwargs.get("sync"):
                self._note(Path(store._path))
            if due:
                self.die()
            return answer

        return step

    def _note(self, folder: Path) -> None:
        """How much of each log survives a power cut from here on."""
        sizes = {file.name: file.stat().st_size for file in folder.glob("*.log")}
        self._sizes.write_text(json.dumps(sizes))

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def act(order: dict[str, Any]) -> None:
    folder = Path(order["folder"])
    plan = msgspec.msgpack.decode(Path(order["plan"]).read_bytes(), type=scenario.Plan)
    killer = Killer(order["step"], order["moment"], folder.with_suffix(".synced"))
    killer.patch()
    killer.armed = order["what"] == "open"
    with scenario.open_store(folder) as ps:
        killer.armed = True
        if order["what"] == "commit":
            scenario.commit(ps, plan)
        else:
            while ps.sweep():
                pass
        killer.armed = False


def serve() -> None:
    scenario.small_sizes()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                act(json.loads(line))
            finally:
                os._exit(0 if sys.exc_info()[0] is None else 1)
        print(os.waitpid(child, 0)[1], flush=True)  # noqa: T201 (the answer)


class Forker:
    """That process, from outside."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bulk_write.killed"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def run(self, folder: Path, plan: Path, what: str, step: int, moment: str) -> bool:
        """Whether it was killed; False if it came to its end first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"folder": str(folder), "plan": str(plan), "what": what, "step": step, "moment": moment}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        assert status in (0, signal.SIGKILL), f"{what} ended with {status}"
        return status == signal.SIGKILL

    def __enter__(self) -> Forker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=60)


if __name__ == "__main__":
    serve()
