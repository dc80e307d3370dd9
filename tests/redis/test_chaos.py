"""Many threads over a network that breaks at random: every call is done, and with its flag done once."""

from __future__ import annotations

import random
import threading

import pytest

from penstock.backends.redis.connecting import Script, Server
from penstock.redis_settings import RetrySettings
from tests.redis.conftest import Connect
from tests.redis.proxy import Proxy
from tests.redis.servers import RunningServer

#: Counts a call once: one that is repeated looks whether it was counted.
COUNT = Script(
    "count",
    b"""
    local id, repeated = string.sub(ARGV[2], 1, 16), string.sub(ARGV[2], 17) == '1'
    if repeated and redis.call('SISMEMBER', KEYS[2], id) == 1 then return {'again', id} end
    redis.call('SADD', KEYS[2], id)
    redis.call('INCR', KEYS[1])
    return {'first', id}
    """,
)
THREADS, CALLS = 6, 120
KEYS = [b"{c}:n", b"{c}:ids"]


def work(server: Server, seed: int, answers: list[list[bytes]]) -> None:
    rng = random.Random(seed)
    for _ in range(CALLS // 4):
        ids = [rng.randbytes(16) for _ in range(4)]
        found = [server.run(COUNT, KEYS, [0, ids[0] + b"0"])]
        found += server.run_many([(COUNT, KEYS, [0, call + b"0"]) for call in ids[1:]])
        assert [answer[1] for answer in found] == ids
        answers += found


@pytest.mark.parametrize("seed", [1, 2])
def test_calls_over_a_breaking_network_are_each_done_once(
    every_server: RunningServer, connected: Connect, seed: int
) -> None:
    every_server.do("FLUSHALL")
    rng = random.Random(seed)
    with Proxy(every_server.port) as proxy:
        retry = RetrySettings(attempts=50, first_delay_s=0.001, max_delay_s=0.01, breaker_failures=1000)
        server = connected(proxy, flavour=every_server.binary.flavour, retry=retry, pool_size=THREADS)
        answers: list[list[list[bytes]]] = [[] for _ in range(THREADS)]
        threads = [
            threading.Thread(target=work, args=(server, seed * 100 + number, answers[number]))
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        pause = threading.Event()
        while any(thread.is_alive() for thread in threads):
            if rng.random() < 0.5:
                proxy.cut()
            else:
                proxy.cut_after(rng.randrange(40))
            if rng.random() < 0.2:
                every_server.do("SCRIPT", "FLUSH")
            pause.wait(rng.random() * 0.01)
        done = [answer for some in answers for answer in some]
    assert len(done) == THREADS * CALLS
    assert int(every_server.do("GET", KEYS[0])) == THREADS * CALLS
    assert server.health().errors
