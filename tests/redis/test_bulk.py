"""Bulk reads and writes on Redis under failure: killed committers and servers, traffic beside a snapshot."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import NewMessage, Penstock, Queue
from penstock.backends.bulk import BulkRequest, Snapshot, Staged, Txn, WriteTicket, Written
from penstock.backends.registry import open_reader, open_writer, release_snapshot
from penstock.clock import Clock
from penstock.errors import (
    BackendUnavailable,
    InvalidConfig,
    PenstockError,
    SnapshotNotFound,
    StorageCorrupt,
)
from penstock.message import State, state_after
from penstock.redis_places import PASSWORD_VARIABLE, place_of, settings_at
from penstock.redis_settings import RedisSettings, Secret
from tests.redis.one_server import started
from tests.redis.servers import RunningServer, wait_until
from tests.redis.stores import Place

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["lists", "streams"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str) -> Iterator[Place]:
    made = Place(kind)
    yield made
    made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    made = started(tmp_path / "server")
    yield made
    made.kill()


def read(snapshot: Snapshot, table: str, clock: Clock | None = None, **request: Any) -> list[dict[str, Any]]:
    with open_reader(snapshot, clock=clock) as reader:
        plan = reader.plan(BulkRequest(table=table, **request))  # type: ignore[arg-type]
        return [row for part in plan.partitions for batch in reader.read(part) for row in batch.to_pylist()]


def staged(url: str, rows: int, txn: Txn, partitions: int = 3) -> tuple[WriteTicket, list[Staged]]:
    with penstock.open(url) as ps:
        ticket = ps.begin_write("q")
    with open_writer(ticket) as writer:
        parts = [
            writer.stage(txn, part, [pa.record_batch({"payload": [b"%d" % n for n in numbers]})])
            for part in range(partitions)
            for numbers in [range(part, rows, partitions)]
        ]
    return ticket, parts


def everything(q: Queue) -> Counter[bytes]:
    return Counter(message.payload for message in q.iter())


# -- writes -------------------------------------------------------------------------------------


def test_a_committer_that_is_killed_leaves_nothing_doubled_or_missing(
    server: RunningServer, kind: str, tmp_path: Path
) -> None:
    url, rows = server.url(kind), 30_000
    with penstock.open(url) as ps:
        ps.create_queue("q")
    for version in range(3):
        txn = Txn("killed", version)
        ticket, parts = staged(url, rows, txn)
        before = server.do("XLEN", key(kind, "j"))
        file = tmp_path / f"{version}"
        file.write_bytes(pickle.dumps((ticket, txn, parts)))
        command = [sys.executable, "-m", "tests.redis.bulk_committer", url, str(file)]
        committer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert committer.stdout is not None
        committer.stdout.readline()
        wait_until(partial(_has_frames, server, kind, before + 2))
        committer.kill()
        committer.wait()
        committer.stdout.close()
        # Run again as a job is: staged anew, under another ticket.
        again, new_parts = staged(url, rows, txn)
        with penstock.open(url) as ps:
            q = ps.queue("q")
            written = ps.commit_write(again, txn, new_parts)
            assert (written.enqueued, written.existing) == (rows, 0)
            assert everything(q) == Counter(b"%d" % n for n in range(rows))
            assert ps.check().ok
            assert q.purge() == rows
    with server.client() as client:
        assert client.keys("*:write:*") == []


def key(kind: str, part: str) -> str:
    """One of the queue's keys, where a store has the prefix that it has unless told otherwise."""
    return f"penstock:{'ps1' if kind == 'lists' else 'pss1'}:{{q}}:{part}"


def _has_frames(server: RunningServer, kind: str, frames: int) -> bool:
    return bool(server.do("XLEN", key(kind, "j")) >= frames)


def test_a_server_that_is_killed_has_every_row_once(server: RunningServer, kind: str, tmp_path: Path) -> None:
    url, rows, txn = server.url(kind), 40_000, Txn("server", 1)
    with penstock.open(url) as ps:
        ps.create_queue("q")
    ticket, parts = staged(url, rows, txn)
    answers: list[Written | PenstockError] = []

    def commit() -> None:
        try:
            with penstock.open(url) as ps:
                answers.append(ps.commit_write(ticket, txn, parts))
        except PenstockError as error:
            answers.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    wait_until(partial(_has_frames, server, kind, 3))
    server.kill()
    server.start()
    thread.join(60)
    with penstock.open(url) as ps:
        written = ps.commit_write(ticket, txn, parts)
        assert (written.enqueued, written.existing) == (rows, 0)
        assert everything(ps.queue("q")) == Counter(b"%d" % n for n in range(rows))
        assert ps.check().ok
    assert isinstance(answers[0], Written | BackendUnavailable), answers


