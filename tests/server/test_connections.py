"""What a connection takes, how it answers, and where it says no."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock import Penstock
from penstock.server import door as doors
from penstock.server_config import Limits
from tests.server.running import DEFAULTS, Running, answer, exchange, message, running


def on_server(
    ps: Penstock, story: Callable[[Running], Awaitable[None]], limits: Limits = DEFAULTS, log: str = "off"
) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), running(ps, limits, log=log) as server:
            await story(server)
            assert server.door.body_bytes == 0 or server.door.answering

    asyncio.run(run())


def test_requests_of_one_connection_are_answered_in_order(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        bodies = [b"a", b"b" * 300_000, b"c"]
        writer.write(b"".join(message("POST", "/probe/echo", body, close=False) for body in bodies))
        for body in bodies:
            found = await answer(reader)
            assert (found.status, found.body) == (200, body)
            assert "connection" not in found.headers
            assert found.headers["x-request-id"]
        writer.close()

    on_server(ps, story)


@pytest.mark.parametrize("before", [0, 2])
def test_who_has_said_all_is_answered_and_then_it_ends(ps: Penstock, before: int) -> None:
    """As `nc -N` does."""

    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        echo = message("POST", "/probe/echo", b"a", close=False)
        writer.write(echo * before + message("GET", "/probe/hold", close=False))
        writer.write_eof()
        assert [(await answer(reader)).body for _ in range(before)] == [b"a"] * before
        await server.probe.entered.wait()
        server.probe.go_on.set()
        assert (await answer(reader)).body == b"held"
        assert await reader.read() == b""
        writer.close()

    on_server(ps, story)


def test_who_has_said_all_and_may_have_gone_is_leased_nothing(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(message("GET", "/probe/lease?30", close=False))
        while server.calls.polls.waiting == 0:
            await asyncio.sleep(0.005)
        writer.write_eof()
        while not any(connection._has_ended for connection in server.door.connections):
            await asyncio.sleep(0.005)
        ps.queue("q").enqueue(b"a")
        assert (await answer(reader)).body == b""
        assert ps.queue("q").stats().ready == 1
        writer.close()

    on_server(ps, story)


def test_what_has_arrived_when_the_server_stops_is_answered(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(message("GET", "/probe/hold", close=False))
        writer.write(message("POST", "/probe/echo", b"a", close=False))
        await server.probe.entered.wait()
        while not any(connection._ahead for connection in server.door.connections):
            await asyncio.sleep(0.005)
        stopping = asyncio.create_task(server.door.stop(10))
        await asyncio.sleep(0)
        server.probe.go_on.set()
        assert [(await answer(reader)).body for _ in range(2)] == [b"held", b"a"]
        assert await reader.read() == b""
        assert await stopping
        writer.close()

    on_server(ps, story)


def test_a_body_in_chunks_and_an_answer_in_pieces(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        chunked = message("POST", "/probe/echo", headers="transfer-encoding: chunked\r\n")
        found = await exchange(server.port, chunked + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert found.body == b"abcde"
        assert found.headers["connection"] == "close"
        assert (await server.ask("GET", "/probe/pieces")).body == b"onetwo"

    on_server(ps, story)


def test_an_answer_that_breaks_off_does_not_look_whole(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        server.probe.go_on.set()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ValueError)):
            await server.ask("GET", "/probe/pieces")

    on_server(ps, story)


def test_head_has_no_body_and_an_offer_of_http2_is_not_taken(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(message("HEAD", "/healthz"))
        said = await asyncio.wait_for(reader.read(), 5)
        assert said.startswith(b"HTTP/1.1 200")
        assert said.endswith(b"\r\n\r\n")
        writer.close()
        offer = (
            b"POST /probe/echo?x HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\n"
            b"upgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\ncontent-length: 3\r\n\r\nabc"
        )
        assert (await exchange(server.port, offer)).body == b"abc"

    on_server(ps, story)


def test_a_client_that_expects_to_be_asked_for_the_body_is_asked(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = b"POST /probe/echo HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
        writer.write(head)
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert (await answer(reader)).body == b"ok"
        writer.close()

    on_server(ps, story)


SMALL = Limits(max_header_bytes=1024, max_body_bytes=1024, max_total_body_bytes=1500)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"CONNECT here:1 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (message("GET", "/" + "a" * 2000), 431),
        (message("GET", "/", headers=f"x: {'a' * 2000}\r\n"), 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 500, 431),
        (b"GET /" + b"a" * 5000, 431),
        (message("POST", "/probe/echo", b"a" * 1025), 413),
        (message("POST", "/x", headers="transfer-encoding: chunked\r\n") + b"800\r\n" + b"a" * 0x800, 413),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ],
)
def test_what_is_too_large_or_no_request_is_refused_with_a_reason(
    ps: Penstock, data: bytes, status: int
) -> None:
    async def story(server: Running) -> None:
        found = await exchange(server.port, data)
        assert found.status == status
        assert found.headers["connection"] == "close"
        assert found.json.get("error") or found.json.get("probe_error")
        assert f'refused_total{{status="{status}"}} 1' in server.app.numbers.render()

    on_server(ps, story, SMALL)


def test_bodies_of_all_connections_have_a_limit_together(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        _, first = await asyncio.open_connection("127.0.0.1", server.port)
        first.write(message("POST", "/probe/echo", b"a" * 1000)[:-1])
        while not server.door.body_bytes:
            await asyncio.sleep(0.005)
        found = await server.ask("POST", "/probe/echo", b"b" * 1000)
        assert found.status == 503
        assert found.headers["retry-after"] == "1"
        first.close()
        while server.door.body_bytes:
            await asyncio.sleep(0.005)
        assert (await server.ask("POST", "/probe/echo", b"b" * 1000)).status == 200

    on_server(ps, story, SMALL)


def test_one_connection_too_many_is_told_to_come_later(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(message("GET", "/healthz", close=False))
        assert (await answer(reader)).status == 200
        found = await server.ask("GET", "/healthz")
        assert found.status == 503
        assert found.headers["retry-after"]
        writer.write(message("GET", "/healthz"))
        assert (await answer(reader)).status == 200
        writer.close()

    on_server(ps, story, Limits(max_connections=1))


def test_who_sends_slowly_is_cut_and_who_says_nothing_is_hung_up_on(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "LOOK_EVERY_S", 0.02)

    async def story(server: Running) -> None:
        found = await exchange(server.port, message("POST", "/probe/echo", b"abc")[:-1])
        assert found.status == 408
        assert "probe_error" in found.json
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()

    on_server(ps, story, Limits(read_timeout_s=0.1, idle_timeout_s=0.2))


def test_who_does_not_read_its_answer_is_cut(ps: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "LOOK_EVERY_S", 0.02)

    async def story(server: Running) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(message("POST", "/probe/echo", b"a" * 20_000_000, close=False))
        while not server.door.connections:
            await asyncio.sleep(0.01)
        while server.door.connections:
            await asyncio.sleep(0.01)
        writer.close()

    on_server(ps, story, Limits(read_timeout_s=0.2))


def test_after_a_refusal_behind_a_request_the_answer_comes_and_the_connection_ends(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(message("GET", "/probe/hold", close=False))
        await server.probe.entered.wait()
        writer.write(b"nonsense\r\n\r\n")
        await asyncio.sleep(0.05)
        server.probe.go_on.set()
        said = await asyncio.wait_for(reader.read(), 5)
        assert said.count(b"HTTP/1.1") == 1
        assert said.endswith(b"held")
        writer.close()

    on_server(ps, story)


def test_a_call_without_room_says_when_to_come_again_in_the_form_of_its_interface(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        found = await server.ask("POST", "/probe/busy")
        assert (found.status, found.headers["retry-after"]) == (429, "3")
        assert found.json["probe_error"] == "no room"

    on_server(ps, story)


def test_an_error_that_nobody_foresaw_is_a_500_which_repeats_nothing_that_was_sent(
    ps: Penstock, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(server: Running) -> None:
        found = await server.ask("POST", "/probe/fail", b"secret-words")
        assert found.status == 500
        assert found.json["id"] == found.headers["x-request-id"]
        assert b"secret-words" not in found.body
        assert found.json["id"] in caplog.text
        assert "secret-words" not in caplog.text

    on_server(ps, story)
