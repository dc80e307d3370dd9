"""Every route of the typed interface over a real server: what it does, and what it answers."""

from __future__ import annotations

import base64
import json
import shlex
from html import unescape
from html.parser import HTMLParser

import msgspec
import pytest

from penstock.server.rest.table import TABLE
from tests.server.rest.api import Api

HI = base64.b64encode(b"hi").decode()


def leased(rest: Api, q: str, count: int = 1) -> list[str]:
    rest.ok("POST", f"{q}/messages", {"messages": [{"payload": HI}] * count})
    found = rest.ok("POST", f"{q}/lease", {"max_messages": count})["deliveries"]
    return [one["receipt"] for one in found]


def test_a_queue_is_made_changed_listed_and_deleted(rest: Api) -> None:
    told = rest("PUT", "/queues/a%2Fb%20%C3%A9", {"lease_s": 5})
    assert (told.status, told.value["name"], told.value["lease_s"]) == (201, "a/b é", 5)
    assert rest("PUT", "/queues/a%2Fb%20%C3%A9", {}).status == 409
    assert rest.ok("PATCH", "/queues/a%2Fb%20%C3%A9", {"max_attempts": 2})["lease_s"] == 5
    assert rest.ok("GET", "/queues/a%2Fb%20%C3%A9")["max_attempts"] == 2
    assert "a/b é" in [one["name"] for one in rest.ok("GET", "/queues")["queues"]]
    rest.ok("DELETE", "/queues/a%2Fb%20%C3%A9")
    assert rest("GET", "/queues/a%2Fb%20%C3%A9").status == 404


def test_messages_go_in_are_leased_and_acked(rest: Api, q: str) -> None:
    asked = [{"payload": HI, "headers": {"type": "t"}}, {"payload_text": "hé"}, {"payload_json": {"a": 1}}]
    results = rest.ok("POST", f"{q}/messages", {"messages": [*asked, {"priority": 99}]})["results"]
    assert [one["ok"] for one in results] == [True, True, True, False]
    assert results[3]["error"]["error"] == "InvalidMessage"
    assert rest.ok("GET", f"{q}/length") == {"length": 3}
    assert rest.ok("GET", f"{q}/stats")["ready"] == 3
    found = rest.ok("POST", f"{q}/lease", {"max_messages": 5, "consumer": "c"})["deliveries"]
    assert [base64.b64decode(one["payload"]) for one in found] == [b"hi", "hé".encode(), b'{"a":1}']
    assert (found[0]["headers"], found[0]["consumer"]) == ({"type": "t"}, "c")
    receipts = [one["receipt"] for one in found]
    outcomes = rest.ok("POST", f"{q}/ack", {"receipts": [*receipts, "nonsense"]})["outcomes"]
    assert [one["ok"] for one in outcomes] == [True, True, True, False]
    assert rest.ok("GET", f"{q}/length") == {"length": 0}


def test_the_same_in_messagepack_where_bytes_are_bytes(rest: Api, q: str) -> None:
    told = rest.packed("POST", f"{q}/messages", {"messages": [{"payload": b"\xff\x00"}]})
    assert (told.status, told.headers["content-type"]) == (200, "application/msgpack")
    assert told.value["results"][0]["ok"]
    (delivery,) = rest.packed("POST", f"{q}/lease", {}).value["deliveries"]
    assert delivery["payload"] == b"\xff\x00"
    assert rest.packed("POST", f"{q}/ack", {"receipts": [delivery["receipt"]]}).value["outcomes"][0]["ok"]
    refused = rest.packed("GET", "/queues/nowhere")
    assert (refused.status, refused.value["error"]) == (404, "QueueNotFound")


@pytest.mark.parametrize(
    ("view", "field", "value"), [("text", "payload_text", '{"a":1}'), ("json", "payload_json", {"a": 1})]
)
def test_payloads_are_shown_as_asked_where_they_can_be(
    rest: Api, q: str, view: str, field: str, value: object
) -> None:
    asked = {"messages": [{"payload_json": {"a": 1}}, {"payload": base64.b64encode(b"\xff").decode()}]}
    rest.ok("POST", f"{q}/messages", asked)
    first, second = rest.ok("GET", f"{q}/peek?view={view}")["messages"]
    assert first[field] == value
    assert "payload" not in first
    assert base64.b64decode(second["payload"]) == b"\xff"


def test_deliveries_fail_are_held_longer_and_are_rejected(rest: Api, q: str) -> None:
    first, second, third = leased(rest, q, 3)
    assert rest.ok("POST", f"{q}/extend", {"receipts": [first], "lease_s": 60})["outcomes"][0]["ok"]
    nacked = rest.ok("POST", f"{q}/nack", {"receipts": [second], "delay_s": 60, "reason": "later"})
    assert nacked["outcomes"][0]["ok"]
    assert rest.ok("POST", f"{q}/reject", {"receipts": [third], "reason": "bad"})["outcomes"][0]["ok"]
    stats = rest.ok("GET", f"{q}/stats")
    assert (stats["leased"], stats["delayed"], stats["dead"]) == (1, 1, 1)
    dead = rest.ok("GET", f"{q}/messages?state=dead")["messages"]
    assert [one["reason"] for one in dead] == ["bad"]
    assert rest.ok("POST", f"{q}/redrive", {"limit": 5}) == {"count": 1}
    assert rest.ok("POST", f"{q}/purge", {}) == {"count": 2}


