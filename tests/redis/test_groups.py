"""Groups on streams under trouble: clients and servers that are killed, lost answers, damage, and memory."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import InvalidConfig, InvalidMessage, NewMessage, Penstock, Queue, Worker
from penstock.backends.bulk import StoredMessage
from penstock.backends.redis.engine import Engine
from penstock.backends.redis.keys import BODIES
from penstock.testing.bulk_write_suite import Bulk
from penstock.testing.folding import prove_journal
from penstock.testing.group_suite import worked
from penstock.testing.harness import receipts
from tests.encryption.stores import ALL_KEYS
from tests.redis.interrupting import lose, server_of
from tests.redis.one_server import started
from tests.redis.servers import RunningServer
from tests.redis.stores import Place

ROOT = Path(__file__).resolve().parents[2]
WAITING = 4000


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place("streams")
    yield place
    place.close()


@pytest.fixture
def ps(place: Place) -> Penstock:
    return place.open()


@pytest.fixture
def q(ps: Penstock) -> Queue:
    q = ps.create_queue("q", lease_s=60)
    q.create_group("first")
    return q


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    server = started(tmp_path)
    yield server
    server.kill()


def fill(q: Queue, count: int = WAITING) -> None:
    for start in range(0, count, 1000):
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(start, start + 1000)])


def everything_once(found: list[bytes], count: int = WAITING) -> bool:
    return Counter(found) == Counter(b"%d" % n for n in range(count))


# -- killed


@pytest.mark.parametrize("seed", range(4))
def test_a_client_that_is_killed_while_it_makes_a_group_leaves_it_to_others(
    server: RunningServer, seed: int
) -> None:
    url, rng = server.url("streams"), random.Random(seed)
    with penstock.open(url) as ps:
        q = ps.create_queue("q")
        q.create_group("first")
        fill(q)
        maker = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/redis/joining.py"), url, "second"],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"begun\n"
        threading.Event().wait(0.08 * rng.random())
        maker.kill()
        maker.wait(20)
        maker.stdout.close()
        q.enqueue_many([NewMessage(b"later")])
        found = worked(q, "second")
        assert found.count(b"later") == 1
        assert everything_once([one for one in found if one != b"later"])
        assert ps.check().ok
        prove_journal(q.group("second"))


def test_a_group_that_is_half_made_is_made_whole_by_whoever_leases(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(q)
    run, seen = server_of(ps).run, [0]

    def dies(script: object, *args: object, **more: object) -> object:
        if getattr(script, "name", "") == "join":
            seen[0] += 1
            if seen[0] == 3:
                raise KeyboardInterrupt
        return run(script, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(server_of(ps), "run", dies)
    with pytest.raises(KeyboardInterrupt):
        q.create_group("second")
    monkeypatch.undo()
    other = place.open(2).queue("q")
    assert 0 < other.group("second").stats().ready < WAITING
    (early,) = other.group("second").lease(1)
    assert other.ack([early.receipt])[0].ok
    assert everything_once([early.payload, *worked(other, "second")])
    assert ps.check().ok


def test_a_server_that_is_killed_has_the_groups_as_they_were(server: RunningServer) -> None:
    url = server.url("streams")
    with penstock.open(url) as ps:
        q = ps.create_queue("q")
        for name in ("first", "second"):
            q.create_group(name)
        fill(q, 1000)
        q.ack(receipts(q.lease(100, group="first")))
        held = q.lease(100, group="second", lease_s=600)
        server.kill()
        server.start()
        assert all(outcome.ok for outcome in q.ack(receipts(held)))
        assert [(one.pending, one.lag) for one in q.groups()] == [(0, 900), (0, 900)]
        assert len(worked(q, "first")) == len(worked(q, "second")) == 900
        assert ps.check().ok
    with penstock.open(url) as ps:
        assert [one.name for one in ps.queue("q").groups()] == ["first", "second"]


# -- lost answers


def test_lost_answers_of_groups_do_nothing_twice(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(q, 1000)
    lose(monkeypatch, ps, "join")
    q.create_group("second")
    assert q.group("second").stats().ready == 1000
    lose(monkeypatch, ps, "enqueue", lambda: place.open(2).queue("q").create_group("third"))
    q.enqueue(b"once")
    for name in ("first", "second", "third"):
        lose(monkeypatch, ps, "lease")
        held = q.lease(1001, group=name)
        lose(monkeypatch, ps, "ack")
        assert all(outcome.ok for outcome in q.ack(receipts(held)))
        assert [one.payload for one in held].count(b"once") == 1
        assert len(held) == 1001
    q.enqueue(b"last")
    lose(monkeypatch, ps, "part")
    q.drop_group("third")
    assert (worked(q, "first"), worked(q, "second")) == ([b"last"], [b"last"])
    assert ps.check().ok
    assert place.bodies("q") == 0


def test_receipts_of_a_group_that_others_made_meanwhile_are_known(
    place: Place, ps: Penstock, q: Queue
) -> None:
    fill(q, 1000)
    mine = q.lease(2, group="first")  # One group is known here.
    theirs = place.open(2).queue("q").lease(2, group="second")
    mixed = [mine[0].receipt, theirs[0].receipt, "nonsense", mine[0].receipt]
    assert [outcome.ok for outcome in q.ack(mixed)] == [True, True, False, False]
    assert [outcome.ok for outcome in q.nack([theirs[1].receipt, mine[1].receipt])] == [True, True]
    assert ps.check().ok


def test_a_batch_of_slices_reaches_a_group_that_came_between_them(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, seen = server_of(ps).run, [0]

    def meanwhile(script: object, *args: object, **more: object) -> object:
        reply = run(script, *args, **more)  # type: ignore[arg-type]
        if getattr(script, "name", "") == "enqueue":
            seen[0] += 1
            if seen[0] == 1:
                place.open(2).queue("q").create_group("second")
        return reply

    monkeypatch.setattr(server_of(ps), "run", meanwhile)
    assert all(one.ok for one in q.enqueue_many([NewMessage(b"%d" % n) for n in range(3000)]))
    assert everything_once(worked(q, "second"), 3000)
    assert everything_once(worked(q, "first"), 3000)


def test_a_message_that_is_replaced_before_a_new_group_got_it_is_new_there(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [str(one.id) for one in q.enqueue_many([NewMessage(b"%d" % n) for n in range(1000)])]
    run, seen = server_of(ps).run, [0]
    other = place.open(2).queue("q")

    def meanwhile(script: object, *args: object, **more: object) -> object:
        if getattr(script, "name", "") == "join":
            seen[0] += 1
            if seen[0] == 2:
                news = [NewMessage(b"new %d" % n, id=one) for n, one in enumerate(ids)]
                assert all(one.ok for one in other.upsert(news))
        return run(script, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(server_of(ps), "run", meanwhile)
    q.create_group("second")
    assert Counter(worked(q, "second")) == Counter(b"new %d" % n for n in range(1000))
    assert len(worked(q, "first")) == 1000
    assert ps.check().ok


def test_a_drop_that_was_interrupted_is_finished_by_the_sweep(
    place: Place, ps: Penstock, q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_group("second")
    fill(q)
    worked(q, "first")
    run, seen = server_of(ps).run, [0]

    def dies(script: object, *args: object, **more: object) -> object:
        if getattr(script, "name", "") == "part":
            seen[0] += 1
            if seen[0] == 3:
                raise KeyboardInterrupt
        return run(script, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(server_of(ps), "run", dies)
    with pytest.raises(KeyboardInterrupt):
        q.drop_group("second")
    monkeypatch.undo()
    assert 0 < place.bodies("q") < WAITING
    assert [one.name for one in q.groups()] == ["first"]
    while ps.sweep():
        pass
    assert place.bodies("q") == 0
    assert ps.check().ok
    assert not [key for key in place.client.scan_iter() if b":g:" in key]


# -- damage and memory


def test_what_is_wrong_in_a_group_is_found_and_mended(place: Place, ps: Penstock, q: Queue) -> None:
    q.create_group("second")
    fill(q, 1000)
    held = q.lease(10, group="second", consumer="c")
    line = place.keys.queue("q", "second")
    shares = place.keys.queue("q")[-2]
    faults: list[tuple[Callable[[], object], str]] = [
        (lambda: place.client.zrem(line[3], place.client.zrange(line[3], 0, 0)[0]), "ready row missing"),
        (lambda: place.client.hset(shares, place.client.hkeys(shares)[0], 9), "shares"),
        (lambda: place.client.hset(shares, b"\0\0\0\xff\xff\xff", 2), "shares"),
        (lambda: place.client.xgroup_destroy(place.key("q", "m"), "second"), "not pending"),
        (lambda: place.client.delete(line[0]), "counters"),
    ]
    for damage, kind in faults:
        damage()
        assert kind in ps.check().counts, kind
        mended = ps.check(repair=True)
        assert mended.ok, (kind, mended)
    assert all(outcome.ok for outcome in q.ack(receipts(held)))
    assert (len(worked(q, "first")), len(worked(q, "second"))) == (1000, 990)
    assert place.bodies("q") == place.client.hlen(shares) == 0


def test_a_queue_whose_row_is_damaged_has_its_groups_back(place: Place, ps: Penstock, q: Queue) -> None:
    for name in ("se*[c]:ond", "third"):
        q.create_group(name)
    fill(q, 1000)
    held = q.lease(10, group="se*[c]:ond")
    q.lease(10, group="first")
    place.client.hset(place.keys.queues, "q", b"nonsense")
    other = place.open(2)
    assert "row" in other.check().counts
    mended = other.check(repair=True)
    assert mended.ok, mended
    assert [one.name for one in other.queue("q").groups()] == ["first", "se*[c]:ond", "third"]
    assert all(outcome.ok for outcome in other.queue("q").ack(receipts(held)))
    assert len(worked(other.queue("q"), "se*[c]:ond")) == 990
    assert len(worked(other.queue("q"), "third")) == 1000


def test_an_entry_goes_when_the_last_group_has_acked_it(place: Place, ps: Penstock, q: Queue) -> None:
    q.create_group("second")
    fill(q, 1000)
    worked(q, "first")
    assert place.bodies("q") == 1000
    q.ack(receipts(q.lease(300, group="second")))
    assert place.bodies("q") == 700
    ps.queue("q").purge()
    assert place.bodies("q") == 0
    assert place.client.hlen(place.keys.queue("q")[-2]) == 0


def test_the_servers_own_commands_tell_the_truth_of_each_group(place: Place, q: Queue) -> None:
    q.create_group("second")
    fill(q, 1000)
    q.lease(3, group="first", consumer="a")
    q.lease(5, group="second", consumer="b")
    rows = {row["name"]: row for row in place.client.xinfo_groups(place.key("q", "m"))}
    assert {name: row["pending"] for name, row in rows.items()} == {b"first": 3, b"second": 5}
    (consumer,) = place.client.xinfo_consumers(place.key("q", "m"), "second")
    assert (consumer["name"], consumer["pending"]) == (b"b", 5)


# -- workers


def test_workers_of_two_groups_each_run_every_message(place: Place) -> None:
    with penstock.open(place.url) as ps:  # Workers go by the time of day.
        ps.create_queue("q").enqueue_many([NewMessage(b"%d" % n) for n in range(50)])
        for name in ("first", "second"):
            ps.queue("q").create_group(name)
        seen: dict[str, list[bytes]] = {"first": [], "second": []}
        for name, found in seen.items():
            worker = Worker(ps, "q", lambda one, to=found: to.append(one.payload), group=name)
            assert worker.run(until_empty=True).succeeded == 50
        assert all(everything_once(found, 50) for found in seen.values())
        with pytest.raises(InvalidConfig, match="group"):
            Worker(ps, "q", print, group="")


def test_commands_take_messages_in_a_group(place: Place) -> None:
    with penstock.open(place.url) as ps:
        ps.create_queue("q").enqueue(b"payload")
        for name in ("first", "second"):
            words = ["--store", place.url, "lease", "q", "--group", name, "--raw"]
            done = subprocess.run(
                [sys.executable, "-m", "penstock", *words], cwd=ROOT, capture_output=True, check=True
            )
            assert done.stdout.startswith(b"payload")


# -- what a group is not


def test_messages_come_to_a_queue_and_leave_it_not_to_one_of_its_groups(ps: Penstock, q: Queue) -> None:
    ps.create_queue("other")
    q.create_group("second")
    q.enqueue(b"1", id="018f0000-0000-7000-8000-000000000001")
    line = q.group("second")
    for call in (
        lambda: line.enqueue(b"2"),
        lambda: line.upsert([NewMessage(b"2", id="018f0000-0000-7000-8000-000000000001")]),
        lambda: line.move(["018f0000-0000-7000-8000-000000000001"], "other"),
        lambda: q.move(["018f0000-0000-7000-8000-000000000001"], line.name),
        lambda: q.redrive(target=line.name),
    ):
        with pytest.raises(InvalidMessage, match="second"):
            call()
    assert ps.check().ok
    for group in ("first", "second"):
        assert [delivery.payload for delivery in q.lease(10, group=group)] == [b"1"]


def test_a_new_group_gets_what_waits_for_a_retry_in_its_turn(ps: Penstock, q: Queue) -> None:
    q.enqueue(b"1")
    q.nack(receipts(q.lease(1, group="first")), delay_s=600)
    q.enqueue(b"2")
    q.create_group("second")
    assert ps.check().ok
    assert [delivery.payload for delivery in q.lease(10, group="second")] == [b"1", b"2"]


def test_a_rekeying_leaves_what_groups_share_alone(place: Place) -> None:
    ps = place.sealed(ALL_KEYS, "main")
    q = ps.create_queue("q")
    for group in ("first", "second"):
        q.create_group(group)
    q.enqueue_many([NewMessage(b"%d" % n) for n in range(10)])
    q.nack(receipts(q.lease(3, group="first")), delay_s=0, reason="of a secret")
    newer = place.sealed(ALL_KEYS, "new")
    newer.rekey()
    for group in ("first", "second"):
        found = newer.queue("q").lease(20, group=group)
        assert len(found) == 10
        newer.queue("q").ack(receipts(found))
    assert newer.check().ok


def test_a_server_that_is_started_anew_while_a_group_is_filled_leaves_nothing_out(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(server.url("streams")) as ps:
        q = ps.create_queue("q")
        q.create_group("first")
        fill(q)
        run, slices = Engine.run, 0

        def restarting(engine: Engine, name: str, *args: Any) -> Any:
            nonlocal slices
            slices += name == "join"
            if slices == 10 and name == "join":
                server.kill()
                server.start()
            return run(engine, name, *args)

        monkeypatch.setattr(Engine, "run", restarting)
        q.create_group("second")
        assert slices > 20
        assert everything_once([delivery.payload for delivery in q.lease(2 * WAITING, group="second")])


def test_what_comes_in_bulk_or_from_another_store_comes_to_every_group(ps: Penstock, q: Queue) -> None:
    q.create_group("second")
    written = Bulk().write(ps, "q", {"payload": [b"%d" % n for n in range(20)]})
    ps.restore("q", [StoredMessage(id=str(uuid.UUID(int=1)), state="ready", payload=b"20")])
    assert written.enqueued == 20
    assert ps.check().ok
    for group in ("first", "second"):
        found = q.lease(30, group=group)
        assert everything_once([delivery.payload for delivery in found], 21)
        q.ack(receipts(found))
    backend: Any = ps._default
    assert server_of(ps).command("XLEN", backend._engine.queue("q").keys[BODIES]) == 0
    assert ps.check().ok
