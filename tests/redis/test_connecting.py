"""A server runs scripts and commands, is given again what it forgot, and its errors are Penstock's."""

from __future__ import annotations

import threading

import pytest

from penstock.backends.redis.connecting import Script, Server
from penstock.errors import BackendUnavailable, InvalidConfig, StorageError, StorageFull
from tests.redis.conftest import Connect
from tests.redis.servers import RunningServer

ECHO = Script("echo", b"return {KEYS[1], ARGV[1], ARGV[2], 7, false}")
COUNT = Script("count", b"return redis.call('INCR', KEYS[1])")
FAIL = Script("fail", b"return redis.call('LPUSH', KEYS[1], 'x')")
CALL = b"0123456789abcdef0"


@pytest.fixture
def server(every_server: RunningServer, connected: Connect) -> Server:
    every_server.do("FLUSHALL")
    return connected(every_server)


def test_a_script_gets_its_keys_and_arguments_and_its_answer_comes_back_as_bytes_and_numbers(
    server: Server,
) -> None:
    assert server.run(ECHO, [b"{a}k"], [12, b"\x00\xff"]) == [b"{a}k", b"12", b"\x00\xff", 7, None]
    assert server.run(ECHO, [b"k"], [1.5, "ü"]) == [b"k", b"1.5", "ü".encode(), 7, None]


def test_a_script_that_the_server_has_forgotten_is_loaded_again(
    server: Server, every_server: RunningServer
) -> None:
    assert server.run(COUNT, [b"n"], []) == 1
    every_server.do("SCRIPT", "FLUSH")
    assert server.run(COUNT, [b"n"], []) == 2
    every_server.do("SCRIPT", "FLUSH")
    assert server.run_many([(COUNT, [b"n"], [])] * 3) == [3, 4, 5]
    assert every_server.do("SCRIPT", "EXISTS", COUNT.sha) == [True]


def test_many_calls_are_one_pipeline_and_an_error_is_the_answer_of_its_call_alone(server: Server) -> None:
    answers = server.run_many(
        [(COUNT, [b"n"], []), (FAIL, [b"n"], []), (COUNT, [b"n"], []), (ECHO, [b"k"], [1, 2])]
    )
    assert answers[0] == 1
    assert isinstance(answers[1], StorageError)
    assert answers[2:] == [2, [b"k", b"1", b"2", 7, None]]


def test_no_call_is_no_round_trip(server: Server) -> None:
    assert server.run_many([]) == []


def test_a_command_answers_as_the_server_does(server: Server) -> None:
    assert server.command("SET", "a", 1) == b"OK"
    assert server.command(b"GET", b"a") == b"1"
    assert server.everywhere("DBSIZE") == [1]


def test_the_server_is_known_by_kind_and_version(server: Server, every_server: RunningServer) -> None:
    assert server.profile.flavour == every_server.binary.flavour
    assert server.profile.version == every_server.binary.version
    assert server.profile.detected


def test_an_error_of_a_script_is_a_storage_error_on_one_line_with_its_cause(server: Server) -> None:
    server.command("SET", "n", 1)
    with pytest.raises(StorageError, match="WRONGTYPE") as caught:
        server.run(FAIL, [b"n"], [])
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    assert server.command("GET", "n") == b"1"


def test_a_server_without_room_is_storage_full(server: Server, every_server: RunningServer) -> None:
    every_server.do("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StorageFull, match="out of memory"):
            server.run(COUNT, [b"n"], [])
        with pytest.raises(StorageFull, match="out of memory"):
            server.command("SET", "a", "b")
    finally:
        every_server.do("CONFIG", "SET", "maxmemory", "0")


def test_threads_share_a_server(server: Server) -> None:
    def work() -> None:
        for _ in range(50):
            server.run(COUNT, [b"n"], [])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.command("GET", "n") == b"400"


def test_what_is_closed_says_so(server: Server) -> None:
    server.close()
    server.close()
    with pytest.raises(StorageError, match="closed"):
        server.command("PING")


def test_nobody_there_is_unavailable_and_not_waited_for_long(
    connected: Connect, every_server: RunningServer
) -> None:
    with pytest.raises(BackendUnavailable, match="does not answer"):
        connected(every_server, nodes=(("127.0.0.1", 1),))


def test_another_server_than_the_scheme_says_is_refused_with_both_names(
    connected: Connect, every_server: RunningServer
) -> None:
    flavour = every_server.binary.flavour
    with pytest.raises(InvalidConfig, match=rf"says keydb, but {flavour} [0-9.]+ answers"):
        connected(every_server, flavour="keydb")