def test_messages_are_looked_at_replaced_and_moved(rest: Api, q: str) -> None:
    (made,) = rest.ok("POST", f"{q}/messages", {"messages": [{"payload": HI, "fairness_key": "k"}]})[
        "results"
    ]
    assert rest.ok("GET", f"{q}/messages/{made['id']}")["state"] == "ready"
    assert rest.ok("GET", f"{q}/messages?limit=1&fairness_key=k")["messages"][0]["id"] == made["id"]
    assert rest.ok("GET", f"{q}/keys")["keys"][0]["key"] == "k"
    rest.ok("PUT", f"{q}/messages", {"messages": [{"id": made["id"], "payload_text": "new"}]})
    assert rest.ok("GET", f"{q}/messages/{made['id']}?view=text")["payload_text"] == "new"
    rest.ok("PUT", f"{q}-other", {})
    target = f"{q}-other".rpartition("/")[2]
    assert rest.ok("POST", f"{q}/move", {"ids": [made["id"]], "target": target})["outcomes"][0]["ok"]
    assert rest("GET", f"{q}/messages/{made['id']}").status == 404
    assert rest.ok("GET", f"{q}-other/length") == {"length": 1}


def test_events_and_cursors_tell_what_happened(rest: Api, q: str) -> None:
    rest.ok("POST", f"{q}/ack", {"receipts": leased(rest, q)})
    told = rest.ok("GET", f"{q}/events?kinds=enqueued&kinds=acked")
    assert [one["kind"] for one in told["events"]] == ["enqueued", "acked"]
    assert rest.ok("PUT", f"{q}/cursors/c", {"required": True})["position"] == 0
    read = rest.ok("GET", f"{q}/cursors/c/events?limit=2")
    assert len(read["events"]) == 2
    rest.ok("POST", f"{q}/cursors/c/commit", {"seq": read["last_seq"]})
    cursors = rest.ok("GET", f"{q}/cursors")["cursors"]
    assert [(one["name"], one["position"]) for one in cursors] == [("c", read["last_seq"])]
    rest.ok("DELETE", f"{q}/cursors/c")
    assert rest("GET", f"{q}/cursors/c/events").status == 404


def test_journals_are_appended_to_and_scanned(rest: Api) -> None:
    entries = [{"kind": "a", "body": HI, "labels": ["x"]}, {"kind": "b", "vector": [1.0]}]
    ids = rest.ok("POST", "/journals/w/entries", {"entries": entries})["ids"]
    assert len(ids) == 2
    scanned = rest.ok("GET", "/journals/w/entries?kinds=a&labels=x")["entries"]
    assert [(one["id"], one["body"]) for one in scanned] == [(ids[0], HI)]
    found = rest.ok("GET", f"/entries?id={ids[1]}&id=00000000-0000-7000-8000-000000000000")["entries"]
    assert [one and one["kind"] for one in found] == ["b", None]
    rest.ok("PUT", "/journals/w", {"retention_s": 60})
    assert rest.ok("GET", "/journals/w")["entries"] == 2


def test_state_and_throttles_are_set_read_and_deleted(rest: Api) -> None:
    rest.ok("PUT", "/state/k%2F1", {"value": HI})
    assert rest.ok("GET", "/state/k%2F1") == {"value": HI}
    rest.ok("DELETE", "/state/k%2F1")
    assert rest("GET", "/state/k%2F1").status == 404
    rest.ok("PUT", "/throttles/t", {"rate_per_s": 2, "burst": 3})
    assert rest.ok("GET", "/throttles/t")["burst"] == 3
    assert [one["key"] for one in rest.ok("GET", "/throttles")["throttles"]] == ["t"]
    rest.ok("DELETE", "/throttles/t")
    assert rest("GET", "/throttles/t").status == 404


def test_the_store_tells_of_itself_and_is_checked(rest: Api, q: str) -> None:
    rest.ok("POST", f"{q}/messages", {"messages": [{"delay_s": 60}]})
    assert rest.ok("GET", "/health")["status"] == "healthy"
    assert "default" in rest.ok("GET", "/info")["backends"]
    assert "default" in rest.ok("GET", "/metrics")["backends"]
    assert rest.ok("GET", "/due?limit=5")["items"]
    assert rest.ok("POST", "/check", {"repair": False})["ok"] is True
    assert rest.ok("POST", "/reindex")["ok"] is True
    assert rest.ok("POST", "/rekey")["unreadable"] == 0
    assert rest.ok("POST", "/sweep", {"budget": 1})["count"] >= 0
    assert rest.ok("GET", "/quarantine") == {"items": []}
    assert rest("GET", "/quarantine/nothing").status in (400, 404)
    assert rest.ok("DELETE", "/quarantine") == {"count": 0}


