"""Snapshots taken while others write: each is one moment, whole, and no crash takes it back."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import NewMessage
from penstock.backends.bulk import Snapshot
from penstock.backends.registry import release_snapshot
from penstock.event import Event, Kind
from penstock.message import STORED_STATES, State, parse_id, state_after
from tests.bulk.reading import folders, opened, read


def writer(folder: Path, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.bulk.writer", str(folder), str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def folded(events: list[dict[str, Any]]) -> dict[str, State]:
    """Where a journal leaves each message; no delay passes meanwhile."""
    states: dict[str, State] = {}
    for row in events:
        event = Event(
            row["seq"],
            row["at_ns"],
            Kind(row["kind"]),
            parse_id(row["message_id"]),
            row["attempt"],
            row["due_ns"],
            row["consumer"],
            row["reason"],
            row["extra"],
        )
        state = state_after(event)
        if state is None:
            states.pop(event.message_id, None)
        else:
            states[event.message_id] = state
    return states


def prove(snapshot: Snapshot) -> int:
    """Counters, rows and events say the same; how many events there were."""
    (queue,) = read(snapshot, "queues")
    messages = read(snapshot, "messages", partitions=3)
    events = read(snapshot, "events", partitions=3)
    entries = read(snapshot, "entries", names=("w",))
    counted = Counter(row["state"] for row in messages)
    assert {str(state): queue[state] for state in STORED_STATES} == {
        str(state): counted[state] for state in STORED_STATES
    }
    assert [row["seq"] for row in events] == list(range(1, queue["last_seq"] + 1))
    assert {row["id"]: row["state"] for row in messages} == folded(events)
    assert all(row["headers"] == [("n", row["payload"].decode())] for row in messages)
    assert [row["seq"] for row in entries] == list(range(1, len(entries) + 1))
    return len(events)


def rounds(folder: Path, count: int) -> list[int]:
    """Snapshots, each proved, while a writer goes on that is killed now and then."""
    with opened(folder) as ps:
        ps.create_queue("q")
    seen: list[int] = []
    process = writer(folder, 0)
    try:
        with opened(folder) as ps:
            for number in range(count):
                if number % 3 == 2:  # The owner goes, this process takes over, and the writer is back.
                    kill(process)
                    process = writer(folder, number)
                snapshot = ps.take_snapshot()
                seen.append(prove(snapshot))
                release_snapshot(snapshot)
    finally:
        kill(process)
    return seen


def test_a_snapshot_is_one_moment_though_writers_go_on_and_owners_are_killed(tmp_path: Path) -> None:
    seen = rounds(tmp_path / "s", 4)
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
    assert folders(tmp_path / "s") == []


@pytest.mark.soak
def test_the_same_for_longer(tmp_path: Path) -> None:
    seen = rounds(tmp_path / "s", 60)
    assert seen == sorted(seen)


def after_power_cut(folder: Path, copy: Path) -> int:
    """The last event that another store has, whose log lost all that was not synced: here, all of it."""
    shutil.copytree(
        folder, copy, ignore=shutil.ignore_patterns("snapshots", "penstock.sock*", "OWNER", "LOCK")
    )
    for log in copy.glob("*.log"):
        log.write_bytes(b"")
    with opened(copy) as left:
        return left.queue("q").stats().last_seq


def test_what_a_snapshot_shows_no_power_cut_takes_away(tmp_path: Path) -> None:
    """Else an archive could have events that the store gives other messages after it."""
    with opened(tmp_path / "s") as ps:
        q = ps.create_queue("q")
        ps.take_snapshot()
        q.enqueue_many([NewMessage(b"x")] * 50)
        assert after_power_cut(tmp_path / "s", tmp_path / "before") == 0
        snapshot = ps.take_snapshot()
        q.enqueue_many([NewMessage(b"x")] * 50)
        assert len(read(snapshot, "events")) == 50
        assert after_power_cut(tmp_path / "s", tmp_path / "after") == 50
