"""Pages of elsewhere, in a browser on the machine of an open server: none of them reaches a queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from penstock import Penstock
from penstock.server.native.endpoint import NativeEndpoint
from penstock.server.pages import foreign
from penstock.server.rest.endpoint import RestEndpoint
from penstock.server.sqs.endpoint import SqsEndpoint
from penstock.server_config import ServerSettings
from tests.server.running import Interface, Running, exchange, running
from tests.server.test_signature import Known

PURGE = "/?" + urlencode({"Action": "PurgeQueue", "QueueUrl": "http://localhost/000000000000/q"})
#: What browsers add to a request of a page.
BY_A_PAGE = [
    "origin: http://evil.example\r\n",
    "origin: null\r\n",
    "origin: http://localhost:3000\r\n",
    "sec-fetch-site: cross-site\r\n",
    "sec-fetch-site: same-site\r\nsec-fetch-mode: no-cors\r\n",
]
OWN = [
    "localhost:9324",
    "127.0.0.1",
    "[::1]:9324",
    "penstock",
    "a.localhost",
    "host.docker.internal:1",
    "10.0.0.7",
]
NAMED = ["evil.example", "evil.example:9324", "127.0.0.1.evil.example", "localhost.evil.example.", "1.2.3"]


@asynccontextmanager
async def served(ps: Penstock, credentials: Any = None) -> AsyncIterator[Running]:
    interfaces: list[Interface] = [
        RestEndpoint,
        lambda ps, calls, known: NativeEndpoint(ps, calls, known, 1),
        lambda ps, calls, known: SqsEndpoint(ps, calls, known, ServerSettings()),
    ]
    async with asyncio.timeout(20), running(ps, interfaces=interfaces, credentials=credentials) as server:
        yield server


def asked(host: str, headers: str, target: str = f"GET {PURGE}", body: bytes = b"") -> bytes:
    line = f"{target} HTTP/1.1\r\nhost: {host}\r\n{headers}content-length: {len(body)}\r\n"
    return f"{line}connection: close\r\n\r\n".encode() + body


@pytest.mark.parametrize("headers", BY_A_PAGE)
def test_a_request_of_a_page_is_refused_and_changes_nothing(ps: Penstock, headers: str) -> None:
    ps.queue("q").enqueue(b"stays")

    async def story() -> None:
        async with served(ps) as server:
            for target, body in (
                (f"GET {PURGE}", b""),
                ("POST /", PURGE[2:].encode()),
                ("POST /000000000000/q", b"Action=PurgeQueue"),
                ("POST /v1/queues/q/purge", b"{}"),
                ("POST /v1/call/purge", b""),
                ("GET /metrics", b""),
                ("POST /v1/queues/q/messages", b" " * 100_000),
            ):
                answer = await exchange(server.port, asked("localhost", headers, target, body))
                assert answer.status == 403, target
                assert b"no credentials" in answer.body
            assert 'refused_total{status="403"}' in server.app.numbers.render()

    asyncio.run(story())
    assert ps.queue("q").length() == 1


@pytest.mark.parametrize("host", NAMED)
def test_a_name_that_others_can_have_made_to_lead_here_is_refused(ps: Penstock, host: str) -> None:
    ps.queue("q").enqueue(b"stays")

    async def story() -> None:
        async with served(ps) as server:
            answer = await exchange(server.port, asked(host, ""))
            assert (answer.status, b"<Code>AccessDenied</Code>" in answer.body) == (403, True)
            answer = await exchange(
                server.port, asked(host, f"origin: http://{host}\r\n", "POST /v1/queues/q/purge")
            )
            assert (answer.status, b"penstock keys create" in answer.body) == (403, True)

    asyncio.run(story())
    assert ps.queue("q").length() == 1


#: Where a browser says of a GET whose page it is of, and where it does not.
TOLD = ["localhost:9324", "LOCALHOST", "a.localhost", "127.0.0.1:1", "127.1.2.3", "[::1]:9324"]
UNTOLD = [
    "0.0.0.0:9324",
    "[::]:9324",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]:1",
    "penstock",
    "10.0.0.7",
    "a.internal",
]


@pytest.mark.parametrize(("host", "left"), [*((host, 0) for host in TOLD), *((host, 1) for host in UNTOLD)])
def test_a_get_acts_only_where_a_browser_would_have_said_whose_page_it_is_of(
    ps: Penstock, host: str, left: int
) -> None:
    """As in `<img src="http://0.0.0.0:9324/?Action=PurgeQueue…">`."""
    ps.queue("q").enqueue(b"stays")

    async def story() -> None:
        async with served(ps) as server:
            answer = await exchange(server.port, asked(host, ""))
            assert answer.status == (403 if left else 200)
            assert (await exchange(server.port, asked(host, "", "GET /v1/queues"))).status == 200

    asyncio.run(story())
    assert ps.queue("q").length() == left


@pytest.mark.parametrize("host", OWN)
def test_clients_on_this_machine_and_the_server_s_own_pages_are_answered(ps: Penstock, host: str) -> None:
    async def story() -> None:
        async with served(ps) as server:
            for headers in (
                "",
                "sec-fetch-site: none\r\n",
                "sec-fetch-site: same-origin\r\n",
                f"origin: http://{host}\r\n",
            ):
                answer = await exchange(server.port, asked(host, headers, "GET /v1/queues"))
                assert (answer.status, json.loads(answer.body)["queues"][0]["name"]) == (200, "q"), headers

    asyncio.run(story())


def test_without_a_host_nobody_is_a_page() -> None:
    assert foreign({}) is None


def test_where_keys_are_wanted_names_and_pages_are_no_matter(ps: Penstock) -> None:
    async def story() -> None:
        async with served(ps, Known()) as server:
            for headers in BY_A_PAGE:
                answer = await exchange(server.port, asked("queues.example.org", headers))
                assert b"MissingAuthenticationToken" in answer.body

    asyncio.run(story())
