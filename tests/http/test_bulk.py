"""Bulk over HTTP: what a server gives leave for, for how long, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import urllib3

import penstock
from penstock import InvalidMessage, ManualClock, Penstock, SnapshotNotFound
from penstock.backends.bulk import BulkRequest, Snapshot, Written
from penstock.backends.http import wire
from penstock.backends.registry import open_reader, release_snapshot
from penstock.codec.answer import encode_answer
from penstock.errors import Unauthorized, Unsupported
from tests.http.bulk import TXN, arrow, post, read, rows_of, staged
from tests.http.running import Running
from tests.http.test_calls import Keys

# -- what the server has given, and what it has not


def test_a_snapshot_and_a_ticket_say_nothing_of_the_servers_machine(
    store: Penstock, ps: Penstock, tmp_path: Path
) -> None:
    store.create_queue("q").enqueue(b"x")
    snapshot, ticket = ps.take_snapshot(), ps.begin_write("q")
    with open_reader(snapshot) as reader:
        plan = reader.plan(BulkRequest(table="messages"))
    part = staged(ticket, rows_of(b"a"))
    for value in (snapshot, ticket, plan, part):
        assert str(tmp_path).encode() not in msgspec.msgpack.encode(value)


def test_what_the_server_did_not_give_is_refused(store: Penstock, server: Running, ps: Penstock) -> None:
    store.create_queue("q")
    snapshot, ticket = ps.take_snapshot(), ps.begin_write("q")
    own = Snapshot(reader="rocksdb", id=snapshot.id, place="/etc", at_ns=1)
    text, other = wire.text_of(snapshot.place), wire.text_of(ticket.place)
    made_up = ["", "x", "ü", "/etc/passwd", text[:-4] + "AAAA", "A" + text[1:], other, "AAAA" * 20]
    for value in made_up:
        assert post(server, "renew", encode_answer(value))[0] == 400
        assert post(server, "release", encode_answer(value))[0] == 400
        status, says = post(server, "plan", encode_answer((value, BulkRequest(table="events"))))
        assert (status, "run the job again" in says) == (400, True)
        assert post(server, "read", encode_answer((value, 0)))[0] == 400
        forged = msgspec.structs.replace(ticket, place=f"{server.url}#{value}")
        if value != other:
            with pytest.raises(InvalidMessage, match="WriteTicket"):
                ps.commit_write(forged, TXN, [])
            assert post(server, "stage", arrow(forged, rows_of(b"a")))[0] == 400
    assert post(server, "plan", encode_answer((own, BulkRequest(table="events"))))[0] == 400
    assert post(server, "nothing", b"")[0] == 404
    for what in ("plan", "read", "renew", "release", "stage"):
        for body in (b"", b"\xc1", b"[]", encode_answer([1, 2, 3])):
            assert post(server, what, body)[0] == 400
    url = f"{server.url}{wire.PREFIX}plan"
    assert urllib3.request("GET", url, headers={"connection": "close"}).status == 405
    assert read(snapshot, table="queues")[0]["name"] == "q"  # It was not released by any of this.


def test_what_another_stores_server_gave_is_refused(server: Running, ps: Penstock, tmp_path: Path) -> None:
    with penstock.open(f"rocksdb:{tmp_path / 'other'}?durability=os") as other:
        there = Running(other)
        with penstock.open(there.url) as remote:
            theirs = remote.take_snapshot()
        there.stop()
    with pytest.raises(InvalidMessage, match="no Snapshot"):
        release_snapshot(msgspec.structs.replace(theirs, place=f"{server.url}#{wire.text_of(theirs.place)}"))


def test_a_ticket_is_known_to_a_server_that_was_started_anew(store: Penstock) -> None:
    store.create_queue("q")
    first = Running(store)
    with penstock.open(first.url) as ps:
        ticket, snapshot = ps.begin_write("q"), ps.take_snapshot()
        part = staged(ticket, rows_of(b"a", b"b"))
    first.stop()
    second = Running(store, port=first.port)
    try:
        assert [row["name"] for row in read(snapshot, table="queues")] == ["q"]
        with penstock.open(second.url) as ps:
            assert ps.commit_write(ticket, TXN, [part]) == Written(enqueued=2)
    finally:
        second.stop()


def test_the_servers_secret_is_for_no_client(ps: Penstock, store: Penstock) -> None:
    store.create_queue("q")
    ps.begin_write("q")
    for attempt in (ps.state.get, ps.state.delete, lambda key: ps.state.put(key, b"mine")):
        with pytest.raises(Unauthorized, match="penstock/server/"):
            attempt("penstock/server/secret")
    assert store.state.get("penstock/server/secret") is not None
    script = """function on_enqueue(message)
        message.headers.found = penstock.get("penstock/server/secret") and "the secret" or "nothing"
    end"""
    thief = ps.create_queue("thief", on_enqueue=script)
    assert thief.get(thief.enqueue(b"")).headers == {"found": "nothing"}


def test_a_ticket_expires_a_day_after_its_job_began(
    store: Penstock, ps: Penstock, clock: ManualClock
) -> None:
    q = store.create_queue("q")
    ticket = ps.begin_write("q")
    part = staged(ticket, rows_of(b"a"))
    clock.advance(86_401)
    for attempt in (
        lambda: staged(ticket, rows_of(b"a")),
        lambda: ps.commit_write(ticket, TXN, [part]),
        lambda: ps.abort_write(ticket, TXN),
    ):
        with pytest.raises(InvalidMessage, match=r"expired.*run the job again"):
            attempt()
    # A stream has one ticket, and each of its batches begins when it is written.
    later = msgspec.structs.replace(ticket, at_ns=clock.now_ns())
    assert ps.commit_write(later, TXN, [staged(later, rows_of(b"b"))]) == Written(enqueued=1)
    assert q.lease()[0].payload == b"b"


def test_a_job_cannot_begin_in_the_future(store: Penstock, ps: Penstock, clock: ManualClock) -> None:
    q = store.create_queue("q")
    ticket = msgspec.structs.replace(ps.begin_write("q"), at_ns=clock.now_ns() + 10**18)
    ps.commit_write(ticket, TXN, [staged(ticket, rows_of(b"late"))])
    q.enqueue(b"next")
    assert [one.payload for one in q.lease(2)] == [b"late", b"next"]


# -- who may


@pytest.fixture
def guarded(store: Penstock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    for name in ("mine", "other"):
        store.create_queue(name).enqueue(name.encode())
    keys = Keys(
        reads={"mine": ("read",)},
        writes={"mine": ("enqueue",)},
        consumes={"*": ("consume",)},
        all={"*": ("admin",)},
    )
    running = Running(store, credentials=keys)
    yield running
    running.stop()


def opened(server: Running, token: str) -> Penstock:
    return penstock.open(server.url.replace("//", f"//{token}@"))


def test_a_bulk_read_needs_read_on_each_queue_that_it_names(guarded: Running) -> None:
    with opened(guarded, "reads") as ps:
        snapshot = ps.take_snapshot()
        assert guarded.url.split("//")[1] in snapshot.place
        assert "reads@" not in snapshot.place
        assert [row["payload"] for row in read(snapshot, table="messages", names=("mine",))] == [b"mine"]
        for request in (
            {"names": ("mine", "other")},
            {"pattern": "mine"},
            {},
            {"table": "entries", "names": ("mine",)},
        ):
            with pytest.raises(Unauthorized, match="'read'"):
                read(snapshot, **{"table": "messages", **request})
    for token in ("writes", "consumes"):
        with opened(guarded, token) as ps, pytest.raises(Unauthorized, match="'read' on some queue"):
            ps.take_snapshot()
    with opened(guarded, "all") as ps:
        assert len(read(ps.take_snapshot(), table="messages")) == 2


def test_a_snapshot_is_not_given_up_by_a_key_that_reads_nothing(
    guarded: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(guarded, "all") as ps:
        snapshot = ps.take_snapshot()
    monkeypatch.setattr("penstock.backends.http.place._given", {})
    monkeypatch.setenv("PENSTOCK_TOKEN", "writes")
    with pytest.raises(Unauthorized):
        release_snapshot(snapshot)
    with open_reader(snapshot) as reader, pytest.raises(Unauthorized):
        reader.renew()
    monkeypatch.setenv("PENSTOCK_TOKEN", "reads")
    with open_reader(snapshot) as reader:
        reader.renew()
        reader.release()
    with open_reader(snapshot) as reader, pytest.raises(SnapshotNotFound):
        reader.renew()


def test_a_partition_is_not_read_with_a_key_that_could_not_have_planned_it(guarded: Running) -> None:
    with opened(guarded, "all") as ps:
        snapshot = ps.take_snapshot()
        with open_reader(snapshot) as reader:
            plan = reader.plan(BulkRequest(table="messages"))
    with opened(guarded, "reads") as ps:
        ps.take_snapshot()  # From here on, this process shows that key there.
        with open_reader(snapshot) as reader, pytest.raises(Unauthorized):
            list(reader.read(plan.partitions[0]))


def test_a_bulk_write_needs_enqueue_on_the_queue_or_on_all(guarded: Running, store: Penstock) -> None:
    with opened(guarded, "writes") as ps:
        for queue in ("other", None):
            with pytest.raises(Unauthorized, match="permission"):
                ps.begin_write(queue)
        ticket = ps.begin_write("mine")
        part = staged(ticket, rows_of(b"new"))
    for token in ("reads", "consumes"):
        with opened(guarded, token) as ps:
            for attempt in (
                lambda: ps.commit_write(ticket, TXN, [part]),
                lambda: ps.abort_write(ticket, TXN),
            ):
                with pytest.raises(Unauthorized, match="'enqueue'"):
                    attempt()
    with opened(guarded, "writes") as ps:
        assert ps.commit_write(ticket, TXN, [part]) == Written(enqueued=1)
        with pytest.raises(Unauthorized, match="restore"):
            ps.restore("mine", [])


def test_readers_find_their_key_in_the_environment(guarded: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.backends.http.place._given", {})  # As in another process.
    with opened(guarded, "all") as ps:
        snapshot = ps.take_snapshot()
    monkeypatch.setattr("penstock.backends.http.place._given", {})
    with pytest.raises(Unauthorized):
        read(snapshot, table="queues")
    monkeypatch.setenv("PENSTOCK_TOKEN", "all")
    assert len(read(snapshot, table="queues")) == 2


def test_a_server_with_several_backends_has_no_bulk(tmp_path: Path) -> None:
    (tmp_path / "penstock.yaml").write_text(
        f"storage: {{path: {tmp_path / 'one'}, durability: os}}\nbackends: {{second: {{url: 'memory:'}}}}\n"
    )
    with penstock.open(tmp_path / "penstock.yaml") as both:
        running = Running(both)
        with penstock.open(running.url) as ps:
            assert not ps.info().default.capabilities.bulk_read
            for attempt in (ps.take_snapshot, ps.begin_write):
                with pytest.raises(Unsupported, match="several backends"):
                    attempt()
        running.stop()
