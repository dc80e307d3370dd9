"""Compression: done, or refused when the queue is made; payloads come back as they were given."""

from __future__ import annotations

import random

import pytest

from penstock import InvalidConfig, NewMessage, Penstock, Queue, Unsupported
from penstock.testing.harness import (
    BackendCase,
    Subject,
    drain,
    errors,
    ids,
    payloads,
    receipts,
    requires,
    take,
)

OVER_BYTES = 100
NOISE = random.Random(7).randbytes(5000)
#: Empty, short, at the limit, over it, long, and what does not become smaller.
GIVEN = [b"", b"x", b"x" * OVER_BYTES, b"x" * (OVER_BYTES + 1), bytes(range(256)) * 400, NOISE]


class CompressionSuite(BackendCase):
    """`compress_over_bytes`"""

    @pytest.fixture
    def small(self, ps: Penstock) -> Queue:
        """A queue that compresses."""
        try:
            return ps.create_queue("small", compress_over_bytes=OVER_BYTES)
        except (InvalidConfig, Unsupported):
            assert "small" not in [settings.name for settings in ps.queues()]
            pytest.skip("this backend refuses compress_over_bytes")

    def test_a_compressed_payload_is_delivered_as_it_was_given(self, small: Queue) -> None:
        small.enqueue_many([NewMessage(payload, headers={"n": "v"}) for payload in GIVEN])
        assert drain(small) == GIVEN

    def test_a_compressed_payload_is_looked_at_as_it_was_given(self, small: Queue) -> None:
        added = ids(small.enqueue_many([NewMessage(payload) for payload in GIVEN]))
        assert payloads(small.get(message_id) for message_id in added) == GIVEN
        assert payloads(small.peek(10)) == GIVEN
        assert payloads(small.list("ready").items) == GIVEN

    def test_a_compressed_payload_survives_retries_and_reopening(
        self, small: Queue, subject: Subject
    ) -> None:
        small.enqueue_many([NewMessage(payload) for payload in GIVEN])
        small.nack(receipts(take(small, len(GIVEN))), delay_s=0)
        if subject.capabilities.persistence:
            small = subject.reopen().queue("small")
        assert sorted(drain(small)) == sorted(GIVEN)

    @requires("delay")
    def test_a_delayed_payload_is_compressed_too(self, small: Queue, subject: Subject) -> None:
        small.enqueue_many([NewMessage(payload, delay_s=5) for payload in GIVEN])
        subject.clock.advance(5)
        assert sorted(drain(small)) == sorted(GIVEN)

    def test_an_upsert_replaces_a_compressed_payload(self, small: Queue) -> None:
        (message_id,) = ids(small.upsert([NewMessage(b"a" * 1000)]))
        for payload in (*GIVEN, b"b" * 1000):
            assert errors(small.upsert([NewMessage(payload, id=message_id)])) == [None]
            assert small.get(message_id).payload == payload
        assert drain(small) == [b"b" * 1000]

    def test_a_compressed_payload_moves_to_queues_that_compress_otherwise(
        self, ps: Penstock, small: Queue
    ) -> None:
        plain = ps.create_queue("plain")
        every = ps.create_queue("every", compress_over_bytes=0)
        added = ids(small.enqueue_many([NewMessage(payload) for payload in GIVEN]))
        for source, target in ((small, plain), (plain, every), (every, small)):
            assert errors(source.move(added, target.name)) == [None] * len(added)
            assert payloads(target.get(message_id) for message_id in added) == GIVEN
        assert sorted(drain(small)) == sorted(GIVEN)

    def test_a_compressed_payload_goes_through_a_dead_letter_queue_and_back(
        self, ps: Penstock, small: Queue
    ) -> None:
        ps.create_queue("dead", compress_over_bytes=0)
        ps.update_queue("small", dead_letter="dead")
        small.enqueue_many([NewMessage(payload, headers={"n": "v"}) for payload in GIVEN])
        small.reject(receipts(take(small, len(GIVEN))), reason="r" * 200)
        assert sorted(payloads(ps.queue("dead").peek(10))) == sorted(GIVEN)
        assert ps.queue("dead").redrive() == len(GIVEN)
        assert sorted(drain(small)) == sorted(GIVEN)

    def test_what_is_there_stays_readable_when_the_setting_changes(self, ps: Penstock, small: Queue) -> None:
        for over_bytes in (OVER_BYTES, None, 0, 10**6):
            ps.update_queue("small", compress_over_bytes=over_bytes)
            small.enqueue_many([NewMessage(payload) for payload in GIVEN])
        assert drain(small) == GIVEN * 4