def test_consumer_groups_are_refused_where_there_are_none(rest: Api, q: str) -> None:
    for told in (
        rest("GET", f"{q}/groups"),
        rest("PUT", f"{q}/groups/g"),
        rest("DELETE", f"{q}/groups/g"),
        rest("POST", f"{q}/lease", {"group": "g"}),
    ):
        assert (told.status, told.value["error"]) == (400, "Unsupported")


def test_a_request_with_a_key_happens_once_and_is_answered_each_time(rest: Api, q: str) -> None:
    asked = {"messages": [{"payload": HI}]}
    first = rest.ok("POST", f"{q}/messages", asked, idempotency_key="one")
    assert rest.ok("POST", f"{q}/messages", asked, idempotency_key="one") == first
    assert rest.ok("GET", f"{q}/length") == {"length": 1}
    other = rest("POST", f"{q}/messages", {"messages": []}, idempotency_key="one")
    assert other.status == 409
    lease = rest.ok("POST", f"{q}/lease", {}, idempotency_key="two")
    assert lease["deliveries"]
    assert rest.ok("POST", f"{q}/lease", {}, idempotency_key="two") == lease


def test_all_queues_are_replaced_at_once(rest: Api) -> None:
    kept = [{"name": one["name"]} for one in rest.ok("GET", "/queues")["queues"]]
    rest.ok(
        "PUT", "/queues", {"queues": [*kept, {"name": "extra", "lease_s": 7, "fifo": True, "delay_s": 3}]}
    )
    extra = rest.ok("GET", "/queues/extra")
    assert (extra["lease_s"], extra["delay_s"]) == (7, 3)


def test_the_description_names_every_route_and_nothing_that_is_not_there(rest: Api) -> None:
    told = rest.raw("GET", "/openapi.json")
    described = json.loads(told.body)
    assert described["openapi"].startswith("3.1")
    named = {(verb.upper(), path) for path, verbs in described["paths"].items() for verb in verbs}
    assert named == {(route.verb, route.path) for route in TABLE.routes}
    text = told.body.decode()
    schemas = described["components"]["schemas"]
    for reference in text.split('"#/components/schemas/')[1:]:
        assert reference.partition('"')[0] in schemas


def test_the_page_loads_nothing_and_shows_every_operation(rest: Api) -> None:
    told = rest.raw("GET", "/docs")
    page = told.body.decode()
    assert told.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in told.headers["content-security-policy"]
    assert not [word for word in ("<script", "http://", "https://", "@import", "url(") if word in page]
    assert all(f"id='{route.name}'" in page for route in TABLE.routes)
    assert msgspec.json.decode(rest.raw("GET", "/openapi.json").body)["info"]["version"] in page


def test_the_page_is_written_for_people(rest: Api) -> None:
    page = rest.raw("GET", "/docs").body.decode()
    assert "`" not in page
    assert ":data:" not in page
    assert page.count("or rows of Arrow") == 4
    assert "Authorization: Bearer" in page


def test_what_the_page_says_to_try_first_works(rest: Api) -> None:
    lines = unescape(rest.raw("GET", "/docs").body.decode().partition("<pre>")[2].partition("</pre>")[0])
    receipt, told = "", []
    for line in lines.splitlines():
        words = shlex.split(line.replace("RECEIPT", receipt))
        assert words[0] == "curl"
        (where,) = [word for word in words if word.startswith("$URL/v1")]
        asked = json.loads(words[words.index("--json") + 1]) if "--json" in words else None
        verb = words[words.index("-X") + 1] if "-X" in words else "GET" if asked is None else "POST"
        told.append(rest.ok(verb, where.removeprefix("$URL/v1"), asked))
        for delivery in told[-1].get("deliveries", ()):
            receipt = delivery["receipt"]
            assert delivery["payload_text"] == "hello Ada"
    assert [one["kind"] for one in told[-1]["events"]] == ["enqueued", "leased", "acked"]


class _Reader(HTMLParser):
    """What is open, which places there are, and which are linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.places: list[str] = []
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        given = dict(attrs)
        self.places += [str(given["id"])] if "id" in given else []
        self.links |= {str(given["href"])} if "href" in given else set()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_its_links_lead_somewhere(rest: Api) -> None:
    reader = _Reader()
    reader.feed(rest.raw("GET", "/docs").body.decode())
    assert reader.open == []
    assert len(set(reader.places)) == len(reader.places)
    assert reader.links <= {"/openapi.json", *(f"#{place}" for place in reader.places)}
