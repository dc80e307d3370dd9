"""Those who listen are told: when it begins, of every message, and after every reconnect."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from penstock.backends.redis.connecting import Script
from penstock.errors import StorageError
from penstock.redis_settings import RetrySettings
from tests.redis.conftest import Connect
from tests.redis.proxy import Proxy
from tests.redis.servers import RunningServer, wait_until

COUNT = Script("count", b"return redis.call('INCR', KEYS[1])")


class Ear:
    """Counts what it is told, and waits for it."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1

    def has_heard(self, times: int) -> bool:
        return wait_until(lambda: self.times >= times)


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-redis-listener"]


@pytest.fixture
def proxy(every_server: RunningServer) -> Iterator[Proxy]:
    with Proxy(every_server.port) as proxy:
        yield proxy


def test_a_listener_is_told_when_listening_begins_and_of_each_message_of_its_channel(
    every_server: RunningServer, connected: Connect
) -> None:
    server = connected(every_server)
    mine, other = Ear(), Ear()
    server.listen(b"mine", mine)
    server.listen(b"other", other)
    assert mine.has_heard(1)
    assert other.has_heard(1)
    assert every_server.do("PUBLISH", "mine", "x") == 1
    assert mine.has_heard(2)
    assert other.times == 1
    assert len(listeners()) == 1


def test_who_stops_listening_is_not_told_any_more(every_server: RunningServer, connected: Connect) -> None:
    server = connected(every_server)
    first, second = Ear(), Ear()
    stop = server.listen(b"c", first)
    server.listen(b"c", second)
    assert first.has_heard(1)
    stop()
    stop()
    every_server.do("PUBLISH", "c", "x")
    assert second.has_heard(2) or second.has_heard(1)
    assert first.times <= 2
    assert every_server.do("PUBSUB", "NUMSUB", "c") == [b"c", 1]


def test_after_a_reconnect_everyone_is_told_and_hears_again(
    proxy: Proxy, every_server: RunningServer, connected: Connect
) -> None:
    retry = RetrySettings(first_delay_s=0.01)
    server = connected(proxy, retry=retry, flavour=every_server.binary.flavour)
    ear = Ear()
    server.listen(b"c", ear)
    assert ear.has_heard(1)
    for heard in (1, 3, 5):
        proxy.cut()
        assert ear.has_heard(heard + 1)
        assert wait_until(lambda: every_server.do("PUBLISH", "c", "x") == 1)
        assert ear.has_heard(heard + 2)
    assert server.health().reconnects >= 3
    assert server.health().listening


def test_a_connection_that_is_silent_is_asked_and_given_up(
    proxy: Proxy, every_server: RunningServer, connected: Connect
) -> None:
    server = connected(proxy, retry=RetrySettings(first_delay_s=0.01), flavour=every_server.binary.flavour)
    server._subscriber._quiet_s = 0.1
    ear = Ear()
    server.listen(b"c", ear)
    assert ear.has_heard(1)
    proxy.hold()
    assert wait_until(lambda: server._subscriber.reconnects >= 1)
    proxy.release()
    assert ear.has_heard(2)


def test_a_listener_that_fails_does_not_stop_the_others(
    every_server: RunningServer, connected: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = connected(every_server)
    ear = Ear()

    def fail() -> None:
        raise ValueError("a listener's own")

    server.listen(b"c", fail)
    server.listen(b"c", ear)
    every_server.do("PUBLISH", "c", "x")
    assert ear.has_heard(1)
    assert wait_until(lambda: "what listens to b'c' failed" in caplog.text)


def test_closing_ends_the_thread_and_its_connection(every_server: RunningServer, connected: Connect) -> None:
    server = connected(every_server)
    ear = Ear()
    server.listen(b"c", ear)
    assert ear.has_heard(1)
    server.close()
    assert listeners() == []
    assert wait_until(lambda: every_server.do("PUBSUB", "NUMSUB", "c") == [b"c", 0])


def test_a_listener_that_waits_for_who_closes_does_not_hold_it_up_for_ever(
    every_server: RunningServer, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.backends.redis.subscriber.CLOSE_S", 0.05)
    server = connected(every_server)
    lock, called = threading.Lock(), threading.Event()

    def told() -> None:
        called.set()
        with lock:
            pass

    with lock:
        server.listen(b"c", told)
        assert called.wait(10)
        server.close()
    assert wait_until(lambda: listeners() == [])


def test_what_was_closed_before_a_fork_is_closed_after_it(
    every_server: RunningServer, connected: Connect
) -> None:
    server = connected(every_server)
    server.close()
    child = os.fork()
    if child == 0:  # pragma: no cover  (in the child)
        try:
            server.command("PING")
        except StorageError:
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_child_after_a_fork_calls_and_hears_by_itself_and_its_parent_goes_on(
    every_server: RunningServer, connected: Connect
) -> None:
    every_server.do("FLUSHALL")
    server = connected(every_server)
    ear = Ear()
    server.listen(b"c", ear)
    assert ear.has_heard(1)
    assert server.run(COUNT, [b"n"], []) == 1
    child = os.fork()
    if child == 0:  # pragma: no cover  (in the child)
        heard = ear.times
        fine = server.run(COUNT, [b"n"], []) == 2 and ear.has_heard(heard + 1)
        every_server.do("PUBLISH", "c", "x")
        os._exit(0 if fine and ear.has_heard(heard + 2) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ear.has_heard(2)
    assert server.run(COUNT, [b"n"], []) == 3
