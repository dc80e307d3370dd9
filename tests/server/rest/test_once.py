"""Requests that come again, because their answer was lost: each happens once, also if the server went."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Penstock
from tests.server.processes import Served, serving
from tests.server.rest.api import Api, api

KEY = {"idempotency_key": "one"}


@contextmanager
def life(folder: Path) -> Iterator[Api]:
    """One of a server's: when it ends, nothing is left but the store."""
    with penstock.open(folder) as ps, api(ps) as served:
        yield served


def received(ps: Penstock, count: int = 1) -> list[str]:
    queue = ps.queue("q")
    queue.enqueue_many([penstock.NewMessage(b"")] * count)
    return [delivery.receipt for delivery in queue.lease(count)]


@pytest.mark.parametrize("path", ["/queues/q/messages", "/journals/w/entries"])
def test_what_was_added_is_not_added_again_after_a_restart(tmp_path: Path, path: str) -> None:
    asked = {"messages": [{}, {}, {"priority": 99}]} if "queues" in path else {"entries": [{"kind": "k"}]}
    with life(tmp_path / "data") as rest:
        rest.ps.create_queue("q")
        first = rest.ok("POST", path, asked, **KEY)
        # Also what is gone by now: an id would not be known any more.
        rest.ps.queue("q").ack([one.receipt for one in rest.ps.queue("q").lease(10)])
    with life(tmp_path / "data") as rest:
        assert rest.ok("POST", path, asked, **KEY) == first
        assert rest.ps.queue("q").length() == 0
        assert rest.ps.journal("w").stats()["entries"] == ("journals" in path)
        assert rest.ok("POST", path, asked, idempotency_key="two") != first
        assert rest.ps.check().ok


@pytest.mark.parametrize("what", ["ack", "nack", "reject", "extend", "move", "purge", "redrive"])
def test_an_answer_is_the_first_one_after_a_restart(tmp_path: Path, what: str) -> None:
    with life(tmp_path / "data") as rest:
        rest.ps.create_queue("q")
        rest.ps.create_queue("other")
        receipts = received(rest.ps)
        rest.ps.queue("q").reject(received(rest.ps, 2)[1:])
        moved = rest.ps.queue("q").enqueue(b"")
        bodies: dict[str, Any] = {
            "extend": {"receipts": receipts, "lease_s": 60},
            "move": {"ids": [moved], "target": "other"},
            "purge": {"state": "dead"},
            "redrive": {"target": "other"},
        }
        asked = bodies.get(what, {"receipts": receipts})
        first = rest.ok("POST", f"/queues/q/{what}", asked, **KEY)
        assert first.get("count", 1) >= 1
        assert all(one["ok"] for one in first.get("outcomes", ()))
        last_seq = rest.ps.queue("q").stats().last_seq
    with life(tmp_path / "data") as rest:
        assert rest.ok("POST", f"/queues/q/{what}", asked, **KEY) == first
        assert rest.ps.queue("q").stats().last_seq == last_seq
        assert rest.ps.check().ok


def test_a_server_that_was_killed_answers_as_before_it_was(tmp_path: Path) -> None:
    penstock.open(tmp_path / "data").close()
    asked = {"messages": [{"payload_text": str(number)} for number in range(5)]}

    def ask(served: Served, path: str, body: object) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
        try:
            verb = "POST" if path.endswith("messages") else "PUT"
            connection.request(verb, f"/v1/queues/{path}", json.dumps(body), {"idempotency-key": f"k/{path}"})
            response = connection.getresponse()
            assert response.status in (200, 201)
            return json.loads(response.read())
        finally:
            connection.close()

    with serving(tmp_path, "--store", "data") as served:
        ask(served, "q", {})
        first = ask(served, "q/messages", asked)
        served.stop(signal.SIGKILL)
    with serving(tmp_path, "--store", "data") as served:
        assert ask(served, "q/messages", asked) == first
        assert served.get("/v1/queues/q/length") == (200, {"length": 5})


def test_another_request_under_the_same_key_is_refused_while_it_is_remembered(tmp_path: Path) -> None:
    with life(tmp_path / "data") as rest:
        rest.ps.create_queue("q")
        rest.ok("POST", "/queues/q/messages", {"messages": [{}]}, **KEY)
        assert rest("POST", "/queues/q/messages", {"messages": [{}, {}]}, **KEY).status == 409
        assert rest.ps.queue("q").length() == 1
    with life(tmp_path / "data") as rest:  # And afterwards it is a request of its own.
        told = rest.ok("POST", "/queues/q/messages", {"messages": [{}, {}]}, **KEY)
        assert [one["duplicate"] for one in told["results"]] == [False, False]
        assert rest.ps.queue("q").length() == 3


def test_what_was_refused_is_answered_the_same_and_tried_again_only_by_a_restart(tmp_path: Path) -> None:
    with life(tmp_path / "data") as rest:
        assert rest("POST", "/queues/q/messages", {"messages": [{}]}, **KEY).status == 404
        rest.ps.create_queue("q")
        assert rest("POST", "/queues/q/messages", {"messages": [{}]}, **KEY).status == 404
    with life(tmp_path / "data") as rest:
        assert rest("POST", "/queues/q/messages", {"messages": [{}]}, **KEY).status == 200
