"""docs/limits.md says that these are refused by name. They are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import InvalidConfig, ManualClock, Penstock, StoreLocked, Unsupported
from penstock.backends import sharing
from penstock.backends.embedded.checking.folding import EVENTS_PER_PART
from penstock.backends.embedded.keys import SPACES
from penstock.backends.embedded.reads import ROWS_PER_FILTERED_ITEM
from penstock.kv.rocksdb import RocksStore
from tests.docs.pages import DOCS, section

PAGE = DOCS / "limits.md"


@pytest.fixture
def ps() -> Any:
    with penstock.open("memory:", clock=ManualClock()) as opened:
        yield opened


@pytest.mark.parametrize("url", ["sqs://localhost", "postgres://localhost/db"])
def test_backends_that_are_not_there_are_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidConfig, match=r"not known; known: .*memory, .*rocksdb"):
        penstock.open(url)


def test_every_capability_that_is_off_is_listed(ps: Penstock) -> None:
    flags = ps.info().default.capabilities
    off = [flag for flag in flags.__struct_fields__ if not getattr(flags, flag)]
    # Properties of an engine, which no call asks for.
    assert set(off) - {"persistence", "clustering"} == {"consumer_groups", "bulk_read", "bulk_write"}
    queue = ps.create_queue("q")
    with pytest.raises(Unsupported, match="consumer_groups"):
        queue.lease(group="g")
    with pytest.raises(Unsupported, match="bulk_read"):
        ps.take_snapshot()
    with pytest.raises(Unsupported, match="bulk_write"):
        ps.begin_write("q")


def test_a_foreign_program_that_holds_the_database_makes_it_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "PATIENCE_S", 0.1)
    store = RocksStore.open(tmp_path / "data", SPACES)
    with pytest.raises(StoreLocked) as locked:
        penstock.open(tmp_path / "data")
    assert locked.value.retryable
    store.close()
    penstock.open(tmp_path / "data").close()


def test_a_filtered_page_may_be_short_with_next_set(ps: Penstock) -> None:
    assert ROWS_PER_FILTERED_ITEM == 20
    queue = ps.create_queue("q")
    queue.enqueue_many([penstock.NewMessage(b"", fairness_key="many") for _ in range(60)])
    queue.enqueue(b"", fairness_key="one")
    assert len(queue.lease(100)) == 61
    found, after, pages = [], None, 0
    while True:
        page = queue.list("leased", fairness_key="one", after=after, limit=1)
        found += page.items
        pages += 1
        if page.next is None:
            break
        after = page.next
    assert (len(found), pages > 2) == (1, True)


def test_a_full_page_has_next_set_even_if_nothing_follows(ps: Penstock) -> None:
    queue = ps.create_queue("q")
    queue.enqueue(b"")
    page = queue.list(limit=1)
    assert page.next is not None
    assert queue.list(limit=1, after=page.next).items == []


def test_rates_start_anew_and_totals_do_not(tmp_path: Path) -> None:
    clock = ManualClock()
    with penstock.open(tmp_path / "data", clock=clock) as opened:
        opened.create_queue("q").enqueue(b"")
        assert opened.queue("q").stats().enqueue_rate_per_s > 0
    with penstock.open(tmp_path / "data", clock=clock) as opened:
        stats = opened.queue("q").stats()
        assert (stats.enqueue_rate_per_s, stats.enqueued_total) == (0, 1)


def test_a_held_body_cannot_be_read(ps: Penstock) -> None:
    queue = ps.create_queue("q")
    queue.cursor("archive", required=True)
    message_id = queue.enqueue(b"")
    queue.ack([queue.lease()[0].receipt])
    assert queue.stats().held_bodies == 1
    with pytest.raises(penstock.MessageNotFound):
        queue.get(message_id)


def test_check_keeps_the_messages_of_as_many_events_as_the_page_says() -> None:
    assert f"{EVENTS_PER_PART:,} events" in section(PAGE, "Journal")


def test_an_entry_id_of_the_users_is_not_used(ps: Penstock) -> None:
    (given,) = ps.journal("w").append([penstock.Entry("k", id="mine")])
    assert given != "mine"
