"""Large bodies of those who are not known: refused by their headers, before the body is read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

import penstock
from penstock import Penstock
from penstock.server.http import STRANGERS_BYTES
from tests.server.clients.served import ACCESS_KEY, TOKEN, signed_server
from tests.server.processes import Served
from tests.server.running import answer, exchange, message, running
from tests.server.test_killed import native_url, sqs_client

LARGE = STRANGERS_BYTES + 1
NATIVE = "POST /v1/call/enqueue HTTP/1.1\r\n"
REST = "POST /v1/queues/q/messages HTTP/1.1\r\n"
SQS = "POST / HTTP/1.1\r\nx-amz-target: AmazonSQS.SendMessage\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with penstock.open(folder / "penstock-data") as ps:
        ps.create_queue("q")
    with signed_server(folder) as served:
        yield served


def signed(access_key: str, ago: timedelta = timedelta()) -> str:
    """Headers of a signature that is right in all but itself."""
    stamp = (datetime.now(UTC) - ago).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/us-east-1/sqs/aws4_request"
    names = "host;x-amz-date;x-amz-target"
    given = f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={'0' * 64}"
    return f"x-amz-date: {stamp}\r\nauthorization: {given}\r\n"


def heads() -> dict[str, str]:
    """Made when they are sent: a signature is good for a quarter of an hour."""
    return {
        "native": NATIVE,
        "native, unknown key": f"{NATIVE}authorization: Bearer psk_unknown\r\n",
        "native, known": f"{NATIVE}authorization: Bearer {TOKEN}\r\n",
        "rest": REST,
        "rest, unknown key": f"{REST}authorization: Bearer psk_unknown\r\n",
        "rest, known": f"{REST}authorization: Bearer {TOKEN}\r\n",
        "json": SQS,
        "json, unknown key": SQS + signed("AKIDUNKNOWN"),
        "json, an hour ago": SQS + signed(ACCESS_KEY, timedelta(hours=1)),
        "json, known": SQS + signed(ACCESS_KEY),
        "form": "POST / HTTP/1.1\r\n",
        "no interface": "POST /nothing/here/at/all HTTP/1.1\r\n",
    }


def told(server: Served, head: str, length: int | None = LARGE) -> str:
    """What a client hears that has sent its headers, and of a body in chunks what is too much at once."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as line:
        size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        line.sendall(f"{head}host: here\r\nexpect: 100-continue\r\n{size}\r\n\r\n".encode())
        if length is None:
            assert line.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            line.sendall(b"%x\r\n" % (2 * LARGE) + b"a" * LARGE)
        return line.recv(65_536).decode("latin-1")


@pytest.mark.parametrize(
    ("head", "status", "words"),
    [
        ("native", 401, "www-authenticate: Bearer"),
        ("native, unknown key", 401, "Unauthorized"),
        ("rest", 401, "www-authenticate: Bearer"),
        ("rest, unknown key", 401, "Unauthorized"),
        ("json", 403, "MissingAuthenticationToken"),
        ("json, unknown key", 403, "InvalidClientTokenId"),
        ("json, an hour ago", 403, "SignatureDoesNotMatch"),
        ("form", 403, "MissingAuthenticationToken"),
        ("no interface", 413, "takes a body of this size"),
    ],
)
@pytest.mark.parametrize("length", [LARGE, 90 * 2**20, None], ids=["just-large", "huge", "chunks"])
def test_a_stranger_is_refused_before_its_large_body_is_read(
    server: Served, head: str, status: int, words: str, length: int | None
) -> None:
    said = told(server, heads()[head], length)
    assert said.startswith(f"HTTP/1.1 {status} ")
    assert words in said
    assert "connection: close" in said
    assert "x-request-id: " in said


@pytest.mark.parametrize("head", ["native, known", "rest, known", "json, known"])
def test_who_is_known_is_asked_for_the_body(server: Served, head: str) -> None:
    assert told(server, heads()[head]) == "HTTP/1.1 100 Continue\r\n\r\n"


def test_large_messages_of_those_who_are_known_arrive(server: Served) -> None:
    large = "a" * (3 * LARGE)
    with penstock.open(native_url(server.url)) as ps:
        sqs_client(server.url).send_message(QueueUrl=f"{server.url}/000000000000/q", MessageBody=large)
        ps.queue("q").enqueue(large.encode())
        assert [one.payload.decode() for one in ps.queue("q").lease(2)] == [large, large]


def test_small_bodies_of_strangers_are_answered_and_the_connection_goes_on(ps: Penstock) -> None:
    async def story() -> None:
        async with asyncio.timeout(20), running(ps) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for size in (1, STRANGERS_BYTES):
                body = b"a" * size
                writer.write(message("POST", "/probe/echo", body, "x-stranger: yes\r\n", close=False))
                assert (await answer(reader)).body == body
            writer.close()

    asyncio.run(story())


def test_what_was_held_of_a_body_that_is_refused_is_let_go_and_the_refusal_is_counted(ps: Penstock) -> None:
    async def story() -> None:
        async with asyncio.timeout(20), running(ps) as server:
            head = message("POST", "/probe/echo", headers="x-stranger: yes\r\ntransfer-encoding: chunked\r\n")
            found = await exchange(server.port, head + b"%x\r\n" % (4 * LARGE) + b"a" * (2 * LARGE))
            assert found.status == 401
            assert server.door.body_bytes == 0
            assert 'refused_total{status="401"} 1' in server.app.numbers.render()

    asyncio.run(story())
