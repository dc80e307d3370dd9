"""Consumer groups of a store on Redis streams, through a server: by REST, and over `http://`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.server_config import Limits
from penstock.testing.background import Background, wait_until
from tests.http.running import Running
from tests.redis.servers import running
from tests.server.rest.api import Api


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path / "redis") as redis, penstock.open(redis.url("streams")) as ps:
        ps.create_queue("q")
        server = Running(ps)
        try:
            yield server
        finally:
            server.stop()


def test_each_group_sees_every_message_by_rest(served: Running) -> None:
    rest = Api(served._ps, served.port)
    for name in ("mail", "audit"):
        rest.ok("PUT", f"/queues/q/groups/{name}")
    rest.ok("POST", "/queues/q/messages", {"messages": [{"payload_text": "1"}, {"payload_text": "2"}]})
    for name in ("mail", "audit"):
        asked = {"group": name, "max_messages": 5, "view": "text"}
        found = rest.ok("POST", "/queues/q/lease", asked)["deliveries"]
        assert [one["payload_text"] for one in found] == ["1", "2"]
        receipts = [one["receipt"] for one in found]
        assert rest.ok("POST", "/queues/q/ack", {"receipts": receipts[:1]})["outcomes"][0]["ok"]
        assert rest.ok("POST", "/queues/q/reject", {"receipts": receipts[1:]})["outcomes"][0]["ok"]
        assert rest.ok("GET", f"/queues/q/stats?group={name}")["dead"] == 1
        assert rest.ok("GET", f"/queues/q/messages?group={name}&state=dead&view=text")["messages"]
        kinds = [one["kind"] for one in rest.ok("GET", f"/queues/q/events?group={name}")["events"]]
        assert {"acked", "dead"} <= set(kinds)
        assert rest.ok("POST", "/queues/q/redrive", {"group": name}) == {"count": 1}
        assert rest.ok("GET", f"/queues/q/length?group={name}") == {"length": 1}
    named = [one["name"] for one in rest.ok("GET", "/queues/q/groups")["groups"]]
    assert {"mail", "audit"} <= set(named)
    rest.ok("DELETE", "/queues/q/groups/audit")
    assert "audit" not in [one["name"] for one in rest.ok("GET", "/queues/q/groups")["groups"]]
    assert rest("GET", "/queues/q/stats?group=audit").status in (400, 404)


def test_groups_work_as_on_the_store_itself(served: Running) -> None:
    with penstock.open(served.url) as ps:
        queue = ps.queue("q")
        for name in ("first", "mail"):  # The first has the queue's own line, which stays.
            queue.create_group(name)
        queue.enqueue(b"1")
        (delivery,) = queue.lease(group="mail", consumer="c")
        assert queue.group("mail").stats().leased == 1
        assert queue.ack([delivery.receipt])[0].ok
        assert queue.group("mail").length() == 0
        assert "mail" in [one.name for one in queue.groups()]
        queue.drop_group("mail")
        assert "mail" not in [one.name for one in queue.groups()]
        with pytest.raises(penstock.PenstockError):
            queue.group("mail").stats()


@pytest.mark.parametrize("interface", ["rest", "http"])
def test_who_waits_for_a_group_is_answered_when_something_comes_or_it_ends(
    served: Running, interface: str
) -> None:
    rest = Api(served._ps, served.port)
    rest.ok("PUT", "/queues/q/groups/mail")

    def wait() -> int:
        if interface == "rest":
            asked = {"group": "mail", "wait_s": 20}
            return len(rest.ok("POST", "/queues/q/lease", asked)["deliveries"])
        with penstock.open(served.url) as ps:
            return len(ps.queue("q").lease(group="mail", wait_s=20))

    waiting = Background(wait)
    wait_until(lambda: bool(served.door.answering))
    served._ps.queue("q").enqueue(b"1")
    assert waiting.result() == 1

    waiting = Background(wait)
    wait_until(lambda: served.calls.polls.waiting == 1)
    served.stop()
    assert waiting.result() == 0, "who waits when the server ends is answered"


def test_those_who_wait_for_a_group_are_no_more_than_may_wait(tmp_path: Path) -> None:
    with running(tmp_path / "redis") as redis, penstock.open(redis.url("streams")) as ps:
        ps.create_queue("q")
        ps.queue("q").create_group("mail")
        server = Running(ps, limits=Limits(max_polls=1))
        rest = Api(ps, server.port)
        try:
            waiting = Background(
                lambda: rest.ok("POST", "/queues/q/lease", {"group": "mail", "wait_s": 20})["deliveries"]
            )
            wait_until(lambda: server.calls.polls.waiting == 1)
            assert rest("POST", "/queues/q/lease", {"group": "mail", "wait_s": 20}).status == 429
            assert rest.ok("POST", "/queues/q/lease", {"group": "mail"})["deliveries"] == []
        finally:
            server.stop()
        assert waiting.result() == []
