"""The worker processes: started, watched, killed and replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.demo.worker import MANNERS

KINDS = ("crashing", "steady", "steady", "clumsy", "dawdling")
HAPPENINGS_KEPT = 6
OPENING_S = 60.0
_START = "import sys; from penstock.demo.worker import run; run(*sys.argv[1:])"


@dataclass
class Member:
    """One place in the crew: whoever works there now, and what all that worked there have done."""

    name: str
    kind: str
    process: subprocess.Popen[str] | None = None
    acked: int = 0
    failed: int = 0
    late: int = 0
    deaths: int = 0
    opening: threading.Event = field(default_factory=threading.Event)

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid


@dataclass
class Crew:
    """Everyone who works on the store in a folder."""

    folder: Path
    batch: int
    seed: int
    members: list[Member] = field(default_factory=list)
    acked: Counter[str] = field(default_factory=Counter)
    happenings: deque[str] = field(default_factory=lambda: deque(maxlen=HAPPENINGS_KEPT))
    owners_killed: int = 0
    _started: int = 0
    _ending: bool = False
    _owner: int | None = None
    _listeners: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        seen: Counter[str] = Counter()
        for kind in KINDS:
            seen[kind] += 1
            number = f" {seen[kind]}" if KINDS.count(kind) > 1 else ""
            self.members.append(Member(kind + number, kind))

    def __enter__(self) -> Crew:
        """The first of them opens the store before anyone else does, and so owns it."""
        for member in self.members:
            self._hire(member)
            if member is self.members[0]:
                member.opening.wait(OPENING_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _hire(self, member: Member) -> None:
        self._started += 1
        arguments = [str(self.folder), member.kind, str(self.batch), str(self.seed + self._started)]
        member.opening.clear()
        member.process = subprocess.Popen(
            [sys.executable, "-c", _START, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is the demonstration's own.
        )
        listener = threading.Thread(target=self._listen, args=(member, member.process), daemon=True)
        listener.start()
        self._listeners.append(listener)

    def _listen(self, member: Member, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                said = json.loads(line)
                member.opening.set()
                if "acked" in said:
                    self.acked.update(said["acked"])
                    member.acked += sum(said["acked"].values())
                    member.failed += said["failed"]
                    member.late += said["late"]

    def replace_the_dead(self) -> None:
        """Whoever died is mourned and replaced."""
        owner, self._owner = self._owner, self.owner()
        for member in self.members:
            if member.process is not None and member.process.poll() is not None and not self._ending:
                how = member.process.returncode
                cause = signal.Signals(-how).name if how < 0 else f"exit {how}"
                owned = ", which owned the store," if member.pid == owner else ""
                self.happenings.append(f"{member.name} ({member.pid}){owned} died: {cause}; replaced")
                member.deaths += 1
                self.owners_killed += member.pid == owner
                self._hire(member)

    def kill_owner(self) -> None:
        """Kill -9 whoever owns the store, if it is one of the crew."""
        owner = self.owner()
        for member in self.members:
            if member.process is not None and member.pid == owner:
                self._owner = owner
                member.process.kill()
                member.process.wait()

    def owner(self) -> int | None:
        try:
            return int((self.folder / "OWNER").read_text())
        except (OSError, ValueError):
            return None

    def failed_to_start(self) -> bool:
        """Whether one keeps dying before it has opened the store: then something is wrong."""
        return any(member.deaths > 5 and not member.acked for member in self.members)

    def working(self) -> Iterator[Member]:
        return (member for member in self.members if member.process is not None)

    def end(self) -> None:
        self._ending = True
        for member in self.working():
            if member.process is not None and member.pid != os.getpid():
                member.process.kill()
        for member in self.working():
            if member.process is not None:
                member.process.wait()
        for listener in self._listeners:
            listener.join()

    def describe(self, member: Member) -> str:
        return MANNERS[member.kind].what
