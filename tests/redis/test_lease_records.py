"""What a lease writes of each message, whatever it shares with the one before it, and into what sets."""

import pytest

import penstock
from penstock import NewMessage
from penstock.testing.harness import take
from tests.redis.one_server import shared
from tests.redis.stores import Place


@pytest.mark.parametrize("consumer", ["", "worker-1"])
@pytest.mark.parametrize("kind", ["lists", "streams"])
def test_messages_that_came_apart_are_leased_together_each_as_it_is(kind: str, consumer: str) -> None:
    """Alone and in batches, with a time to live or without, tried before or not, beyond a multiple of 256."""
    with penstock.open(shared().url(kind, query=f"?key_prefix=records-{consumer}-")) as ps:
        q = ps.create_queue("mixed", retry={"delay_s": 0.0})
        sent: dict[str, tuple[bytes, bool]] = {}
        for batch in (1, 1, 40, 1, 300, 2):
            news = [
                NewMessage(b"%d-%d" % (len(sent), n), ttl_s=3600.0 if n % 3 == 1 else None)
                for n in range(batch)
            ]
            for new, result in zip(news, q.enqueue_many(news), strict=True):
                assert result.id is not None
                sent[result.id] = (new.payload, new.ttl_s is not None)
        first = q.lease(7, consumer=consumer)
        q.nack([delivery.receipt for delivery in first], delay_s=0)

        leased = q.lease(1000, lease_s=600, consumer=consumer)

        tried = {delivery.id for delivery in first}
        assert {delivery.id for delivery in leased} == set(sent)
        for delivery in leased:
            message = q.get(delivery.id)
            assert message is not None
            assert (message.payload, message.expires_at_ns is not None) == sent[delivery.id]
            assert delivery.attempts == message.attempts == (2 if delivery.id in tried else 1)
            assert (delivery.enqueued_at_ns, delivery.expires_at_ns) == (
                message.enqueued_at_ns,
                message.expires_at_ns,
            )
            assert (message.consumer, message.lease_expires_at_ns) == (consumer, delivery.lease_expires_at_ns)
        assert not ps.check().problems
        assert all(outcome.ok for outcome in q.ack([delivery.receipt for delivery in leased]))
        ps.delete_queue("mixed")


def test_a_batch_fills_sets_as_trees_and_with_its_messages_alone(place: Place) -> None:
    """As lists, which servers keep small sets as, each message would be looked for among all others."""
    q = place.open().create_queue("q")
    q.enqueue_many([NewMessage(fairness_key=f"k{n}") for n in range(100)])
    kept = {part: _members(place, part) for part in ("z", "o", "f5")}
    assert len(take(q, 100)) == 100
    kept["l"] = _members(place, "l")
    assert kept == dict.fromkeys(("z", "o", "f5", "l"), (100, b"skiplist"))


def _members(place: Place, part: str) -> tuple[int, bytes]:
    key = place.key("q", part)
    return place.client.zcard(key), place.client.object("encoding", key)
