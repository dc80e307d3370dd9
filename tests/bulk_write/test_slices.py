"""Between the slices of a commit: what others see and do, and what becomes of the rest."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import ManualClock, Penstock, StorageError, Txn, WriteTicket, Written
from penstock.backends.bulk import UNNAMED, Staged
from penstock.backends.embedded import chunks, ingesting, load_rows, loads, slices, staged
from penstock.testing.harness import drain

ROWS = 400
TXN = Txn("app", 1)


@pytest.fixture(autouse=True, params=[1, 1000], ids=["tables", "rows"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 50)
    monkeypatch.setattr(chunks, "TABLE_ROWS", request.param)
    monkeypatch.setattr("penstock.backends.embedded.stager.SLICE_ROWS", 25)
    monkeypatch.setattr(slices, "SLICE_ROWS", 100)
    monkeypatch.setattr(slices, "LOOSE_ROWS", 40)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ps(tmp_path: Path, clock: ManualClock) -> Iterator[Penstock]:
    with penstock.open(tmp_path / "store", clock=clock) as ps:
        ps.create_queue("q")
        yield ps


def payloads(count: int = ROWS) -> list[bytes]:
    return [b"%04d" % n for n in range(count)]


def stage(ticket: WriteTicket, txn: Txn = TXN, **columns: Any) -> list[Staged]:
    columns = {"payload": pa.array(payloads(), pa.binary()), **columns}
    with penstock.open_writer(ticket) as writer:
        return [writer.stage(txn, 0, [pa.record_batch(columns)])]


def stop_after(monkeypatch: pytest.MonkeyPatch, count: int, then: Any) -> None:
    """Between two slices, something happens."""
    taken, step = [0], loads.Loads._step

    def counted(self: loads.Loads, load: slices.Load) -> bool:
        if taken[0] == count:
            taken[0] += 1
            then()
        taken[0] += 1
        return step(self, load)

    monkeypatch.setattr(loads.Loads, "_step", counted)


def test_between_two_slices_others_see_the_first_of_them_and_the_store_is_sound(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket, seen = ps.begin_write("q"), []

    def look() -> None:
        seen.append(ps.queue("q").length())
        assert ps.check().ok
        assert [m.payload for m in ps.queue("q").list(limit=1000).items] == payloads(200)

    stop_after(monkeypatch, 2, look)
    assert ps.commit_write(ticket, TXN, stage(ticket)).enqueued == ROWS
    assert seen == [200]
    assert drain(ps.queue("q")) == payloads()


def test_a_small_job_comes_in_one_piece_however_many_partitions_it_has(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = ps.begin_write("q")
    with penstock.open_writer(ticket) as writer:
        parts = [
            writer.stage(TXN, n, [pa.record_batch({"payload": pa.array([b"%d" % n], pa.binary())})])
            for n in range(60)
        ]
    stop_after(monkeypatch, 1, lambda: seen.append(ps.queue("q").length()))
    seen: list[int] = []
    ps.commit_write(ticket, TXN, parts)
    assert seen == [60]
    assert drain(ps.queue("q")) == [b"%d" % n for n in range(60)]


def test_consumers_take_what_is_there_while_the_rest_comes(ps: Penstock) -> None:
    q, ticket = ps.queue("q"), ps.begin_write("q")
    got: list[bytes] = []
    parts, done = stage(ticket), threading.Event()

    def consume() -> None:
        while not done.is_set() or q.length():
            deliveries = q.lease(30)
            got.extend(delivery.payload for delivery in deliveries)
            q.ack([delivery.receipt for delivery in deliveries])

    consumer = threading.Thread(target=consume)
    consumer.start()
    ps.commit_write(ticket, TXN, parts)
    done.set()
    consumer.join()
    assert got == payloads()
    assert ps.check().ok


def test_callers_that_commit_the_same_job_together_do_it_once(ps: Penstock) -> None:
    ticket, answers = ps.begin_write("q"), []
    parts = stage(ticket)
    threads = [
        threading.Thread(target=lambda: answers.append(ps.commit_write(ticket, TXN, parts))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.enqueued for answer in answers] == [ROWS] * 4
    assert ps.queue("q").length() == ROWS


def test_what_comes_after_the_queue_was_deleted_is_gone_with_it(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = ps.begin_write("q")
    stop_after(monkeypatch, 2, lambda: ps.delete_queue("q"))
    assert ps.commit_write(ticket, TXN, stage(ticket)) == Written(enqueued=200)
    while ps.sweep():
        pass
    assert ps.check().ok


def test_a_purge_between_two_slices_takes_what_was_there(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket, purged = ps.begin_write("q"), []
    stop_after(monkeypatch, 2, lambda: purged.append(ps.queue("q").purge()))
    ps.commit_write(ticket, TXN, stage(ticket))
    assert purged == [200]
    assert drain(ps.queue("q")) == payloads()[200:]


def test_a_store_that_fails_in_the_middle_of_a_slice_stops_and_goes_on_when_it_is_opened(
    ps: Penstock, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "TABLE_ROWS", 1)
    ticket = ps.begin_write("q")
    parts = stage(ticket)
    with monkeypatch.context() as patch:
        patch.setattr(slices, "take_in_ready", _no_room)
        with pytest.raises(StorageError, match="no room"):
            ps.commit_write(ticket, TXN, parts)
        with pytest.raises(StorageError, match="cut short"):
            ps.queue("q").length()
    ps.close()
    with penstock.open(tmp_path / "store", clock=clock) as again:
        assert again.check().ok
        assert again.queue("q").length() == 100
        while again.sweep():
            pass
        assert again.commit_write(ticket, TXN, parts) == Written(enqueued=ROWS, again=True)
        assert drain(again.queue("q")) == payloads()


def test_a_job_that_was_under_way_is_finished_with_the_rows_that_it_began_with(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs it again is told that their own were not enqueued."""
    ticket = ps.begin_write("q")
    began = cut_off(ps, ticket, monkeypatch)
    other = ps.begin_write("q")
    parts = stage(other, payload=pa.array([b"other"] * ROWS, pa.binary()))
    assert ps.commit_write(other, TXN, parts) == Written(enqueued=ROWS, by=ticket.id)
    assert ps.commit_write(other, TXN, parts) == Written(enqueued=ROWS, by=ticket.id, again=True)
    assert ps.commit_write(ticket, TXN, began) == Written(enqueued=ROWS, again=True)
    assert drain(ps.queue("q")) == payloads()


