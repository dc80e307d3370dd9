"""Transfers on a cluster with `min_replicas`: no step begins before replicas have the one before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from penstock import NewMessage, Penstock, Queue
from penstock.backends.redis.calling import Sender
from penstock.config import from_url
from penstock.testing.harness import ids, sweep_all
from tests.redis.interrupting import server_of
from tests.redis.one_cluster import Place, shared
from tests.redis.servers import RunningServer
from tests.redis.test_cluster_load import slot_of
from tests.redis.test_cluster_steps import FORSAKEN_S, die

pytestmark = pytest.mark.xdist_group("redis-lists-cluster")


@pytest.fixture(
    params=[
        ("lists", "redis"),
        pytest.param(("streams", "redis"), marks=pytest.mark.soak),
        pytest.param(("lists", "valkey"), marks=pytest.mark.soak),
    ],
    ids="-".join,
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    kind, flavour = request.param
    place = Place(kind, shared(flavour))
    yield place
    place.close()


def replica_of(place: Place, queue: str) -> RunningServer:
    return place.cluster.replicas[min(slot_of(queue) * 3 // 16384, 2)]


def be_careful(ps: Penstock, place: Place) -> None:
    server = server_of(ps)
    url = f"{place.url}&min_replicas=1&replica_timeout=50ms"
    server.settings = server._sender._settings = from_url(url).default  # type: ignore[assignment]


def held_by(q: Queue) -> Counter[str]:
    return Counter(message.id for message in q.iter())


@pytest.mark.parametrize(("step", "lagging"), [("depart", "work"), ("arrive", "spare")])
def test_who_goes_on_with_a_transfer_waits_for_replicas_to_have_what_was_done_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str, lagging: str
) -> None:
    """Else a master that is replaced brings back what has arrived, or never had what was removed."""
    ps = place.open()
    work, spare = ps.create_queue("work"), ps.create_queue("spare")
    work.enqueue_many([NewMessage(b"%d" % n) for n in range(7)])
    found = Counter(ids(work.iter()))
    replica = replica_of(place, lagging)
    replica.pause()
    try:
        die(place, "move", step)
        be_careful(ps, place)
        server_of(ps)._sender._renew()  # Connections that have written nothing.
        monkeypatch.setattr(Sender, "_wait", lambda self, attempts: None)
        place.clock.advance(FORSAKEN_S)
        ps.sweep()
        assert held_by(spare) == (Counter() if step == "depart" else found)
        assert work.length() == len(found), "they are still what the source has"
    finally:
        replica.resume()
    monkeypatch.undo()
    sweep_all(ps)
    assert (held_by(work), held_by(spare)) == (Counter(), found)
    assert ps.check().ok
