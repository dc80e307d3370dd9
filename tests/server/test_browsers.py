"""A page that somebody visits cannot use the open server of their machine."""

from __future__ import annotations

import pytest

import penstock
from penstock.server.access import PERMISSIONS
from penstock.server.http import STRANGERS_BYTES
from tests.http.running import Running
from tests.http.test_calls import Keys
from tests.server.rest.api import Api, Told

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
OWN = "http://127.0.0.1:{port}"
#: What a page may send without being asked: https://fetch.spec.whatwg.org/#cors-safelisted-request-header
PURGES = {
    "rest": ("/v1/queues/q/purge", b"{}", {}),
    "sqs": ("/", b"Action=PurgeQueue&QueueUrl=http://a/000000000000/q", {"content-type": "text/plain"}),
    "form": (
        *("/", b"Action=PurgeQueue&QueueUrl=http://a/000000000000/q"),
        {"content-type": "application/x-www-form-urlencoded"},
    ),
    "native": ("/v1/call/purge", b"\x92\x92\xa1q\x91\xa5ready\x80", {"content-type": "text/plain"}),
}
FOREIGN: list[dict[str, str]] = [
    {"origin": "https://example.org"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "http://127.0.0.1.example.org:{port}", "host": "127.0.0.1.example.org:{port}"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    {"sec-fetch-site": "same-site"},
    {"user-agent": FIREFOX, "host": "rebound.example.org:{port}"},
]
FRIENDLY: list[dict[str, str]] = [
    {},
    {"host": "queues.internal:9324"},
    {"origin": OWN, "sec-fetch-site": "same-origin", "user-agent": FIREFOX},
    {"sec-fetch-site": "none", "user-agent": FIREFOX, "host": "localhost:{port}"},
]


def asked(
    server: Running, verb: str, path: str, body: bytes, headers: dict[str, str], more: dict[str, str]
) -> Told:
    named = {name: value.format(port=server.port) for name, value in {**headers, **more}.items()}
    return Api(server._ps, server.port).raw(verb, path, body, named)


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize("interface", PURGES)
def test_a_page_of_somebody_else_changes_nothing(interface: str, headers: dict[str, str]) -> None:
    with penstock.open("memory:") as ps:
        ps.create_queue("q").enqueue(b"x")
        server = Running(ps)
        try:
            path, body, more = PURGES[interface]
            told = asked(server, "POST", path, body, more, headers)
            assert told.status == 403
            assert b"page of another site" in told.body
            assert ps.queue("q").length() == 1
        finally:
            server.stop()


@pytest.mark.parametrize("headers", FRIENDLY, ids=str)
def test_programs_and_the_servers_own_pages_are_served(headers: dict[str, str]) -> None:
    with penstock.open("memory:") as ps:
        ps.create_queue("q")
        server = Running(ps)
        try:
            for interface in ("rest", "sqs", "native"):  # Over SQS once a minute.
                path, body, more = PURGES[interface]
                ps.queue("q").enqueue(b"x")
                assert asked(server, "POST", path, body, more, headers).status == 200
                assert ps.queue("q").length() == 0
            assert asked(server, "GET", "/docs", b"", {}, headers).status == 200
        finally:
            server.stop()


def test_a_link_to_the_server_may_be_followed_and_nothing_can_be_read_by_its_page() -> None:
    with penstock.open("memory:") as ps:
        server = Running(ps)
        followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "user-agent": FIREFOX}
        try:
            assert asked(server, "GET", "/docs", b"", {}, followed).status == 200
            told = asked(server, "GET", "/v1/queues", b"", {}, {**followed, "sec-fetch-mode": "cors"})
            assert told.status == 403
            assert not [name for name in told.headers if name.startswith("access-control")]
        finally:
            server.stop()


def test_a_large_body_of_a_page_is_refused_by_its_headers() -> None:
    with penstock.open("memory:") as ps:
        ps.create_queue("q")
        server = Running(ps)
        body = b'{"messages":[{"payload_text":"' + b"a" * STRANGERS_BYTES + b'"}]}'
        try:
            told = asked(server, "POST", "/v1/queues/q/messages", body, {}, {"origin": "https://example.org"})
            assert told.status == 403
            assert ps.queue("q").length() == 0
        finally:
            server.stop()


def test_with_a_key_it_does_not_matter_where_a_page_is_from() -> None:
    with penstock.open("memory:") as ps:
        ps.create_queue("q")
        server = Running(ps, credentials=Keys(ada={"*": PERMISSIONS}))
        page = {"origin": "https://example.org", "sec-fetch-site": "cross-site"}
        try:
            assert asked(server, "GET", "/v1/queues", b"", {}, page).status == 401
            key = {"authorization": "Bearer ada"}
            assert asked(server, "GET", "/v1/queues", b"", key, page).status == 200
        finally:
            server.stop()
