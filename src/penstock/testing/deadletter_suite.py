"""The dead: where they are kept, what is known of them, and how they come back."""

from __future__ import annotations

import pytest

from penstock import InvalidConfig, ManualClock, MessageNotFound, NewMessage, Penstock, Queue, QueueNotFound
from penstock.message import OWNED_HEADER_PREFIX
from penstock.testing.folding import kinds_of, read_events
from penstock.testing.harness import (
    BackendCase,
    ack,
    bury,
    drain,
    errors,
    receipts,
    requires,
    sweep_all,
    take,
    take_one,
)

ORIGIN = OWNED_HEADER_PREFIX + "origin"
REASON = OWNED_HEADER_PREFIX + "reason"
ATTEMPTS = OWNED_HEADER_PREFIX + "attempts"


class DeadLetterSuite(BackendCase):
    """`dead_letter`, `redrive` and `dead_retention_s`."""

    @pytest.fixture
    def dead(self, ps: Penstock) -> Queue:
        return ps.create_queue("dead")

    @pytest.fixture
    def work(self, ps: Penstock, dead: Queue) -> Queue:
        """A queue whose dead messages go to `dead`."""
        return ps.create_queue("work", dead_letter="dead", max_attempts=2)

    def test_a_dying_message_is_ready_in_the_dead_letter_queue(self, work: Queue, dead: Queue) -> None:
        message_id = work.enqueue(b"x", headers={"type": "mail"})
        work.reject([take_one(work).receipt], reason="bad address")
        with pytest.raises(MessageNotFound):
            work.get(message_id)
        m = dead.get(message_id)
        assert (m.state, m.payload, m.queue) == ("ready", b"x", "dead")
        assert m.headers == {"type": "mail", ORIGIN: "work", REASON: "bad address", ATTEMPTS: "1"}
        assert (work.stats().dead, work.length(), dead.length()) == (0, 0, 1)

    def test_a_dead_letter_is_delivered_like_any_other_message(self, work: Queue, dead: Queue) -> None:
        message_id = bury(work, b"x", reason="why")
        delivery = take_one(dead)
        assert (delivery.id, delivery.payload, delivery.attempts) == (message_id, b"x", 1)
        assert (delivery.headers[ORIGIN], delivery.headers[REASON]) == ("work", "why")
        ack(dead, [delivery])
        assert dead.length() == 0

    def test_attempts_that_are_exhausted_lead_to_the_dead_letter_queue(
        self, work: Queue, dead: Queue
    ) -> None:
        message_id = work.enqueue(b"x")
        for reason in ("first", "second"):
            work.nack([take_one(work).receipt], delay_s=0, reason=reason)
        headers = dead.get(message_id).headers
        assert (headers[ATTEMPTS], headers[REASON]) == ("2", "second")

    def test_leases_that_run_out_lead_to_the_dead_letter_queue(
        self, ps: Penstock, work: Queue, dead: Queue, clock: ManualClock
    ) -> None:
        message_id = work.enqueue(b"x")
        for _ in range(2):
            take_one(work)
            clock.advance(30)
        sweep_all(ps)
        headers = dead.get(message_id).headers
        assert headers[ATTEMPTS] == "2"
        assert headers[REASON]

    def test_without_a_dead_letter_queue_a_message_stays_dead_in_its_own(self, q: Queue) -> None:
        message_id = bury(q, b"x", reason="why")
        m = q.get(message_id)
        assert (m.state, m.reason, m.headers) == ("dead", "why", {})

    def test_the_first_origin_is_kept_when_a_dead_letter_dies_again(self, ps: Penstock, work: Queue) -> None:
        ps.create_queue("graveyard")
        ps.update_queue("dead", dead_letter="graveyard")
        message_id = bury(work, reason="one")
        dead = ps.queue("dead")
        dead.reject([take_one(dead).receipt], reason="two")
        headers = ps.queue("graveyard").get(message_id).headers
        assert (headers[ORIGIN], headers[REASON]) == ("work", "two")

    def test_the_dead_letter_queue_must_exist_when_it_is_named(self, ps: Penstock, q: Queue) -> None:
        with pytest.raises(InvalidConfig, match="nowhere"):
            ps.create_queue("new", dead_letter="nowhere")
        with pytest.raises(InvalidConfig, match="nowhere"):
            ps.update_queue("q", dead_letter="nowhere")
        with pytest.raises(InvalidConfig, match="itself"):
            ps.update_queue("q", dead_letter="q")
        assert [settings.name for settings in ps.queues()] == ["q"]
        assert ps.queues()[0].dead_letter is None

    def test_redrive_sends_dead_letters_to_their_origin_as_they_were(self, work: Queue, dead: Queue) -> None:
        message_id = work.enqueue(b"x", headers={"type": "mail"})
        work.reject([take_one(work).receipt])
        assert dead.redrive() == 1
        assert dead.length() == 0
        delivery = take_one(work)
        assert (delivery.id, delivery.payload, delivery.headers) == (message_id, b"x", {"type": "mail"})
        assert delivery.attempts == 1

    def test_redrive_sends_each_dead_letter_to_its_own_origin(
        self, ps: Penstock, work: Queue, dead: Queue
    ) -> None:
        other = ps.create_queue("other-work", dead_letter="dead")
        bury(work, b"work")
        bury(other, b"other")
        assert dead.redrive() == 2
        assert (drain(work), drain(other)) == ([b"work"], [b"other"])

    def test_redrive_to_a_target_sends_them_there(self, ps: Penstock, work: Queue, dead: Queue) -> None:
        target = ps.create_queue("target")
        bury(work, b"x")
        assert dead.redrive(target="target") == 1
        assert (work.length(), dead.length(), drain(target)) == (0, 0, [b"x"])

    def test_redrive_revives_what_is_dead_in_its_own_queue(self, q: Queue) -> None:
        message_id = bury(q, b"x")
        assert q.redrive() == 1
        delivery = take_one(q)
        assert (delivery.id, delivery.payload, delivery.attempts) == (message_id, b"x", 1)
        assert q.stats().dead == 0

    def test_redrive_to_a_target_takes_what_is_dead_in_its_own_queue(self, ps: Penstock, q: Queue) -> None:
        target = ps.create_queue("target")
        bury(q, b"x")
        assert q.redrive(target="target") == 1
        assert (q.stats().dead, drain(target)) == (0, [b"x"])

    def test_redrive_takes_no_more_than_its_limit(self, q: Queue) -> None:
        q.enqueue_many([NewMessage()] * 150)
        q.reject(receipts(take(q, 150)))
        assert q.redrive(limit=7) == 7
        assert q.redrive() == 100
        assert q.redrive() == 43
        assert q.redrive() == 0
        assert q.stats().ready == 150

    def test_redrive_leaves_messages_that_never_died(self, work: Queue, dead: Queue) -> None:
        dead.enqueue(b"ordinary")
        bury(work, b"died")
        assert dead.redrive() == 1
        assert drain(work) == [b"died"]
        bury(work, b"died too")
        assert dead.redrive(target="work") == 1
        assert (drain(dead), drain(work)) == ([b"ordinary"], [b"died too"])

    def test_redrive_finds_dead_letters_behind_many_ordinary_messages(self, work: Queue, dead: Queue) -> None:
        dead.enqueue_many([NewMessage()] * 1100)
        bury(work, b"died")
        assert dead.redrive(limit=1) == 1
        assert (drain(work), dead.length()) == ([b"died"], 1100)

    def test_redrive_moves_more_than_one_step_can_take(self, work: Queue, dead: Queue) -> None:
        work.enqueue_many([NewMessage(b"%d" % n) for n in range(1200)])
        work.reject(receipts(take(work, 1200)))
        assert dead.length() == 1200
        assert dead.redrive(limit=5000) == 1200
        assert sorted(drain(work), key=int) == [b"%d" % n for n in range(1200)]

    def test_redrive_to_a_queue_that_does_not_exist_is_refused(self, q: Queue) -> None:
        bury(q)
        with pytest.raises(QueueNotFound):
            q.redrive(target="nowhere")
        assert q.stats().dead == 1

    def test_dead_letters_whose_origin_is_gone_stay_where_they_are(
        self, ps: Penstock, work: Queue, dead: Queue
    ) -> None:
        bury(work, b"x")
        ps.delete_queue("work")
        assert dead.redrive() == 0
        assert drain(dead) == [b"x"]

    def test_a_dead_letter_that_was_mended_still_goes_to_its_origin(self, work: Queue, dead: Queue) -> None:
        message_id = bury(work, b"broken", reason="why")
        assert errors(dead.upsert([NewMessage(b"mended", {"by": "hand"}, id=message_id)])) == [None]
        assert dead.get(message_id).headers[ORIGIN] == "work"
        assert dead.redrive() == 1
        delivery = take_one(work)
        assert (delivery.payload, delivery.headers) == (b"mended", {"by": "hand"})

    def test_a_dead_letter_that_is_moved_is_an_ordinary_message_of_its_new_queue(
        self, ps: Penstock, work: Queue, dead: Queue
    ) -> None:
        ps.create_queue("graves")
        other = ps.create_queue("other", dead_letter="graves")
        message_id = bury(work, b"x", reason="why")
        assert errors(dead.move([message_id], target="other")) == [None]
        assert other.get(message_id).headers == {}
        assert (other.redrive(), other.length()) == (0, 1)
        other.reject(receipts(take(other)))
        assert ps.queue("graves").get(message_id).headers[ORIGIN] == "other"
        assert ps.queue("graves").redrive() == 1
        assert (other.length(), work.length()) == (1, 0)

    def test_a_redriven_message_can_die_again(self, work: Queue, dead: Queue) -> None:
        message_id = bury(work, b"x", reason="one")
        dead.redrive()
        work.reject([take_one(work).receipt], reason="two")
        assert dead.get(message_id).headers[REASON] == "two"

    @requires("journal")
    def test_a_message_dies_twice_though_a_cursor_still_holds_its_first_death(
        self, work: Queue, dead: Queue
    ) -> None:
        dead.cursor("archive", required=True)
        message_id = bury(work, b"x")
        assert dead.redrive() == 1
        work.reject([take_one(work).receipt])
        assert (work.stats().dead, dead.length()) == (0, 1)
        assert dead.get(message_id).payload == b"x"

    def test_of_two_messages_with_one_id_that_die_together_one_stays_at_home(
        self, ps: Penstock, dead: Queue, clock: ManualClock
    ) -> None:
        homes = [ps.create_queue(name, dead_letter="dead", max_attempts=1) for name in ("a", "b")]
        for home in homes:
            home.enqueue(home.name.encode(), id="0191f2a0-0000-7000-8000-00000000abcd")
            take_one(home, lease_s=1)
        clock.advance(1)
        sweep_all(ps)
        assert (dead.stats().ready, [home.length() for home in homes]) == (1, [0, 0])
        kept = [*dead.iter("ready"), *(message for home in homes for message in home.iter("dead"))]
        assert sorted(message.payload for message in kept) == [b"a", b"b"]

    @requires("journal")
    def test_both_journals_name_the_other_queue(self, work: Queue, dead: Queue) -> None:
        message_id = bury(work, reason="why")
        dead.redrive()
        assert kinds_of(work, message_id) == ["enqueued", "leased", "dead", "enqueued"]
        assert kinds_of(dead, message_id) == ["enqueued", "redriven"]
        died, back = read_events(work)[2:]
        assert (died.extra, died.reason, back.extra) == ("dead", "why", "dead")
        assert [event.extra for event in read_events(dead)] == ["work", "work"]

    def test_the_dead_stay_until_someone_does_something(
        self, ps: Penstock, q: Queue, clock: ManualClock
    ) -> None:
        message_id = bury(q)
        clock.advance(10 * 365 * 86_400)
        sweep_all(ps)
        assert q.get(message_id).state == "dead"

    def test_the_dead_are_removed_when_their_own_retention_is_over(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = ps.create_queue("kept", dead_retention_s=60)
        message_id = bury(q)
        clock.advance(59)
        sweep_all(ps)
        assert q.get(message_id).state == "dead"
        clock.advance(1)
        sweep_all(ps)
        assert (q.stats().dead, ps.due()) == (0, [])
        with pytest.raises(MessageNotFound):
            q.get(message_id)

    @requires("time_to_live")
    def test_a_dead_message_does_not_expire(
        self, ps: Penstock, work: Queue, q: Queue, clock: ManualClock
    ) -> None:
        for queue in (work, q):
            queue.enqueue(b"x", ttl_s=10)
            queue.reject([take_one(queue).receipt])
        clock.advance(100)
        sweep_all(ps)
        assert (ps.queue("dead").length(), q.stats().dead) == (1, 1)
        assert (ps.queue("dead").redrive(), q.redrive()) == (1, 1)
        assert (drain(work), drain(q)) == ([b"x"], [b"x"])