def test_whoever_keeps_house_finishes_what_a_killed_committer_began(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    txn = Txn("left", 1)
    ticket = ps.begin_write("q")
    with open_writer(ticket) as writer:
        part = writer.stage(txn, 0, [pa.record_batch({"payload": [b"%d" % n for n in range(2500)]})])
    # As if it had been killed when it had written down that all of it comes.
    writing = ps._backend("default")._writing  # type: ignore[attr-defined]
    job = ticket.queues["q"].number.to_bytes(4, "big") + b"left"
    writing._start(job, ticket, txn, [part])
    assert q.length() == 0
    while ps.sweep():
        pass
    assert q.length() == 2500
    assert ps.commit_write(ticket, txn, []) == Written(enqueued=2500, again=True)


def test_rows_that_were_swept_away_are_told_before_anything_is_written(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    ticket, txn = ps.begin_write("q"), Txn("gone", 1)
    with open_writer(ticket) as writer:
        part = writer.stage(txn, 0, [pa.record_batch({"payload": [b"a"]})])
    for key in place.client.keys(f"{place.prefix}*:write:*-0000"):
        place.client.delete(key)
    with pytest.raises(StorageCorrupt, match="run the job again"):
        ps.commit_write(ticket, txn, [part])
    assert q.length() == 0


def test_large_rows_are_taken_in_calls_of_their_own(place: Place) -> None:
    ps = place.open()
    ps.create_queue("q")
    payloads = [bytes((n,)) * (3_000_000 if n % 5 == 0 else 10) for n in range(20)]
    ticket, txn = ps.begin_write("q"), Txn("large", 1)
    with open_writer(ticket) as writer:
        part = writer.stage(txn, 0, [pa.record_batch({"payload": payloads})])
    assert len(part.chunks) == 8
    assert ps.commit_write(ticket, txn, [part]).enqueued == 20
    assert [message.payload for message in ps.queue("q").iter()] == payloads


# -- reads --------------------------------------------------------------------------------------


class Traffic(threading.Thread):
    """Every kind of change, without a pause."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._rng = random.Random(seed)
        self.over = threading.Event()
        self.errors: list[BaseException] = []

    def run(self) -> None:
        try:
            with penstock.open(self._url) as ps:
                while not self.over.is_set():
                    self._step(ps, ps.queue("q"))
        except BaseException as error:  # noqa: BLE001 (told by the test)
            self.errors.append(error)

    def _step(self, ps: Penstock, q: Queue) -> None:
        rng = self._rng
        q.enqueue_many(
            [
                NewMessage(b"t", fairness_key=f"k{rng.randrange(3)}", delay_s=rng.choice([0, 0, 0.05]))
                for _ in range(rng.randrange(20))
            ]
        )
        held = [one.receipt for one in q.lease(rng.randrange(1, 30), lease_s=rng.choice([0.05, 5]))]
        third = len(held) // 3
        q.ack(held[:third])
        q.nack(held[third : 2 * third], delay_s=rng.choice([0, 0.05]), reason="again")
        q.reject(held[2 * third : 2 * third + 2], reason="no")
        q.extend(held[2 * third + 2 :], lease_s=0.1)
        q.upsert([NewMessage(b"changed", id=one.id) for one in q.peek(2)])
        q.move([one.id for one in q.peek(1)], target="other")
        if rng.random() < 0.2:
            q.redrive(limit=2)
            q.purge("done")


def folded(events: list[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    """By id, the state that events lead to, and the attempts; a delay that has passed or not is the same."""
    found: dict[str, tuple[str, int]] = {}
    for row in events:
        event = penstock.Event(
            row["seq"], row["at_ns"], penstock.Kind(row["kind"]), bytes(16), row["attempt"], row["due_ns"],
            row["consumer"], row["reason"], row["extra"],
        )  # fmt: skip
        state = state_after(event)
        if state is None:
            found.pop(row["message_id"], None)
        else:
            attempts = row["attempt"] if row["kind"] != "redriven" else 0
            found[row["message_id"]] = (_waiting(str(state)), attempts)
    return found


def _waiting(state: str) -> str:
    return "waiting" if state in (State.READY, State.DELAYED) else state


def test_a_snapshot_stands_still_beside_traffic(server: RunningServer, kind: str) -> None:
    url = server.url(kind)
    with penstock.open(url) as ps:
        ps.create_queue("other")
        q = ps.create_queue("q", retention_s=5, max_attempts=3)
        q.enqueue_many([NewMessage(b"%d" % n, fairness_key=f"k{n % 3}") for n in range(3000)])
        traffic = [Traffic(url, seed) for seed in range(2)]
        for one in traffic:
            one.start()
        try:
            for round_ in range(4):
                first, second = ps.take_snapshot(), ps.take_snapshot()
                events = read(first, "events", names=("q",))
                expected = folded(events)
                rows: list[dict[str, Any]] = []
                for partitions in (1, 5):
                    rows = read(first, "messages", names=("q",), partitions=partitions)
                    found = {row["id"]: (_waiting(row["state"]), row["attempts"]) for row in rows}
                    assert len(found) == len(rows), "a message was read twice"
                    assert found == expected, round_
                (row,) = read(first, "queues", names=("q",))
                counts = Counter(_waiting(row["state"]) for row in rows)
                assert counts["waiting"] == row["ready"] + row["delayed"]
                assert [counts[state] for state in ("leased", "done", "dead")] == [
                    row[state] for state in ("leased", "done", "dead")
                ]
                release_snapshot(first)
                again = {one["id"] for one in read(second, "messages", names=("q",), columns=("id",))}
                assert again == set(folded(read(second, "events", names=("q",))))
                release_snapshot(second)
        finally:
            for one in traffic:
                one.over.set()
            for one in traffic:
                one.join(30)
        assert [error for one in traffic for error in one.errors] == []
        while ps.sweep():
            pass
        assert ps.check().ok
        assert (q.cursors(), q.stats().held_bodies) == ([], 0)
    with server.client() as client:
        assert client.keys("*:e") == client.keys("*:n") == client.keys("*snapshot:*") == []


def test_bodies_are_those_of_the_moment_whatever_came_under_their_ids_since(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    kept, replaced = q.enqueue(b"acked"), q.enqueue(b"old")
    snapshot = ps.take_snapshot()
    q.upsert([NewMessage(b"new", id=replaced)])
    q.ack([one.receipt for one in q.lease(2)])
    q.enqueue(b"another", id=kept)
    q.upsert([NewMessage(b"newest", id=kept)])
    for table in ("messages", "bodies"):
        assert {row["id"]: row["payload"] for row in read(snapshot, table, place.clock)} == {
            kept: b"acked",
            replaced: b"old",
        }
    release_snapshot(snapshot)
    while ps.sweep():
        pass
    assert ps.check().ok


def test_retention_waits_for_a_snapshot_and_goes_on_when_it_has_ended(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q", journal_retention_s=10)
    q.enqueue_many([NewMessage()] * 5)
    snapshot = ps.take_snapshot(lifetime_s=100)
    place.clock.advance(50)
    q.enqueue(b"")
    while ps.sweep():
        pass
    assert len(list(q.events())) == 6
    place.clock.advance(60)
    while ps.sweep():
        pass
    assert [event.seq for event in q.events()] == []
    with pytest.raises(SnapshotNotFound, match="100 s"), open_reader(snapshot, clock=place.clock):
        pass


def test_many_who_ask_for_one_snapshot_get_the_same_and_leave_nothing_behind(
    server: RunningServer, kind: str
) -> None:
    chosen, found = "00000000-0000-4000-8000-000000000001", list[Snapshot]()
    with penstock.open(server.url(kind)) as ps:
        q = ps.create_queue("q")
        q.enqueue(b"x")
        threads = [
            threading.Thread(target=lambda: found.append(ps.take_snapshot(id=chosen))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(set(map(str, found))) == 1
        assert len(found) == 8
        release_snapshot(found[0])
    assert server.do("KEYS", "*:e") == []
    assert server.do("HLEN", key(kind, "w")) == 0


def test_damaged_records_of_snapshots_and_jobs_stop_nobody(place: Place) -> None:
    ps = place.open()
    ps.create_queue("q").enqueue(b"x")
    keys = place.keys
    place.client.hset(keys.snapshots, "nonsense", b"\x01nonsense")
    place.client.hset(keys.jobs[0], b"\0\0\0\1bad", bytes(8) + b"t" * 32 + b"0nonsense")
    place.client.sadd(keys.jobs[2], b"\0\0\0\1bad")
    snapshot = ps.take_snapshot(lifetime_s=1)
    place.clock.advance(2)
    while ps.sweep():
        pass
    with pytest.raises(SnapshotNotFound), open_reader(snapshot, clock=place.clock):
        pass
    assert place.client.exists(place.key("q", "e")) == 0


def test_a_truncated_world_is_told(place: Place) -> None:
    ps = place.open()
    world = ps.journal("w")
    world.append([penstock.Entry("a")] * 3)
    snapshot = ps.take_snapshot()
    world.configure(retention_s=1)
    place.clock.advance(10)
    world.append([penstock.Entry("b")])
    while ps.sweep():
        pass
    with open_reader(snapshot, clock=place.clock) as reader:
        for skip, expected in ((False, None), (True, [])):
            how = "skip" if skip else "fail"
            plan = reader.plan(BulkRequest(table="entries", names=("w",), on_truncated=how))  # type: ignore[arg-type]
            if expected is None:
                with pytest.raises(penstock.HistoryTruncated):
                    list(reader.read(plan.partitions[0]))
            else:
                assert [b.num_rows for b in reader.read(plan.partitions[0])] == expected


def test_damage_is_told_with_its_place_and_set_aside_where_asked(place: Place) -> None:
    ps = place.open()
    q = ps.create_queue("q")
    bad, good = q.enqueue(b"bad"), q.enqueue(b"good")
    raw = penstock.message.parse_id(bad)
    place.spoil_body("q", raw, b"nonsense")
    snapshot = ps.take_snapshot()
    told: list[Any] = []
    with open_reader(snapshot, clock=place.clock) as reader:
        plan = reader.plan(BulkRequest(table="messages"))
        with pytest.raises(StorageCorrupt, match=bad):
            list(reader.read(plan.partitions[0]))
        plan = reader.plan(BulkRequest(table="messages", on_damage="skip"))
        rows = [row for batch in reader.read(plan.partitions[0], told.append) for row in batch.to_pylist()]
        reader.release()
    assert [row["id"] for row in rows] == [good]
    assert [damage.name for damage in told] == ["q"]


def test_a_damaged_row_of_the_catalogue_is_told_and_hides_no_other_queue(place: Place) -> None:
    ps = place.open()
    ps.create_queue("bad")
    ps.create_queue("q").enqueue(b"x")
    keys = place.keys
    whole = place.client.hget(keys.queues, "bad")
    place.client.hset(keys.queues, "bad", b"\x01nonsense")
    snapshot = ps.take_snapshot()
    with open_reader(snapshot, clock=place.clock) as reader:
        with pytest.raises(StorageCorrupt, match="'bad'"):
            reader.plan(BulkRequest(table="messages"))
        plan = reader.plan(BulkRequest(table="messages", on_damage="skip"))
        assert ([one.name for one in plan.damage], list(plan.extents)) == (["bad"], ["q"])
        reader.release()
    place.client.hset(keys.queues, "bad", whole)


# -- places -------------------------------------------------------------------------------------


def test_a_place_has_no_secret_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RedisSettings(key_prefix="p-", username="u", password=Secret("hush"))
    made = place_of(settings)
    assert "hush" not in made
    assert settings_at(made) == settings  # In this process, which was told.
    named = place_of(RedisSettings(password=Secret("x", template="${NAMED}")))
    monkeypatch.setenv("NAMED", "hidden")
    password = settings_at(named).password
    assert password is not None
    assert (password.read(), "hidden" in named) == ("hidden", False)
    monkeypatch.setenv(PASSWORD_VARIABLE, "of the environment")
    password = settings_at(place_of(RedisSettings())).password
    assert password is not None
    assert password.read() == "of the environment"


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"port": 1}', '{"nodes": 7}'])
def test_what_is_no_place_is_refused(text: str) -> None:
    snapshot = Snapshot(reader="redis", id="x", place=text, at_ns=1)
    with pytest.raises(InvalidConfig, match="no place"):
        open_reader(snapshot)
