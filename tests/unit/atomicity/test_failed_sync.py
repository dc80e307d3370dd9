"""After a failed sync nobody knows what the disk has: every call says so until the store is reopened."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from penstock import Entry, NewMessage, Queue, StorageError
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.message import State
from penstock.settings import queue_settings
from tests.unit.atomicity.operations import ID, System, arrange_full_queue, opened, receipts

CALLS: dict[str, Callable[[EmbeddedBackend], object]] = {
    "create_queue": lambda b: b.create_queue(queue_settings("new", {})),
    "create_queue of one that exists": lambda b: b.create_queue(queue_settings("q", {})),
    "update_queue": lambda b: b.update_queue(queue_settings("q", {}), queue_settings("q", {})),
    "delete_queue": lambda b: b.delete_queue("q"),
    "delete_queue of one that does not exist": lambda b: b.delete_queue("nowhere"),
    "replace_queues": lambda b: b.replace_queues([]),
    "declare_queues": lambda b: b.declare_queues([queue_settings("new", {})]),
    "queue": lambda b: b.queue("q"),
    "queues": lambda b: b.queues(),
    "enqueue": lambda b: b.enqueue("q", [NewMessage(b"")]),
    "enqueue nothing": lambda b: b.enqueue("q", []),
    "upsert": lambda b: b.upsert("q", [NewMessage(b"")]),
    "lease": lambda b: b.lease("q", 1, None, 0, ""),
    "lease_or_due": lambda b: b.lease_or_due("q", 1, None, ""),
    "watch": lambda b: b.watch("q", lambda: None),
    "ack": lambda b: b.ack("q", ["x"]),
    "nack": lambda b: b.nack("q", ["x"], None, ""),
    "reject": lambda b: b.reject("q", ["x"], ""),
    "extend": lambda b: b.extend("q", ["x"], 5),
    "move": lambda b: b.move("q", [ID], "kept"),
    "redrive": lambda b: b.redrive("q", 9, None),
    "purge": lambda b: b.purge("q", [State.READY]),
    "get_many": lambda b: b.get_many("q", [ID]),
    "peek": lambda b: b.peek("q", 1, 0),
    "page": lambda b: b.page("q", State.READY, None, None, 5),
    "stats": lambda b: b.stats("q"),
    "key_stats": lambda b: b.key_stats("q", 5),
    "due": lambda b: b.due(0, None, 5, None),
    "events": lambda b: b.events("q", 0, 5),
    "open_cursor": lambda b: b.open_cursor("q", "c", False),
    "read_cursor": lambda b: b.read_cursor("q", "c", 5),
    "commit_cursor": lambda b: b.commit_cursor("q", "c", 0),
    "drop_cursor": lambda b: b.drop_cursor("q", "c"),
    "cursors": lambda b: b.cursors("q"),
    "append_entries": lambda b: b.append_entries("world", [Entry("k")]),
    "scan_entries": lambda b: b.scan_entries("world"),
    "get_entries": lambda b: b.get_entries([ID]),
    "world_stats": lambda b: b.world_stats("world"),
    "configure_world": lambda b: b.configure_world("world", 1, None),
    "put_state": lambda b: b.put_state("key", b""),
    "get_state": lambda b: b.get_state("key"),
    "delete_state": lambda b: b.delete_state("key"),
    "set_throttle": lambda b: b.set_throttle("key", 1, 1),
    "get_throttle": lambda b: b.get_throttle("key"),
    "throttles": lambda b: b.throttles(),
    "delete_throttle": lambda b: b.delete_throttle("key"),
    "lease_while": lambda b: b.lease_while(lambda: True, "q", 1, None, 0, ""),
    "answer_of": lambda b: b.answer_of(b"caller", 1),
    "delivered": lambda b: b.delivered("q", []),
    "callers": lambda b: b.callers(),
    "forget": lambda b: b.forget([b"caller"]),
    "metrics": lambda b: b.metrics(),
    "check": lambda b: b.check(),
    "rekey": lambda b: b.rekey(),
    "check with repair": lambda b: b.check(repair=True),
    "reindex": lambda b: b.reindex(),
    "quarantine": lambda b: b.quarantine(9, None),
    "quarantine_get": lambda b: b.quarantine_get(ID),
    "quarantine_drop": lambda b: b.quarantine_drop([ID]),
    "restore": lambda b: b.restore("q", []),
    "sweep": lambda b: b.sweep(5),
}


def test_every_call_of_a_backend_is_listed_here() -> None:
    public = {name for name in vars(EmbeddedBackend) if not name.startswith("_")}
    properties = {name for name in public if isinstance(vars(EmbeddedBackend)[name], property)}
    others = {"info", "health", "close", "serving", "take_snapshot"}  # The last needs a store of files.
    assert public - properties - others <= {name.split()[0] for name in CALLS}


def after_failed_sync() -> System:
    system = System()
    arrange_full_queue(system)
    system.faults.fail_sync_at = system.faults.syncs + 1
    with pytest.raises(StorageError, match="sync failed"):
        system["q"].enqueue(b"in doubt")
    return system


@pytest.mark.parametrize("name", CALLS)
def test_after_a_failed_sync_every_call_says_to_reopen_the_store(name: str) -> None:
    system = after_failed_sync()
    with pytest.raises(StorageError, match="reopen"):
        CALLS[name](system.backend)


def test_after_a_failed_sync_health_says_so_and_info_still_answers() -> None:
    backend = after_failed_sync().backend
    assert backend.health().status == "unhealthy"
    assert "sync failed" in backend.health().reasons[0]
    assert backend.info().engine == "memory"
    backend.close()


def test_a_store_whose_sync_failed_works_again_when_reopened() -> None:
    system = after_failed_sync()
    for store in (system.store.reopen(), system.store.crash(random.Random(1))):
        backend = opened(store, system.clock)
        assert backend.check().problems == []
        before = Queue(backend, "q").length()
        Queue(backend, "q").enqueue(b"again")
        assert Queue(backend, "q").length() == before + 1


def test_a_failed_sync_lets_no_other_operation_claim_success() -> None:
    system = System()
    deliveries = system.leased()
    system.faults.fail_sync_at = system.faults.syncs + 1
    with pytest.raises(StorageError):
        system["q"].ack(receipts(deliveries[:1]))
    with pytest.raises(StorageError, match="reopen"):
        system["q"].ack(receipts(deliveries[1:]))
    lost = opened(system.store.crash(random.Random(0)), system.clock)
    assert Queue(lost, "q").stats().leased >= 2
