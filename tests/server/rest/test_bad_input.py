"""What is not of its form is refused with a status that says whose fault it is, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import penstock
from penstock import errors
from penstock.errors import PenstockError
from penstock.server.rest.errors import MEANING
from penstock.server.rest.route import Route
from penstock.server.rest.shapes import MOST
from penstock.server.rest.table import TABLE
from penstock.server.statuses import STATUS
from penstock.server_config import Limits
from tests.server.rest.api import MSGPACK, Api, Told, api
from tests.server.rest.test_permissions import OPERATIONS, arrange, seen

#: No field of any request takes this.
WRONG: dict[str, list[list[str]]] = {"wrong": [[]]}
BODIES = [route for route in TABLE.routes if route.asked is not None and not route.asks_by_query]
QUERIES = [route for route in TABLE.routes if route.asked is not None and route.asks_by_query]
NAMES = {
    "nul": "q%00",
    "not UTF-8": "q%FF%FE",
    "a surrogate": "q%ED%A0%80",
    "too long": "q" * 1025,
    "of dots": "..",
    "with a line's end": "q%0D%0Ax",
    "with a slash": "..%2F..%2Fetc",
    "nowhere": "nowhere",
}


@pytest.fixture(scope="module")
def rest() -> Iterator[Api]:
    with penstock.open("memory:") as ps, api(ps) as served:
        arrange(ps)
        yield served


def refused(told: Told, status: int = 400) -> str:
    """The text of an error that has all of its parts."""
    assert told.status == status, told.body[:300]
    error = told.value
    assert set(error) == {"error", "message", "retryable", "request_id"}
    assert error["request_id"] == told.headers["x-request-id"]
    assert error["message"]
    assert error["retryable"] is False
    return str(error["message"])


def asked(route: Route) -> dict[str, Any]:
    return dict(OPERATIONS[route.name].asked or {})


def path(route: Route) -> str:
    return OPERATIONS[route.name].path.partition("?")[0]


def by_name(route: Route) -> str:
    return route.name


def fields(route: Route) -> list[str]:
    assert route.asked is not None
    return [field.name for field in msgspec.structs.fields(route.asked)]


@pytest.mark.parametrize("route", BODIES, ids=by_name)
def test_a_body_that_is_not_of_its_form_is_refused_and_changes_nothing(rest: Api, route: Route) -> None:
    before = seen(rest.ps)
    for field in fields(route):
        assert f"$.{field}" in refused(rest(route.verb, path(route), {**asked(route), field: WRONG}))
        packed = rest.packed(route.verb, path(route), {**asked(route), field: WRONG})
        assert f"$.{field}" in refused(packed)
    assert route.asked is not None
    for field in (one.name for one in msgspec.structs.fields(route.asked) if one.required):
        lacking = {name: value for name, value in asked(route).items() if name != field}
        assert field in refused(rest(route.verb, path(route), lacking))
    assert "surplus" in refused(rest(route.verb, path(route), {**asked(route), "surplus": 1}))
    assert "surplus" in refused(rest(route.verb, path(route) + "?surplus=1", asked(route)))
    for value in (None, [], "text", 1, [asked(route)]):
        refused(rest.raw(route.verb, "/v1" + path(route), json.dumps(value).encode()))
    assert seen(rest.ps) == before


@pytest.mark.parametrize("route", BODIES, ids=by_name)
def test_a_body_that_cannot_be_read_is_refused_and_changes_nothing(rest: Api, route: Route) -> None:
    before = seen(rest.ps)
    deep = b'{"messages":' + b"[" * 100_000
    for body in (b"{", b"{}{}", b"\xff", b'{"a":"\xff"}', b'{"a":NaN}', b"nul", deep, b'{"a":"\\ud800"}'):
        refused(rest.raw(route.verb, "/v1" + path(route), body))
    for body in (
        b"\xc1",
        b"\x81",
        b"\x80\x80",
        b"\x91" * 100_000,
        b"\x81\xa1a\xd9\xff",
        b"\xdf\xff\xff\xff\xff",
    ):
        refused(rest.raw(route.verb, "/v1" + path(route), body, MSGPACK))
    form = {"content-type": "application/x-www-form-urlencoded"}
    refused(rest.raw(route.verb, "/v1" + path(route), b"a=1", form), 415)
    assert seen(rest.ps) == before


@pytest.mark.parametrize("route", QUERIES, ids=by_name)
def test_a_query_that_is_not_of_its_form_is_refused(rest: Api, route: Route) -> None:
    if "since_ns" in fields(route):
        assert "null" in refused(rest(route.verb, f"{path(route)}?since_ns=null"))
    for query in ("surplus=1", "surplus", "%FF=1", "limit=%FF", "=", "&"):
        refused(rest(route.verb, f"{path(route)}?{query}"))
    for name in ("limit", "after", "offset", "since_ns"):
        if name in fields(route) and (name, route.name) not in TEXTS:
            for value in ("", "x", "-1", "1.5", str(2**63), "1&" + name + "=1"):
                refused(rest(route.verb, f"{path(route)}?{name}={value}"))
    if "limit" in fields(route):
        refused(rest(route.verb, f"{path(route)}?limit=0"))
        refused(rest(route.verb, f"{path(route)}?limit={MOST + 1}"))
    if "view" in fields(route):
        refused(rest(route.verb, f"{path(route)}?view=xml"))
    if "state" in fields(route):
        refused(rest(route.verb, f"{path(route)}?state=nowhere"))
    if "kinds" in fields(route):
        many = "&".join(["kinds=a"] * 101)
        assert "100" in refused(rest(route.verb, f"{path(route)}?{many}"))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_that_are_none_and_queues_that_are_not_there_are_refused(rest: Api, name: str) -> None:
    before = seen(rest.ps)
    for route in TABLE.routes:
        if "queue" in route.parameters and route.name != "create_queue":
            wanted = path(route).replace("/q", f"/{name}", 2).replace(f"/{name}ueues", "/queues", 1)
            told = rest(route.verb, wanted, OPERATIONS[route.name].asked)
            assert told.status in (400, 404), (route.name, told.status, told.body)
            assert told.value["error"] in (
                "QueueNotFound",
                "InvalidMessage",
                "InvalidConfig",
                "NotFound",
            )
    assert seen(rest.ps) == before


@pytest.mark.parametrize("name", ["nul", "not UTF-8", "a surrogate", "too long"])
@pytest.mark.parametrize("start", ["/queues/", "/state/", "/throttles/", "/journals/", "/queues/q/cursors/"])
def test_nothing_is_made_under_a_name_that_is_none(rest: Api, start: str, name: str) -> None:
    before = seen(rest.ps)
    body = {"/state/": {"value": ""}, "/throttles/": {"rate_per_s": 1, "burst": 1}}.get(start, {})
    refused(rest("PUT", start + NAMES[name], body))
    assert seen(rest.ps) == before


#: `after` is a number in histories alone.
TEXTS = {("after", name) for name in ("list_messages", "list_due", "list_quarantine")}
NUMBERS = (-1, 0.5, 1e308, 2**63, 2**70, -(2**70), True)


@pytest.mark.parametrize("field", ["weight", "priority", "delay_s", "ttl_s"])
def test_a_message_with_a_number_out_of_range_fails_alone(rest: Api, field: str) -> None:
    """Or the whole request does, where the number is of another type."""
    for number in (*NUMBERS, float("nan"), float("inf")):
        told = (
            rest.packed("POST", "/queues/other/messages", {"messages": [{field: number}]})
            if (number != number or abs(number) < 2**63)
            else rest("POST", "/queues/other/messages", {"messages": [{field: number}]})
        )
        if told.status == 200:
            (result,) = told.value["results"]
            if (field, number) in {("delay_s", 0.5), ("ttl_s", 0.5)}:
                assert result["ok"]
            else:
                assert (number, result["ok"], result["error"]["error"]) == (number, False, "InvalidMessage")
        else:
            refused(told)
    rest.ps.queue("other").purge()


@pytest.mark.parametrize(
    "message",
    [
        {"payload": "not base64!"},
        {"payload": "AA==", "payload_text": "x"},
        {"payload_text": 1},
        {"headers": {"a": 1}},
        {"throttle_keys": "abc"},
        {"surplus": 1},
        7,
        None,
    ],
    ids=str,
)
def test_a_batch_with_something_else_than_a_message_stores_nothing(rest: Api, message: object) -> None:
    before = seen(rest.ps)
    refused(rest("POST", "/queues/q/messages", {"messages": [{}, message]}))
    assert seen(rest.ps) == before


@pytest.mark.parametrize(
    "message",
    [
        {"id": "no uuid"},
        {"fairness_key": "k" * 1025},
        {"fairness_key": "a\0b"},
        {"throttle_keys": [str(n) for n in range(17)]},
        {"headers": {"h": "x" * 65_537}},
        {"dedup_id": ""},
    ],
    ids=lambda message: next(iter(message)),
)
def test_a_message_outside_the_limits_fails_alone(rest: Api, message: dict[str, Any]) -> None:
    asked = {"messages": [{"dedup_id": "first"}, message]}
    told = rest.ok("POST", "/queues/other/messages", asked)
    assert [one["ok"] for one in told["results"]] == [True, False]
    assert told["results"][1]["error"]["error"] == "InvalidMessage"
    rest.ps.queue("other").purge()


def test_lists_that_are_too_long_are_refused_with_their_limit(rest: Api) -> None:
    before = seen(rest.ps)
    many: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/queues/q/messages", {"messages": [{}] * (MOST + 1)}),
        ("PUT", "/queues/q/messages", {"messages": [{}] * (MOST + 1)}),
        ("POST", "/queues/q/ack", {"receipts": ["r"] * (MOST + 1)}),
        ("POST", "/queues/q/lease", {"max_messages": MOST + 1}),
        ("POST", "/queues/q/move", {"ids": ["r"] * (MOST + 1), "target": "other"}),
        ("POST", "/journals/w/entries", {"entries": [{"kind": "k"}] * (MOST + 1)}),
        ("PUT", "/queues", {"queues": [{"name": f"n{n}"} for n in range(MOST + 1)]}),
    ]
    for verb, where, body in many:
        assert str(MOST) in refused(rest(verb, where, body))
    assert seen(rest.ps) == before


@pytest.mark.parametrize(
    ("verb", "where", "body"),
    [
        ("PUT", "/queues/new", {"lease_s": -1}),
        ("PUT", "/queues/new", {"backend": "nowhere"}),
        ("PUT", "/queues/new", {"dead_letter": "nowhere"}),
        ("PUT", "/queues/new", {"retry": {"kind": "nonsense"}}),
        ("PUT", "/queues/new", {"on_enqueue": "this is no script"}),
        ("PUT", "/queues/new", {"max_attempts": 2**70}),
        ("PATCH", "/queues/q", {"fifo": True}),
        ("PATCH", "/queues/q", {"delay_s": 1}),
        ("PUT", "/queues/new", {"fifo": True, "delay_s": -1}),
        ("PATCH", "/queues/q", {"annotations": {"a": "x" * 70_000}}),
        ("PUT", "/queues", {"queues": [{"name": "a"}, {"name": "a"}]}),
        ("PUT", "/queues", {"queues": [{"name": ""}]}),
        ("PUT", "/throttles/t", {"rate_per_s": -1, "burst": 1}),
        ("PUT", "/throttles/t", {"rate_per_s": 1e400, "burst": 1}),
        ("PUT", "/journals/w", {"retention_s": -1}),
        ("PUT", "/journals/w", {"max_bytes": -1}),
        ("POST", "/journals/w/entries", {"entries": [{"kind": ""}]}),
        ("POST", "/queues/q/lease", {"lease_s": -1}),
        ("POST", "/queues/q/lease", {"wait_s": 1e9}),
        ("POST", "/queues/q/extend", {"receipts": ["r"], "lease_s": -1}),
        ("POST", "/queues/q/nack", {"receipts": ["r"], "delay_s": -1}),
        ("POST", "/queues/q/purge", {"state": "nonsense"}),
        ("POST", "/queues/q/cursors/c/commit", {"seq": 2**62}),
    ],
    ids=str,
)
def test_settings_and_numbers_that_cannot_be_are_refused(
    rest: Api, verb: str, where: str, body: dict[str, Any]
) -> None:
    before = seen(rest.ps)
    refused(rest(verb, where, body))
    assert seen(rest.ps) == before


def test_what_is_not_there_has_its_own_status(rest: Api) -> None:
    assert "nothing at" in refused(rest("GET", "/queues/q/nonsense"), 404)
    assert "nothing at" in refused(rest("GET", "/nonsense"), 404)
    assert "nothing at" in refused(rest("GET", "/queues//stats"), 404)
    told = rest("PATCH", "/queues/q/messages", {})
    refused(told, 405)
    assert told.headers["allow"] == "GET, POST, PUT"
    refused(rest.raw("POST", "/docs"), 405)
    refused(rest.raw("GET", "/v1/queues", headers={"accept": "text/html"}), 406)
    assert rest.raw("HEAD", "/v1/queues").status == 200
    assert rest("POST", "/queues/other/move", {"ids": [], "target": "nowhere"}).status in (200, 404)


def test_a_body_that_is_too_large_is_refused_in_the_form_that_was_asked_for() -> None:
    with penstock.open("memory:") as ps, api(ps, limits=Limits(max_body_bytes=1024)) as served:
        ps.create_queue("q")
        big = {"messages": [{"payload_text": "x" * 2000}]}
        told = served("POST", "/queues/q/messages", big)
        assert (told.status, told.value["error"]) == (413, "TooLarge")
        packed = served.packed("POST", "/queues/q/messages", big)
        assert (packed.status, packed.headers["content-type"]) == (413, "application/msgpack")
        assert packed.value["error"] == "TooLarge"
        assert ps.queue("q").length() == 0


def test_every_error_of_the_library_has_a_status_and_each_status_a_meaning() -> None:
    kinds = {
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PenstockError)
    }
    assert set(STATUS) == kinds
    assert set(STATUS.values()) <= set(MEANING)
    own = {kind for kind, status in STATUS.items() if status == 500}
    assert own == {
        PenstockError,
        errors.StorageError,
        errors.StorageCorrupt,
        errors.DecryptFailed,
        errors.KeyMissing,
    }


def test_a_key_of_a_request_is_of_its_form(rest: Api) -> None:
    before = seen(rest.ps)
    for key in ("", "k" * 201, "a b", "\u00e9"):
        assert "Idempotency-Key" in refused(
            rest("POST", "/queues/q/messages", {"messages": [{}]}, idempotency_key=key)
        )
    assert seen(rest.ps) == before
