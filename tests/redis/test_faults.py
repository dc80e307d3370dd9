"""Connections that break, servers that stop or refuse: calls go on, and say when they are repeated."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from penstock.backends.redis.connecting import Script
from penstock.errors import BackendUnavailable, StorageError, StorageFull
from penstock.redis_settings import RetrySettings
from tests.redis.clocks import SkippingClock
from tests.redis.conftest import Connect
from tests.redis.proxy import Proxy
from tests.redis.servers import RunningServer, running, wait_until

COUNT = Script("count", b"return {redis.call('INCR', KEYS[1]), ARGV[2]}")
FIRST, AGAIN = b"0123456789abcdef0", b"0123456789abcdef1"


@pytest.fixture
def proxy(shared_server: RunningServer) -> Iterator[Proxy]:
    shared_server.do("FLUSHALL")
    with Proxy(shared_server.port) as proxy:
        yield proxy


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RunningServer]:
    """One that a test may stop."""
    with running(tmp_path / "server") as server:
        yield server


def test_a_connection_that_broke_between_calls_is_noticed_before_anything_is_sent(
    proxy: Proxy, connected: Connect
) -> None:
    server = connected(proxy)
    assert server.run(COUNT, [b"n"], [0, FIRST]) == [1, FIRST]
    proxy.cut()
    assert server.run(COUNT, [b"n"], [0, FIRST]) == [2, FIRST]


def test_a_call_whose_answer_was_cut_is_sent_again_and_says_so(proxy: Proxy, connected: Connect) -> None:
    server = connected(proxy)
    server.run(COUNT, [b"n"], [0, FIRST])
    proxy.cut_after(3)
    assert server.run(COUNT, [b"n"], [0, FIRST]) == [3, AGAIN]


def test_of_many_calls_those_whose_answers_were_lost_are_sent_again(proxy: Proxy, connected: Connect) -> None:
    server = connected(proxy)
    server.run(COUNT, [b"n"], [0, FIRST])
    one_answer = len(b"*2\r\n:2\r\n$17\r\n0123456789abcdef0\r\n")
    proxy.cut_after(one_answer + 5)
    answers = server.run_many([(COUNT, [b"n"], [0, FIRST])] * 3)
    assert answers == [[2, FIRST], [5, AGAIN], [6, AGAIN]]


def test_arguments_that_are_no_call_are_left_as_they_are(proxy: Proxy, connected: Connect) -> None:
    server = connected(proxy)
    server.run(COUNT, [b"n"], [0, b"short0"])
    proxy.cut_after(1)
    assert server.run(COUNT, [b"n"], [0, b"short0"]) == [3, b"short0"]


def test_attempts_wait_longer_each_time_and_never_all_alike_and_end(proxy: Proxy, connected: Connect) -> None:
    clock = SkippingClock()
    server = connected(proxy, clock=clock, rng=random.Random(7), retry=RetrySettings(max_delay_s=0.3))
    proxy.refuse()
    proxy.cut()
    with pytest.raises(BackendUnavailable, match=rf"127.0.0.1:{proxy.port} does not answer") as caught:
        server.command("PING")
    assert caught.value.retryable
    assert len(clock.waits_s) == 4
    for waited_s, longest_s in zip(clock.waits_s, (0.05, 0.1, 0.2, 0.3), strict=True):
        assert longest_s / 2 <= waited_s <= longest_s
    assert len({round(waited_s / 0.05, 3) for waited_s in clock.waits_s}) == 4


def test_after_so_many_failures_calls_fail_at_once_and_one_of_them_tries_later(
    proxy: Proxy, connected: Connect
) -> None:
    clock = SkippingClock()
    retry = RetrySettings(attempts=1, breaker_failures=3, breaker_open_s=2)
    server = connected(proxy, clock=clock, retry=retry)
    proxy.hold()
    proxy.refuse()
    proxy.cut()
    for _ in range(3):
        with pytest.raises(BackendUnavailable, match="does not answer"):
            server.command("PING")
    proxy.refuse(False)
    proxy.release()
    before = proxy.accepted
    with pytest.raises(BackendUnavailable, match=r"did not answer 3 times in a row; .* in 2\.0 s"):
        server.command("PING")
    assert server.health().breaker_open
    assert proxy.accepted == before
    clock.advance(2)
    assert server.command("PING") == b"PONG"
    assert not server.health().breaker_open


def test_a_probe_that_fails_keeps_the_breaker_open(proxy: Proxy, connected: Connect) -> None:
    clock = SkippingClock()
    retry = RetrySettings(attempts=1, breaker_failures=1, breaker_open_s=2)
    server = connected(proxy, clock=clock, retry=retry)
    proxy.refuse()
    proxy.cut()
    for _ in range(3):
        with pytest.raises(BackendUnavailable, match="does not answer"):
            server.command("PING")
        with pytest.raises(BackendUnavailable, match="in a row"):
            server.command("PING")
        clock.advance(2)


def test_a_paused_server_is_waited_for(own_server: RunningServer, connected: Connect) -> None:
    clock = SkippingClock(lambda number: own_server.resume())
    server = connected(own_server, clock=clock, read_timeout_s=0.2)
    server.run(COUNT, [b"n"], [0, FIRST])
    own_server.pause()
    assert server.run(COUNT, [b"n"], [0, FIRST]) == [3, AGAIN]
    assert len(clock.waits_s) == 1


def test_clients_that_the_server_holds_up_are_waited_for(
    own_server: RunningServer, connected: Connect
) -> None:
    server = connected(own_server, clock=SkippingClock(), read_timeout_s=0.1)
    own_server.do("CLIENT", "PAUSE", 250)
    assert server.run(COUNT, [b"n"], [0, FIRST])[1] == AGAIN


def test_a_call_may_have_a_time_limit_of_its_own(own_server: RunningServer, connected: Connect) -> None:
    clock = SkippingClock(lambda number: own_server.resume())
    server = connected(own_server, clock=clock, read_timeout_s=60)
    own_server.pause()
    assert server.run(COUNT, [b"n"], [0, FIRST], timeout_s=0.1)[1] == AGAIN


def test_a_server_that_is_killed_and_started_again_loses_nothing_with_its_log(
    tmp_path: Path, connected: Connect
) -> None:
    with running(tmp_path / "server", appendfsync="always") as killed:

        def restart(number: int) -> None:
            if number == 1:
                killed.start()

        server = connected(killed, clock=SkippingClock(restart))
        assert server.run(COUNT, [b"n"], [0, FIRST]) == [1, FIRST]
        killed.kill()
        assert server.run(COUNT, [b"n"], [0, FIRST]) == [2, FIRST]


def test_a_server_that_refuses_writes_for_now_is_asked_again_without_saying_repeated(
    own_server: RunningServer, connected: Connect
) -> None:
    clock = SkippingClock(lambda number: own_server.do("REPLICAOF", "NO", "ONE"))
    server = connected(own_server, clock=clock)
    server.run(COUNT, [b"n"], [0, FIRST])
    own_server.do("REPLICAOF", "127.0.0.1", "1")
    assert server.run(COUNT, [b"n"], [0, FIRST]) == [2, FIRST]
    own_server.do("REPLICAOF", "127.0.0.1", "1")
    assert server.command("SET", "a", "b") == b"OK"
    assert len(clock.waits_s) == 2


def test_a_server_that_goes_on_refusing_is_unavailable(own_server: RunningServer, connected: Connect) -> None:
    server = connected(own_server, clock=SkippingClock())
    own_server.do("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(BackendUnavailable, match="READONLY"):
        server.run(COUNT, [b"n"], [0, FIRST])


def test_a_server_busy_with_a_script_is_waited_for(own_server: RunningServer, connected: Connect) -> None:
    own_server.do("CONFIG", "SET", "lua-time-limit", "10")

    def end_script(number: int) -> None:
        if number == 1:
            own_server.do("SCRIPT", "KILL")
            busy.join()

    server = connected(own_server, clock=SkippingClock(end_script))
    busy = threading.Thread(target=_swallow, args=(own_server, "EVAL", "while true do end", 0))
    busy.start()
    while server.command("PING") == b"PONG" and busy.is_alive():
        pass
    busy.join()
    assert server.command("PING") == b"PONG"


def _swallow(server: RunningServer, *command: object) -> None:
    with pytest.raises(redis.RedisError):
        server.do(*command)


def test_a_server_that_cannot_save_is_storage_full(own_server: RunningServer, connected: Connect) -> None:
    server = connected(own_server)
    own_server.do("CONFIG", "SET", "save", "1 1")
    own_server.do("CONFIG", "SET", "dir", str(own_server.folder))
    (own_server.folder / "dump.rdb").mkdir()
    own_server.do("SET", "a", "b")
    _swallow(own_server, "SAVE")
    own_server.do("BGSAVE")
    assert wait_until(lambda: own_server.client().info("persistence")["rdb_last_bgsave_status"] == "err", 10)
    with pytest.raises(StorageFull, match="cannot save"):
        server.run(COUNT, [b"n"], [0, FIRST])


def test_a_server_of_another_kind_is_refused_without_trying_again(
    shared_server: RunningServer, connected: Connect
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        other = threading.Thread(target=answer)
        other.start()
        with pytest.raises(StorageError, match=r"does not speak as Redis does.*check host and port"):
            connected(shared_server, nodes=(listener.getsockname(),))
        other.join()


def test_a_host_that_nobody_knows_is_unavailable(shared_server: RunningServer, connected: Connect) -> None:
    with pytest.raises(BackendUnavailable, match="does not answer"):
        connected(shared_server, nodes=(("nobody.localhost.invalid", 1),), tls=True, clock=SkippingClock())


def test_all_connections_in_use_is_an_error_that_names_the_setting(proxy: Proxy, connected: Connect) -> None:
    server = connected(proxy, pool_size=1, read_timeout_s=0.3)
    proxy.hold()
    held = threading.Thread(target=lambda: server.run(COUNT, [b"n"], [0, FIRST], timeout_s=30))
    held.start()
    while server.health().pool_in_use == 0 and held.is_alive():
        pass
    try:
        with pytest.raises(BackendUnavailable, match=r"all 1 connections were in use.*pool_size"):
            server.command("PING")
    finally:
        proxy.release()
        held.join()


def test_closing_ends_a_call_that_waits_for_its_next_attempt(proxy: Proxy, connected: Connect) -> None:
    retry = RetrySettings(first_delay_s=60, max_delay_s=60)
    server = connected(proxy, retry=retry)
    proxy.refuse()
    proxy.cut()
    failed: list[BaseException] = []

    def call() -> None:
        try:
            server.command("PING")
        except BackendUnavailable as error:
            failed.append(error)

    waiting = threading.Thread(target=call)
    waiting.start()
    while not server._sender.meter.errors and waiting.is_alive():
        pass
    server.close()
    waiting.join(10)
    assert failed


def test_health_counts_calls_times_and_errors(proxy: Proxy, connected: Connect) -> None:
    server = connected(proxy)
    before = server.health().calls
    for _ in range(20):
        server.command("PING")
    proxy.cut_after(1)
    server.command("PING")
    health = server.health()
    assert health.reachable
    assert (health.errors, health.calls - before) == (1, 22)
    assert 0 < health.error_rate < 0.1
    assert health.latency_p50_s is not None
    assert health.latency_p99_s is not None
    assert 0 < health.latency_p50_s <= health.latency_p99_s < 10
    assert (health.pool_size, health.nodes, health.warnings) == (20, 1, [])
