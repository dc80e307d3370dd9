"""Who may do what: every operation of the typed interface, with every kind of key, over a real server."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import penstock
from penstock import Penstock, SystemClock
from penstock.server.access import PERMISSIONS
from penstock.server.audit import WORLD
from penstock.server.credentials import CredentialsFile, hash_of
from penstock.server.native.permissions import AUDITED
from penstock.server.rest.openapi import document
from penstock.server.rest.table import TABLE
from tests.server.rest.api import Api, Told, api

ID = "01890000-0000-7000-8000-000000000000"
VALUE = base64.b64encode(b"v").decode()
#: name of a key -> its grants. The queue in question is `q`.
KEYS: dict[str, dict[str, list[str]]] = {
    "enqueue": {"q*": ["enqueue"]},
    "consume": {"q*": ["consume"]},
    "read": {"q*": ["read"]},
    "admin": {"q*": ["admin"]},
    "enqueue*": {"*": ["enqueue"]},
    "consume*": {"*": ["consume"]},
    "read*": {"*": ["read"]},
    "admin*": {"*": ["admin"]},
    "other": {"other": ["enqueue", "consume", "read", "admin"]},
    "nothing": {},
    "mover": {"q": ["admin"], "other": ["enqueue"]},
}
NO_KEY, WRONG_KEY = "no key", "wrong key"
EVERY_KEY = frozenset(KEYS)
ON_Q = frozenset({"enqueue", "consume", "read", "admin", "enqueue*", "consume*", "read*", "admin*", "mover"})
MAY_ENQUEUE = frozenset({"enqueue", "enqueue*", "admin", "admin*", "mover"})
MAY_CONSUME = frozenset({"consume", "consume*", "admin", "admin*", "mover"})
MAY_READ = frozenset({"read", "read*", "admin", "admin*", "mover"})
MAY_ADMIN = frozenset({"admin", "admin*", "mover"})
STORE_ENQUEUE = frozenset({"enqueue*", "admin*"})
STORE_READ = frozenset({"read*", "admin*"})
STORE_ADMIN = frozenset({"admin*"})


class Row(NamedTuple):
    """A request, who may make it, and what they are answered."""

    path: str
    allowed: frozenset[str]
    asked: Any = None
    status: int = 200


MESSAGES = {"messages": [{"payload": VALUE}]}
RECEIPTS = {"receipts": ["none"]}
#: operation -> what is asked. Every operation of the interface must be here.
OPERATIONS: dict[str, Row] = {
    "list_queues": Row("/queues", EVERY_KEY),
    "replace_queues": Row("/queues", STORE_ADMIN, {"queues": [{"name": "q"}, {"name": "other"}]}),
    "get_queue": Row("/queues/q", ON_Q),
    "create_queue": Row("/queues/q-new", frozenset({"admin", "admin*"}), {}, 201),
    "update_queue": Row("/queues/q", MAY_ADMIN, {"lease_s": 9}),
    "delete_queue": Row("/queues/q", MAY_ADMIN),
    "queue_stats": Row("/queues/q/stats", MAY_READ),
    "queue_length": Row("/queues/q/length", MAY_READ),
    "key_stats": Row("/queues/q/keys", MAY_READ),
    "purge": Row("/queues/q/purge", MAY_ADMIN, {}),
    "redrive": Row("/queues/q/redrive", MAY_ADMIN, {"target": "q"}),
    # Consumer groups are not on this store: who may is told that.
    "list_groups": Row("/queues/q/groups", MAY_READ, None, 400),
    "create_group": Row("/queues/q/groups/g", MAY_CONSUME, None, 400),
    "drop_group": Row("/queues/q/groups/g", MAY_ADMIN, None, 400),
    "enqueue": Row("/queues/q/messages", MAY_ENQUEUE, MESSAGES),
    "upsert": Row("/queues/q/messages", MAY_ENQUEUE, MESSAGES),
    "list_messages": Row("/queues/q/messages", MAY_READ),
    "get_message": Row(f"/queues/q/messages/{ID}", MAY_READ),
    "peek": Row("/queues/q/peek", MAY_READ),
    "lease": Row("/queues/q/lease", MAY_CONSUME, {}),
    "ack": Row("/queues/q/ack", MAY_CONSUME, RECEIPTS),
    "nack": Row("/queues/q/nack", MAY_CONSUME, RECEIPTS),
    "reject": Row("/queues/q/reject", MAY_CONSUME, RECEIPTS),
    "extend": Row("/queues/q/extend", MAY_CONSUME, {**RECEIPTS, "lease_s": 5}),
    "move": Row("/queues/q/move", frozenset({"admin", "admin*"}), {"ids": [ID], "target": "q-target"}),
    "list_events": Row("/queues/q/events", MAY_READ),
    "list_cursors": Row("/queues/q/cursors", MAY_READ),
    "open_cursor": Row("/queues/q/cursors/c2", MAY_CONSUME, {}),
    "drop_cursor": Row("/queues/q/cursors/c", MAY_CONSUME),
    "read_cursor": Row("/queues/q/cursors/c/events", MAY_CONSUME),
    "commit_cursor": Row("/queues/q/cursors/c/commit", MAY_CONSUME, {"seq": 1}),
    "world_stats": Row("/journals/w", STORE_READ),
    "configure_world": Row("/journals/w", STORE_ADMIN, {"retention_s": 60}),
    "append_entries": Row("/journals/w/entries", STORE_ENQUEUE, {"entries": [{"kind": "k"}]}),
    "scan_entries": Row("/journals/w/entries", STORE_READ),
    "get_entries": Row(f"/entries?id={ID}", STORE_READ),
    "get_info": Row("/info", EVERY_KEY),
    "get_health": Row("/health", STORE_READ),
    "get_metrics": Row("/metrics", STORE_READ),
    "list_due": Row("/due", STORE_READ),
    "check": Row("/check", STORE_ADMIN, {}),
    "reindex": Row("/reindex", STORE_ADMIN),
    "rekey": Row("/rekey", STORE_ADMIN),
    "sweep": Row("/sweep", STORE_ADMIN, {"budget": 1}),
    "list_quarantine": Row("/quarantine", STORE_ADMIN),
    "get_quarantined": Row(f"/quarantine/{ID}", STORE_ADMIN, None, 404),
    "drop_quarantined": Row(f"/quarantine?id={ID}", STORE_ADMIN),
    "get_state": Row("/state/k", STORE_READ),
    "put_state": Row("/state/k", STORE_ADMIN, {"value": VALUE}),
    "delete_state": Row("/state/k", STORE_ADMIN),
    "list_throttles": Row("/throttles", STORE_READ),
    "get_throttle": Row("/throttles/t", STORE_READ),
    "set_throttle": Row("/throttles/t", STORE_ADMIN, {"rate_per_s": 1, "burst": 1}),
    "delete_throttle": Row("/throttles/t", STORE_ADMIN),
}
ROUTES = {route.name: route for route in TABLE.routes}
#: What needs more than its operation does: a name for it -> the operation, and its row.
SPECIAL: dict[str, tuple[str, Row]] = {
    "move to another's queue": (
        "move",
        Row("/queues/q/move", frozenset({"admin*", "mover"}), {"ids": [ID], "target": "other"}),
    ),
    "redrive to another's queue": (
        "redrive",
        Row("/queues/q/redrive", frozenset({"admin*", "mover"}), {"target": "other"}),
    ),
    "redrive to wherever each came from": ("redrive", Row("/queues/q/redrive", STORE_ADMIN, {})),
    "a dead letter queue that is another's": (
        "update_queue",
        Row("/queues/q", frozenset({"admin*", "mover"}), {"dead_letter": "other"}),
    ),
    "a script, which reads the store's state": (
        "update_queue",
        Row("/queues/q", STORE_ADMIN, {"on_failure": "function on_failure() return 'dead' end"}),
    ),
    "the audit": ("append_entries", Row(f"/journals/{WORLD}/entries", frozenset(), {"entries": []})),
    "how long the audit is kept": (
        "configure_world",
        Row(f"/journals/{WORLD}", frozenset(), {"max_bytes": 1}),
    ),
    "the server's secret": ("get_state", Row("/state/penstock%2Fserver%2Fsecret", frozenset())),
    "the server's secret, to set": (
        "put_state",
        Row("/state/penstock%2fserver%2Fsecret", frozenset(), {"value": VALUE}),
    ),
    "a queue whose name is none": ("queue_stats", Row("/queues/q%00/stats", STORE_READ, None, 404)),
    "a queue that is not there": (
        "queue_stats",
        Row("/queues/q-nowhere/stats", MAY_READ - {"mover"}, None, 404),
    ),
    "checks that mend": ("check", Row("/check", STORE_ADMIN, {"repair": True})),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    entries = {name: {"token_sha256": hash_of(f"psk_{name}"), "grants": KEYS[name]} for name in KEYS}
    path.write_bytes(msgspec.json.encode({"keys": entries}))
    os.chmod(path, 0o600)
    with penstock.open("memory:") as ps, api(ps, CredentialsFile(str(path), SystemClock())) as served:
        yield served


def arrange(ps: Penstock) -> None:
    """Everything that the rows name is there, whatever the request before has done."""
    there = {settings.name for settings in ps.queues()}
    for name in {"q", "q-target", "other"} - there:
        ps.create_queue(name)
    if "q-new" in there:
        ps.delete_queue("q-new")
    ps.update_queue("q", dead_letter=None, on_failure=None)
    for name in ("q", "q-target", "other"):
        ps.queue(name).purge()
    ps.queue("q").purge("leased")
    ps.queue("q").enqueue(b"", id=ID)
    ps.queue("q").cursor("c")
    ps.state.put("k", b"v")
    ps.throttles.set("t", 5, 5)


def seen(ps: Penstock) -> list[object]:
    """What a request may change. Administration that is refused later stands in the audit all the same."""
    queues = ps.queues()
    counted = [ps.queue(settings.name).stats().last_seq for settings in queues]
    worlds = [ps.journal(name).stats() for name in ("w", "_penstock")]
    cursors = list(ps.queue("q").cursors())
    limits = [(one.key, one.rate_per_s, one.burst) for one in ps.throttles.list()]  # Its tokens grow by time.
    return [queues, counted, worlds, cursors, ps.state.get("k"), limits]


def ask(served: Api, operation: str, row: Row, key: str) -> Told:
    headers = {} if key == NO_KEY else {"authorization": f"Bearer psk_{key}"}
    return served(ROUTES[operation].verb, row.path, row.asked, **headers)


def check_row(served: Api, operation: str, row: Row) -> None:
    arrange(served.ps)
    before = [*seen(served.ps), served.ps.journal(WORLD).stats()]
    for key in sorted(EVERY_KEY - row.allowed):
        told = ask(served, operation, row, key)
        assert (key, told.status, told.value["error"]) == (key, 403, "Unauthorized")
    for key in (NO_KEY, WRONG_KEY):
        told = ask(served, operation, row, key)
        assert (key, told.status, told.value["error"]) == (key, 401, "Unauthorized")
        assert told.headers["www-authenticate"] == "Bearer"
    after = [*seen(served.ps), served.ps.journal(WORLD).stats()]
    assert after == before, "a request that was denied changed something"
    for key in sorted(row.allowed):
        arrange(served.ps)
        told = ask(served, operation, row, key)
        assert (key, told.status) == (key, row.status), told.body


def test_every_operation_is_in_the_table() -> None:
    assert set(OPERATIONS) == set(ROUTES)
    for name, row in OPERATIONS.items():
        found, _ = TABLE.find(ROUTES[name].verb, "/v1" + row.path.partition("?")[0])
        assert found.name == name


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_an_operation_is_for_those_who_may_and_for_no_one_else(guarded: Api, operation: str) -> None:
    check_row(guarded, operation, OPERATIONS[operation])


@pytest.mark.parametrize("name", sorted(SPECIAL))
def test_what_concerns_more_than_one_queue_needs_more(guarded: Api, name: str) -> None:
    check_row(guarded, *SPECIAL[name])


def test_a_list_of_queues_has_those_that_the_key_may_do_something_with(guarded: Api) -> None:
    arrange(guarded.ps)

    def listed(key: str) -> set[str]:
        told = ask(guarded, "list_queues", OPERATIONS["list_queues"], key)
        return {one["name"] for one in told.value["queues"]}

    assert listed("nothing") == set()
    assert listed("other") == {"other"}
    assert listed("read") == {"q", "q-target"}
    assert listed("mover") == {"q", "other"}
    assert listed("consume*") >= {"q", "q-target", "other"}


def test_only_who_may_read_everything_is_told_where_the_store_is(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    entries = {name: {"token_sha256": hash_of(f"psk_{name}"), "grants": KEYS[name]} for name in KEYS}
    path.write_bytes(msgspec.json.encode({"keys": entries}))
    os.chmod(path, 0o600)
    keys = CredentialsFile(str(path), SystemClock())
    with penstock.open(tmp_path / "data") as ps, api(ps, keys) as served:
        row = OPERATIONS["get_info"]
        assert str(tmp_path).encode() in ask(served, "get_info", row, "read*").body
        assert str(tmp_path).encode() not in ask(served, "get_info", row, "admin").body


@pytest.mark.parametrize("operation", sorted(name for name in ROUTES if ROUTES[name].method in AUDITED))
def test_administration_is_written_down_with_who_asked_for_it(guarded: Api, operation: str) -> None:
    arrange(guarded.ps)
    before = guarded.ps.journal(WORLD).stats()["last_seq"]
    ask(guarded, operation, OPERATIONS[operation], "admin*")
    (entry,) = guarded.ps.journal(WORLD).scan(after=before)
    assert (entry.kind, "principal:admin*" in entry.labels) == (ROUTES[operation].method, True)


def test_the_description_and_its_page_are_for_anybody(guarded: Api) -> None:
    assert guarded.raw("GET", "/openapi.json").status == 200
    assert guarded.raw("GET", "/docs").status == 200


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_the_description_says_which_permission_an_operation_needs(operation: str) -> None:
    route, allowed = ROUTES[operation], OPERATIONS[operation].allowed
    said = document()["paths"][route.path][route.verb.lower()]["description"]
    named = [permission for permission in PERMISSIONS if f"`{permission}`" in said]
    if not named:
        assert allowed >= ON_Q
        return
    (permission,) = named
    assert f"{permission}*" in allowed
    assert (permission in allowed) == ("on the queue" in said)


def test_nobody_hears_what_was_answered_to_another(guarded: Api) -> None:
    arrange(guarded.ps)
    lease = OPERATIONS["lease"]
    mine = guarded("POST", lease.path, {}, authorization="Bearer psk_consume", idempotency_key="same")
    theirs = guarded("POST", lease.path, {}, authorization="Bearer psk_admin", idempotency_key="same")
    assert (len(mine.value["deliveries"]), theirs.value["deliveries"]) == (1, [])
