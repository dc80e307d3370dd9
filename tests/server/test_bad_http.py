"""What is a request and what is not: none hides in another, and none is half understood."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from penstock import Penstock
from penstock.server import http
from penstock.server_config import Limits
from tests.server.running import DEFAULTS, Running, answer, exchange, message, running

START = "POST /probe/echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
CHUNKED = "transfer-encoding: chunked\r\n"
ABC = "3\r\nabc\r\n0\r\n\r\n"


def on_server(ps: Penstock, story: Callable[[Running], Awaitable[None]], limits: Limits = DEFAULTS) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), running(ps, limits) as server:
            await story(server)
            assert server.door.body_bytes == 0 or server.door.answering

    asyncio.run(run())


async def all_of(server: Running, data: str) -> list[int]:
    """The status of everything that is said to it, until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data.encode("latin-1"))
    said = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return [int(status) for status in re.findall(rb"HTTP/1\.1 ([0-9]{3}) [A-Z]", said)]


@pytest.mark.parametrize(
    "rest",
    [
        f"content-length: 3\r\n{CHUNKED}\r\n{ABC}",
        f"{CHUNKED}content-length: 3\r\n\r\n{ABC}",
        f"{CHUNKED}{CHUNKED}\r\n{ABC}",
        "content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
        "content-length: 3, 3\r\n\r\nabc",
        "content-length: +3\r\n\r\nabc",
        "content-length: -3\r\n\r\nabc",
        "content-length: 0x3\r\n\r\nabc",
        "content-length: \r\n\r\nabc",
        "content-length: 99999999999999999999999\r\n\r\nabc",
        "content-length : 3\r\n\r\nabc",
        f"transfer-encoding: chunked, gzip\r\n\r\n{ABC}",
        f"transfer-encoding: gzip\r\n{CHUNKED}\r\n{ABC}",
        f"transfer-encoding: identity\r\n{CHUNKED}\r\n{ABC}",
        f"transfer-encoding:\r\n chunked\r\n\r\n{ABC}",
        "x-a: one\r\n two\r\n\r\n",
        "x-a: b\rc: d\r\n\r\n",
        "x-a: b\nc: d\r\n\r\n",
        "x-a: b\0c\r\n\r\n",
        ": nothing\r\n\r\n",
        f"{CHUNKED}\r\n3\nabc\n0\n\n",
        f"{CHUNKED}\r\n-3\r\nabc\r\n0\r\n\r\n",
        f"{CHUNKED}\r\nffffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        f"{CHUNKED}\r\n3\r\nabcXX\r\n0\r\n\r\n",
        "host: b\r\n\r\n",
    ],
)
def test_where_a_body_ends_is_never_a_matter_of_opinion(ps: Penstock, rest: str) -> None:
    async def story(server: Running) -> None:
        hidden = "GET /probe/hidden HTTP/1.1\r\nhost: a\r\n\r\n"
        assert await all_of(server, f"{START}{rest}{hidden}") == [400]

    on_server(ps, story)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (f"{START}transfer-encoding: gzip, chunked\r\n\r\n{ABC}", 501),
        (f"{START}transfer-encoding: xchunked\r\n\r\n{ABC}", 501),
        (f"{START}transfer-encoding: identity\r\n\r\nabc", 501),
        ("GET /healthz HTTP/1.1\r\n\r\n", 400),
        ("GET /healthz HTTP/1.0\r\n\r\n", 200),
        ("GET /healthz HTTP/2.0\r\nhost: a\r\n\r\n", 400),
        ("GET /healthz HTTP/1.2\r\nhost: a\r\n\r\n", 400),
        ("GET /healthz\r\n\r\n", 400),
        ("GET /healthz HTTP/1.1\nhost: a\nconnection: close\n\n", 400),
        ("get /healthz HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /probe/se\0en HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET /probe/\xe9 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET http://here HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET http://here/healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 200),
        ("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("CONNECT here:80 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("CONNECT http://here/healthz HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (f"POST /probe/echo HTTP/1.0\r\n{CHUNKED}\r\n{ABC}", 400),
        ("POST /probe/echo HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nok", 200),
        ("OPTIONS /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 405),
        ("DELETE /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 405),
        ("\r\n\r\nGET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 200),
        (f"{START}expect: something\r\ncontent-length: 2\r\n\r\nok", 200),
    ],
)
def test_a_request_of_another_kind_is_answered_once(ps: Penstock, data: str, status: int) -> None:
    async def story(server: Running) -> None:
        assert await all_of(server, data) == [status]

    on_server(ps, story)


def test_headers_behind_a_body_count_for_nothing(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        head = message("POST", "/probe/seen", headers=f"authorization: mine\r\n{CHUNKED}")
        found = await exchange(server.port, head + b"0\r\nauthorization: another\r\nx-more: 1\r\n\r\n")
        _, _, headers = found.json
        assert headers["authorization"] == "mine"
        assert "x-more" not in headers

    on_server(ps, story)


def test_headers_behind_a_body_have_the_limit_of_headers(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        head = message("POST", "/probe/seen", headers=CHUNKED)
        found = await exchange(server.port, head + b"0\r\n" + b"x-more: 1\r\n" * 200)
        assert found.status == 431

    on_server(ps, story, Limits(max_header_bytes=1024))


def test_an_offer_of_something_else_keeps_what_was_said_besides(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        offer = "connection: Upgrade, close\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc"
        for version in ("1.0", "1.1"):
            asked = f"POST /probe/echo HTTP/{version}\r\nhost: a\r\n{offer}"
            assert await all_of(server, asked) == [200]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST /probe/echo HTTP/1.1\r\nhost: a\r\n{offer.replace(', close', '')}".encode()
        for piece in (head[:-3], b"a", b"bc"):
            writer.write(piece)
            await asyncio.sleep(0.02)
        assert (await answer(reader)).body == b"abc"
        writer.close()

    on_server(ps, story)


def test_an_old_client_that_keeps_its_connection_is_told_so(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
            assert (await answer(reader)).headers["connection"] == "keep-alive"
        writer.close()

    on_server(ps, story)


def test_of_very_many_requests_ahead_the_first_are_answered_and_then_it_ends(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        ahead = message("POST", "/probe/echo", b"x", close=False).decode() * (http.MAX_AHEAD * 3)
        assert await all_of(server, ahead) == [200] * http.MAX_AHEAD

    on_server(ps, story)


def test_a_body_in_very_many_pieces_takes_no_more_room_than_in_one(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(message("POST", "/probe/echo", headers=CHUNKED))
        count = 200_000
        writer.write(b"2\r\nab\r\n" * count)
        await writer.drain()
        while server.door.body_bytes < 2 * count:
            await asyncio.sleep(0.01)
        (connection,) = server.door.connections
        assert connection._body.__sizeof__() < 4 * count
        writer.write(b"0\r\n\r\n")
        assert (await answer(reader)).body == b"ab" * count
        writer.close()

    on_server(ps, story)


SOUND = [
    message("POST", "/probe/echo", b"hello", close=False),
    message("GET", "/probe/pieces", close=False),
    message("POST", "/probe/enqueue", b"1", close=False),
    f"POST /probe/echo HTTP/1.1\r\nhost: a\r\n{CHUNKED}\r\n3;x=y\r\nabc\r\n0\r\nx: y\r\n\r\n".encode(),
    b"GET /healthz HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    b"HEAD /healthz HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    b"POST /probe/echo HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nok",
]
PIECES = [
    b"\r\n",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"content-length: 5\r\n",
    CHUNKED.encode(),
    b"\0",
    b"\xff",
    b" ",
]


def spoilt(rng: random.Random) -> bytes:
    """Requests behind each other, with some bytes more, less or other than there should be."""
    data = bytearray(b"".join(rng.choices(SOUND, k=rng.randint(1, 4))))
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.choice([0, 0, 1, 6])] = rng.choice([*PIECES, b"", rng.randbytes(1)])
    return bytes(data)


def test_whatever_comes_is_no_error_of_the_servers_and_leaves_nothing_behind(ps: Penstock) -> None:
    rng = random.Random(7)
    wrong: list[dict[str, Any]] = []

    async def send(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        data = spoilt(rng)
        with suppress(ConnectionError, TimeoutError):
            while data:
                count = rng.choice([1, 3, 17, 400])
                writer.write(data[:count])
                data = data[count:]
                await asyncio.sleep(0)
            async with asyncio.timeout(0.1):
                await reader.read()
        writer.transport.abort()

    async def story(server: Running) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: wrong.append(context))
        for _ in range(12):
            await asyncio.gather(*(send(server) for _ in range(50)))
        async with asyncio.timeout(10):
            while server.door.connections or server.door.answering:
                await asyncio.sleep(0.01)
        assert server.door.body_bytes == 0
        assert wrong == []
        told = server.app.numbers.render()
        assert 'status="500"' not in told
        assert 'operation="echo",status="200"' in told
        assert (await server.ask("GET", "/healthz")).status == 200

    on_server(ps, story)
