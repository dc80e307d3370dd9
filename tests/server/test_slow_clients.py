"""Clients that are slow, or say nothing, or do not listen: what they can make the server hold is bounded."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.server import door as doors
from penstock.server.http import PIECE_BYTES
from penstock.server_config import Limits
from tests.redis.certificates import Authority
from tests.redis.servers import wait_until
from tests.server.processes import serving
from tests.server.running import Running, answer, message
from tests.server.test_bad_http import on_server


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "LOOK_EVERY_S", 0.02)


def test_answers_do_not_pile_up_for_who_does_not_take_them(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        body = b"a" * 1_000_000
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(60):
            writer.write(message("POST", "/probe/echo", body, close=False))
            await asyncio.sleep(0.01)
        (connection,) = server.door.connections
        assert connection._transport.get_write_buffer_size() < 2 * PIECE_BYTES
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(60):
            assert (await answer(reader)).body == body
        writer.close()

    on_server(ps, story)


@pytest.mark.usefixtures("soon")
def test_who_takes_its_answer_slowly_gets_all_of_it(ps: Penstock) -> None:
    """Its time counts by the piece: a large answer may take longer than any one of them."""

    async def story(server: Running) -> None:
        body = b"a" * 12_000_000
        line = socket.create_connection(("127.0.0.1", server.port))
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, line.sendall, message("POST", "/probe/echo", body, close=True))

        def slowly() -> int:
            taken, began_s, waiting = 0, time.monotonic(), threading.Event()
            while piece := line.recv(400_000):
                taken += len(piece)
                waiting.wait(max(0, began_s + taken / 8_000_000 - time.monotonic()))
            return taken

        assert await loop.run_in_executor(None, slowly) > len(body)
        line.close()

    on_server(ps, story, Limits(read_timeout_s=0.5))


@pytest.mark.usefixtures("soon")
def test_half_a_request_behind_a_whole_one_has_its_time_too(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(message("GET", "/healthz", close=False) + b"GET /healthz HT")
        assert (await answer(reader)).status == 200
        assert (await answer(reader)).status == 408
        writer.close()

    on_server(ps, story, Limits(read_timeout_s=0.1, idle_timeout_s=20))


@pytest.mark.usefixtures("soon")
def test_half_a_request_is_not_late_while_the_one_before_it_waits(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        whole = message("GET", "/probe/hold", close=False)
        writer.write(whole + whole + b"GET /healthz HTTP/1.1\r\n")
        await server.probe.entered.wait()
        await asyncio.sleep(0.4)
        server.probe.go_on.set()
        assert [(await answer(reader)).body for _ in range(2)] == [b"held"] * 2
        writer.write(b"host: a\r\nconnection: close\r\n\r\n")
        assert (await answer(reader)).status == 200
        writer.close()

    on_server(ps, story, Limits(read_timeout_s=0.2))


def test_far_more_connections_than_there_may_be_are_hung_up_on(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "MOST_TOLD", 3)

    async def story(server: Running) -> None:
        lines = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        said = [await asyncio.wait_for(reader.read(20), 5) for reader, _ in lines[2:]]
        assert said.count(b"HTTP/1.1 503 Service") == 3
        assert said.count(b"") == 15
        assert 'refused_total{status="503"} 18' in server.app.numbers.render()
        for _, writer in lines:
            writer.close()
        async with asyncio.timeout(5):
            while server.door.connections:
                await asyncio.sleep(0.01)
        assert (await server.ask("GET", "/healthz")).status == 200

    on_server(ps, story, Limits(max_connections=2))


def test_while_it_ends_nobody_new_is_left_to_wait(ps: Penstock) -> None:
    async def story(server: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(message("GET", "/probe/hold", close=False))
        await server.probe.entered.wait()
        ending = asyncio.create_task(server.door.stop(10))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        server.probe.go_on.set()
        assert (await answer(reader)).body == b"held"
        assert await ending
        writer.close()

    on_server(ps, story)


def test_who_never_shakes_hands_takes_a_place_and_loses_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    crt, key = authority.issue("server", "127.0.0.1")
    tls = ["--tls-certificate", str(crt), "--tls-key", str(key), "--log", "off"]
    limits = {"PENSTOCK_SERVER_LIMITS_MAX_CONNECTIONS": "5", "PENSTOCK_SERVER_LIMITS_READ_TIMEOUT_S": "5"}
    context = ssl.create_default_context(cafile=str(authority.path))
    with serving(tmp_path, "--store", "memory:", *tls, **limits) as server:
        most = 5 + doors.MOST_TOLD
        lines = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(most)]
        with socket.create_connection(("127.0.0.1", server.port), 3) as one_more:
            assert one_more.recv(1) == b""  # At once.
        began_s = time.monotonic()
        assert lines[0].recv(1) == b""  # Its time is over.
        assert time.monotonic() - began_s < 10
        for line in lines:
            line.close()
        assert wait_until(lambda: _is_served(server.get, context), 10)
        assert "Traceback" not in server.errors


def _is_served(get: object, context: ssl.SSLContext) -> bool:
    try:
        return bool(get("/healthz", context)[0] == 200)  # type: ignore[operator]
    except OSError:
        return False


def test_clients_that_idle_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """Also with TLS, where a connection is closed by both sides, and who idles says nothing."""
    authority = Authority(tmp_path)
    crt, key = authority.issue("server", "127.0.0.1")
    tls = ["--tls-certificate", str(crt), "--tls-key", str(key), "--log", "off"]
    context = ssl.create_default_context(cafile=str(authority.path))
    with (
        serving(tmp_path, "--store", "memory:", *tls) as server,
        socket.create_connection(("127.0.0.1", server.port), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(message("GET", "/healthz", close=False))
        assert secure.recv(1000).startswith(b"HTTP/1.1 200 ")
        began_s = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began_s < 8
        assert "were not answered" not in server.errors