@pytest.mark.parametrize(
    ("txn", "says"),
    [
        (TXN, "no room; but the commit has begun, .* itself: run it again only under the same txnAppId"),
        (Txn(f"{UNNAMED}x", 0), "no room; but the commit has begun, .* do not run it again"),
    ],
)
def test_a_commit_that_fails_when_it_has_begun_says_that_it_will_come(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch, txn: Txn, says: str
) -> None:
    """Or someone runs it anew, and has everything twice."""
    ticket = ps.begin_write("q")
    cut_off(ps, ticket, monkeypatch, txn, says)
    ps.abort_write(ticket, txn)
    while ps.sweep():
        pass
    assert drain(ps.queue("q")) == payloads()


def cut_off(
    ps: Penstock, ticket: WriteTicket, monkeypatch: pytest.MonkeyPatch, txn: Txn = TXN, says: str = "no room"
) -> list[Staged]:
    """A commit that finds no room for its third slice."""
    parts = stage(ticket, txn)
    with monkeypatch.context() as patch:
        stop_after(patch, 2, _no_room)
        with pytest.raises(StorageError, match=says):
            ps.commit_write(ticket, txn, parts)
    assert ps.queue("q").length() == 200
    return parts


@pytest.mark.parametrize("column", ["delay_s", "ttl_s"])
def test_rows_that_wait_or_expire_come_in_smaller_slices(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """Each is more work, and nobody else has their turn meanwhile."""
    ticket, seen = ps.begin_write("q"), []
    parts = stage(ticket, TXN, **{column: pa.array([3600.0] * ROWS)})
    assert {(chunk.rows, chunk.timed) for chunk in parts[0].chunks} == {(25, 25)}
    stop_after(monkeypatch, 1, lambda: seen.append(ps.queue("q").stats().enqueued_total))
    assert ps.commit_write(ticket, TXN, parts).enqueued == ROWS
    assert seen == [25]
    assert ps.check().ok


def halved(ps: Penstock, monkeypatch: pytest.MonkeyPatch) -> tuple[WriteTicket, list[Staged]]:
    """Rows with ids in slices of four chunks; in the first one an id is there already: it comes by halves."""
    monkeypatch.setattr(chunks, "TABLE_ROWS", 1)
    monkeypatch.setattr(slices, "SLICE_ROWS", 400)
    ids = [str(uuid.uuid5(uuid.NAMESPACE_URL, str(n))) for n in range(ROWS)]
    ps.queue("q").enqueue(b"was there", id=ids[90])
    ticket = ps.begin_write("q")
    parts = stage(ticket, id=ids)
    assert [chunk.rows for chunk in parts[0].chunks] == [25] * 16
    return ticket, parts


def check_halved(ps: Penstock, ticket: WriteTicket, parts: list[Staged]) -> None:
    written = ps.commit_write(ticket, TXN, parts)
    assert (written.enqueued, written.existing) == (ROWS - 1, 1)
    q = ps.queue("q")
    assert (q.stats().enqueued_total, ps.check().ok) == (ROWS, True)
    assert sorted(drain(q)) == sorted([*payloads()[:90], *payloads()[91:], b"was there"])


@pytest.mark.parametrize("step", ["announced", "bodies"])
def test_a_commit_that_is_interrupted_goes_on_when_the_store_is_opened_and_not_before(
    ps: Penstock, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Ctrl-C during a call of the driver is raised right behind it."""
    ticket, parts = halved(ps, monkeypatch)
    real = ingesting.take_in_bodies

    def interrupted(*args: Any) -> None:
        if step == "bodies":
            real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(slices, "take_in_bodies", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ps.commit_write(ticket, TXN, parts)
    for call in (lambda: ps.queue("q"), lambda: ps.commit_write(ticket, TXN, parts)):
        with pytest.raises(StorageError, match=r"cut short, .*: KeyboardInterrupt"):
            call()
    ps.close()
    with penstock.open(tmp_path / "store", clock=clock) as again:
        check_halved(again, ticket, parts)


def test_a_slice_goes_on_with_the_chunks_that_were_announced(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has cut it off: more of them might have ids that are there already."""
    ticket, parts = halved(ps, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(slices, "take_in_bodies", _interrupt)
        patch.setattr(slices.Slices, "_stop", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            ps.commit_write(ticket, TXN, parts)
    check_halved(ps, ticket, parts)


def test_a_store_stops_that_cannot_take_back_what_it_has_announced(
    ps: Penstock, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket, parts = halved(ps, monkeypatch)

    def no_room(*args: object) -> None:
        patch.setattr(load_rows, "put_progress", _no_room)
        raise StorageError("no tables")

    with monkeypatch.context() as patch:
        patch.setattr(slices, "take_in_bodies", no_room)
        with pytest.raises(StorageError, match="no room"):
            ps.commit_write(ticket, TXN, parts)
        with pytest.raises(StorageError, match=r"cut short, .*: no room"):
            ps.queue("q").length()
    ps.close()
    with penstock.open(tmp_path / "store", clock=clock) as again:
        check_halved(again, ticket, parts)


def _interrupt(*args: object) -> None:
    raise KeyboardInterrupt


def _no_room(*args: object) -> None:
    raise StorageError("no room")


# -- clearing away ----------------------------------------------------------------------------------


def test_what_nobody_commits_is_swept_after_a_day_and_not_before(ps: Penstock, clock: ManualClock) -> None:
    clock.set_ns(penstock.SystemClock().now_ns())
    ticket = ps.begin_write("q")
    stage(ticket)
    folder = Path(ticket.place, staged.STAGING)
    clock.advance(loads.STAGED_KEPT_S - 600)
    ps.sweep()
    assert len(list(folder.iterdir())) == 1
    clock.advance(1200)
    ps.sweep()
    assert list(folder.iterdir()) == []


def test_jobs_are_known_for_a_month_and_those_without_a_name_for_a_day(
    ps: Penstock, clock: ManualClock
) -> None:
    ticket = ps.begin_write("q")
    named, unnamed = Txn("app", 1), Txn(f"{UNNAMED}x", 1)
    for txn in (named, unnamed):
        ps.commit_write(ticket, txn, [])
    clock.advance(load_rows.UNNAMED_KEPT_S + 1)
    ps.sweep()
    assert not ps.commit_write(ticket, unnamed, []).again
    assert ps.commit_write(ticket, named, []).again
    clock.advance(load_rows.NAMED_KEPT_S)
    ps.sweep()
    assert not ps.commit_write(ticket, named, []).again


def test_only_so_many_jobs_are_known(
    ps: Penstock, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_rows, "TXNS_KEPT", 3)
    ticket = ps.begin_write("q")
    for n in range(6):
        clock.advance(1)
        ps.commit_write(ticket, Txn(f"app {n}", 1), [])
    clock.advance(loads.CLEAR_EVERY_S)
    ps.sweep()
    assert [ps.commit_write(ticket, Txn(f"app {n}", 1), []).again for n in range(6)] == [False] * 3 + [
        True
    ] * 3


def test_a_job_that_is_not_known_any_more_does_not_double_what_is_still_there(
    ps: Penstock, clock: ManualClock
) -> None:
    ticket = ps.begin_write("q")
    ps.commit_write(ticket, TXN, stage(ticket))
    q = ps.queue("q")
    q.ack([delivery.receipt for delivery in q.lease(100)])
    clock.advance(load_rows.NAMED_KEPT_S + 1)
    ps.sweep()
    ticket = ps.begin_write("q")
    assert ps.commit_write(ticket, TXN, stage(ticket)) == Written(enqueued=100, existing=ROWS - 100)
    assert ps.check().ok
    assert sorted(drain(q)) == payloads()


def test_only_the_user_may_look_at_what_is_staged(ps: Penstock) -> None:
    stage(ps.begin_write("q"))
    for folder in Path(ps.info().default.path or "", staged.STAGING).iterdir():
        assert folder.stat().st_mode & 0o077 == 0
