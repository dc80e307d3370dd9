"""Streams for users who may do little, and streams that are sealed, whose keys are changed."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import NewMessage
from penstock.codec.sealed import key_id_of
from penstock.testing.group_suite import worked
from penstock.testing.harness import receipts
from tests.encryption.stores import ALL_KEYS, Keys
from tests.redis.one_server import flavours, started
from tests.redis.stores import Place

#: As docs/backends.md has it, with the layout of streams.
RULES = (
    "on >secret ~shop-pss1:* resetchannels &shop-pss1:* +@read +@write +@connection +eval +evalsha +publish "
    "+subscribe +unsubscribe +time +info +config|get"
)


@pytest.mark.parametrize("flavour", flavours())
def test_a_user_with_the_documented_rights_does_everything(tmp_path: Path, flavour: str) -> None:
    server = started(tmp_path, flavour)
    try:
        server.do("ACL", "SETUSER", "worker", *RULES.split())
        url = f"{server.binary.flavour}+streams://worker:secret@{server.address}/0?key_prefix=shop-"
        with penstock.open(url) as ps:
            q = ps.create_queue("q")
            for name in ("a", "b"):
                q.create_group(name)
            q.enqueue_many([NewMessage(b"%d" % n) for n in range(10)])
            q.nack(receipts(q.lease(3, group="a", consumer="c")), delay_s=0)
            for name in ("a", "b"):
                assert len(worked(q, name)) == 10
            q.drop_group("b")
            while ps.sweep():
                pass
            assert ps.check(repair=True).ok
            assert ps.reindex().ok
            assert ps.health().status == "healthy", ps.health()
    finally:
        server.kill()


def test_bodies_of_a_stream_are_sealed_in_all_groups_and_keep_their_key_until_they_are_gone() -> None:
    place = Place("streams")
    try:
        ps = place.sealed(ALL_KEYS)
        q = ps.create_queue("q")
        q.create_group("a")
        q.enqueue_many([NewMessage(b"secret")] * 3)
        q.create_group("b")
        q.nack(receipts(q.lease(1, group="b")), delay_s=0, reason="why")

        def keys() -> list[str | None]:
            return [key_id_of(fields[b"b"]) for _, fields in place.client.xrange(place.key("q", "m"))]

        assert keys() == ["main"] * 3
        newer = place.sealed(ALL_KEYS, "new")
        newer.rekey()
        again = newer.queue("q")
        again.enqueue(b"secret")
        assert keys() == ["main"] * 3 + ["new"], "entries are never rewritten"
        assert (worked(again, "a"), worked(again, "b")) == ([b"secret"] * 4, [b"secret"] * 4)
        assert newer.check().ok
        again.enqueue(b"last")
        newer.rekey()
        place.sealed(Keys("new"), "new")  # What is listed now needs no other.
        assert worked(again, "a") == [b"last"]
    finally:
        place.close()
