"""Another list of keys while a change that spans queues of a cluster is under way: the rest is sealed so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import Penstock
from penstock.backends.redis.engine import Engine
from penstock.backends.redis.renewing import Renewing
from penstock.backends.redis.resealing import reason_of
from penstock.backends.redis.seals import Seals
from penstock.codec.sealed import key_id_of
from penstock.settings import EncryptionSettings
from tests.encryption.stores import ALL_KEYS
from tests.redis.interrupting import after
from tests.redis.one_cluster import Place

pytestmark = pytest.mark.xdist_group("redis-lists-cluster")

REASON = "a reason that is secret"


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


@pytest.fixture
def ps(place: Place) -> Iterator[Penstock]:
    """A plain store that follows whatever list of keys it gets."""
    with penstock.open(place.url, clock=place.clock, keys=ALL_KEYS) as ps:
        yield ps


def engine_of(ps: Penstock) -> Engine:
    backend: Any = ps._default
    engine: Engine = backend._engine
    return engine


def bring_key(engine: Engine) -> None:
    """As another process does that opens the store with a key, before it tells anybody."""
    Seals(engine.server, engine.keys, EncryptionSettings(enabled=True), ALL_KEYS, "elsewhere")


def test_a_transfer_under_way_ends_with_its_reason_sealed(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(ps)
    ps.create_queue("dead")
    q = ps.create_queue("q", dead_letter="dead")
    q.enqueue(b"x")
    after(monkeypatch, ps, "arrive", 1, lambda: bring_key(engine))
    assert q.reject([one.receipt for one in q.lease(1)], reason=REASON)[0].ok
    frames = engine.server.command("XRANGE", engine.keys.queue("q")[13], "-", "+")
    assert REASON.encode() not in repr(frames).encode()
    assert [e.reason for e in q.events() if e.kind == "dead"] == [REASON]


def test_a_plan_is_not_written_down_with_rows_that_are_sealed_otherwise(
    ps: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(ps)
    run, seen = engine.server.run, list[str]()

    def interrupted(script: Any, *args: Any, **more: Any) -> Any:
        if script.name == "plan":
            seen.append(script.name)
            if len(seen) == 1:
                bring_key(engine)
        return run(script, *args, **more)

    monkeypatch.setattr(engine.server, "run", interrupted)
    ps.create_queue("q", annotations={"note": REASON})
    assert len(seen) == 2
    assert key_id_of(engine.server.command("HGET", engine.keys.queues, "q")) == "main"


def test_the_reason_of_a_message_on_its_way_is_renewed(ps: Penstock) -> None:
    engine = engine_of(ps)
    q = engine.load(ps.create_queue("q").name)
    assert q is not None
    bring_key(engine)
    engine.seals.look()
    text = REASON.encode()
    was = b"\x05" + bytes(70) + bytes(4) + len(text).to_bytes(4, "big") + text
    on_its_way, raw_id = b"\x07" + b"t" * 16, b"i" * 16
    renewing = Renewing(engine)
    renewed = renewing.record(q, raw_id, on_its_way + was)
    assert renewed.startswith(on_its_way + was[:75])
    sealed = reason_of(renewed[17:])
    assert sealed is not None
    assert text not in sealed
    assert engine.opened_reason(q, raw_id, sealed) == REASON
    assert renewing.record(q, raw_id, renewed) is renewed
    assert not renewing.unreadable
