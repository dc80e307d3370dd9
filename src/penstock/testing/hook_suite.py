"""Scripts of queues: what they may change and decide, and that nothing is half done when they fail."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import (
    BackendNotInstalled,
    HookError,
    InvalidConfig,
    InvalidMessage,
    ManualClock,
    NewMessage,
    Penstock,
    Queue,
    Unsupported,
)
from penstock.testing.folding import kinds_of
from penstock.testing.harness import (
    BackendCase,
    Subject,
    drain,
    errors,
    ids,
    payloads,
    receipts,
    requires,
    sweep_all,
    take,
    take_one,
)

TENANTS = """
function on_enqueue(message)
  local tenant = message.headers.tenant
  if not tenant then return "refuse", "no tenant" end
  message.fairness_key = tenant
  message.weight = tonumber(message.headers.weight)
  if message.headers.urgent then message.priority = 9 end
  if message.headers.later then message.delay_s = 60 end
  message.headers.urgent = nil
  message.headers.seen = "yes"
end
"""

DECIDES = """
function on_failure(message, failure)
  local verdict = message.headers.verdict
  if verdict == "retry" then return "retry", tonumber(message.headers.delay) end
  if verdict == "loop" then while true do end end
  if verdict == "say" then
    local said = {failure.kind, failure.reason, failure.consumer, message.attempts, failure.delay_s or "none",
      failure.last and "last" or "more", message.queue, message.payload, message.fairness_key}
    return "dead_letter", table.concat(said, " ")
  end
  return verdict, "so says the script"
end
"""


def hooked(ps: Penstock, name: str = "hooked", **settings: Any) -> Queue:
    """A queue with scripts; a backend that has none refuses it, naming the setting."""
    try:
        return ps.create_queue(name, **settings)
    except (Unsupported, BackendNotInstalled) as error:
        pytest.skip(str(error))


def asking(verdict: str, **headers: str) -> NewMessage:
    return NewMessage(verdict.encode(), {"verdict": verdict, **headers})


class HookSuite(BackendCase):
    """`on_enqueue` and `on_failure`."""

    # -- on_enqueue

    @requires("fairness", "prioritization", "delay")
    def test_a_script_sets_what_it_may_of_a_new_message(self, ps: Penstock) -> None:
        q = hooked(ps, on_enqueue=TENANTS)
        headers = {"tenant": "acme", "weight": "3", "urgent": "1", "later": "1"}
        message = q.get(q.enqueue(b"x", headers=headers))
        assert (message.fairness_key, message.weight, message.priority) == ("acme", 3, 9)
        assert message.headers == {"tenant": "acme", "weight": "3", "later": "1", "seen": "yes"}
        assert (message.state, message.visible_at_ns - message.enqueued_at_ns) == ("delayed", 60 * 10**9)
        assert message.payload == b"x"

    @requires("fairness")
    def test_what_a_script_leaves_alone_stays_as_it_was_given(self, ps: Penstock) -> None:
        q = hooked(ps, on_enqueue="function on_enqueue(message) local all = message.headers end")
        given = NewMessage(b"x", {"a": "1"}, "key", 7, dedup_id="d")
        (result,) = q.enqueue_many([given])
        message = q.get(ids([result])[0])
        assert (message.headers, message.fairness_key, message.weight) == ({"a": "1"}, "key", 7)
        assert given == NewMessage(b"x", {"a": "1"}, "key", 7, dedup_id="d")

    @requires("fairness")
    def test_a_refused_message_is_answered_by_itself_and_its_neighbours_are_stored(
        self, ps: Penstock
    ) -> None:
        q = hooked(ps, on_enqueue=TENANTS)
        results = q.enqueue_many(
            [NewMessage(headers={"tenant": "a"}), NewMessage(), NewMessage(headers={"tenant": "b"})]
        )
        assert errors(results) == [None, "InvalidMessage", None]
        assert "refuses the message: no tenant" in str(results[1].error)
        assert [message.fairness_key for message in q.peek(10)] == ["a", "b"]

    @requires("fairness")
    def test_a_message_that_is_not_valid_is_refused_as_without_a_script(self, ps: Penstock) -> None:
        q = hooked(ps, on_enqueue="function on_enqueue(message) message.fairness_key = 'k' end")
        wrong: list[Any] = [NewMessage(weight=0), NewMessage(payload="text"), "no message"]  # type: ignore[arg-type]
        wrong += [NewMessage(weight=70_000), NewMessage(headers={"a": 1}), NewMessage(priority=-1)]  # type: ignore[dict-item]
        assert errors(q.enqueue_many([*wrong, NewMessage()])) == ["InvalidMessage"] * 6 + [None]

    @requires("fairness")
    def test_what_a_script_sets_is_checked_like_what_a_user_sets(self, ps: Penstock) -> None:
        q = hooked(ps, on_enqueue="function on_enqueue(message) message.weight = 5000 end")
        with pytest.raises(HookError, match="on_enqueue: weight is 5000; accepted"):
            q.enqueue(b"")
        assert q.length() == 0

    def test_an_error_names_the_queue_the_script_and_the_line(self, ps: Penstock) -> None:
        q = hooked(ps, on_enqueue="function on_enqueue(message)\n  local x = nil\n  return x.y\nend")
        with pytest.raises(HookError, match=r"queue 'hooked': on_enqueue:3: attempt to index a nil value"):
            q.enqueue(b"")

    def test_a_script_reads_the_state_but_nothing_it_sets_lasts(self, ps: Penstock) -> None:
        q = hooked(
            ps,
            on_enqueue="seen = (seen or 0) + 1\n"
            "function on_enqueue(message)\n"
            "  message.headers.value = penstock.get('limit') or 'none'\n"
            "  message.headers.seen = tostring(seen)\n"
            "end",
        )
        q.enqueue(b"1")
        ps.state.put("limit", b"5")
        q.enqueue(b"2")
        assert [message.headers["value"] for message in q.peek(10)] == ["none", "5"]
        assert [message.headers["seen"] for message in q.peek(10)] == ["1", "1"]

    @requires("idempotent_enqueue")
    def test_a_repeated_dedup_id_is_still_the_first_message(self, ps: Penstock) -> None:
        q = hooked(ps, on_enqueue="function on_enqueue(message) message.headers.x = message.dedup_id end")
        first = q.enqueue(b"1", dedup_id="d")
        assert q.enqueue(b"2", dedup_id="d") == first
        assert [message.headers for message in q.peek(10)] == [{"x": "d"}]

    def test_upsert_is_seen_by_the_script_too(self, ps: Penstock) -> None:
        q = hooked(
            ps,
            on_enqueue="function on_enqueue(message)\n"
            "  if message.payload == 'bad' then return 'refuse', 'bad' end\n"
            "  message.headers.seen = message.payload\n"
            "end",
        )
        (created,) = ids(q.upsert([NewMessage(b"one")]))
        assert errors(q.upsert([NewMessage(b"two", id=created), NewMessage(b"bad", id=created)])) == [
            None,
            "InvalidMessage",
        ]
        assert (q.get(created).payload, q.get(created).headers) == (b"two", {"seen": "two"})

    def test_a_large_payload_is_stored_though_scripts_see_its_size_alone(self, ps: Penstock) -> None:
        q = hooked(
            ps,
            on_enqueue="function on_enqueue(message)\n"
            "  message.headers.size = tostring(message.size_bytes)\n"
            "  message.headers.whole = tostring(message.payload ~= nil)\n"
            "end",
        )
        large = bytes(100_000)
        q.enqueue_many([NewMessage(b"x" * 65_536), NewMessage(large)])
        small, big = q.peek(10)
        assert (small.headers, big.headers) == (
            {"size": "65536", "whole": "true"},
            {"size": "100000", "whole": "false"},
        )
        assert big.payload == large

    def test_a_batch_keeps_its_order_and_the_culprit_alone_is_stopped(self, ps: Penstock) -> None:
        q = hooked(
            ps,
            on_enqueue="function on_enqueue(message)\n"
            "  if message.payload == '77' then string.find(string.rep('a', 30000), '.-.-.-.-.-b') end\n"
            "  if message.payload == '177' then while true do end end\n"
            "  message.headers.seen = message.payload\n"
            "end",
        )
        results = q.enqueue_many([NewMessage(str(n).encode()) for n in range(250)])
        assert [n for n, result in enumerate(results) if not result.ok] == [77, 177]
        assert errors([results[77], results[177]]) == ["HookError", "HookError"]
        assert drain(q) == [str(n).encode() for n in range(250) if n not in (77, 177)]

    @requires("fifo", "delay")
    def test_a_fifo_queue_refuses_a_delay_from_a_script_too(self, ps: Penstock) -> None:
        q = hooked(ps, fifo=True, on_enqueue="function on_enqueue(message) message.delay_s = 5 end")
        with pytest.raises(InvalidMessage, match="fifo"):
            q.enqueue(b"")

    @requires("throttling", "fairness")
    def test_a_script_throttles_what_came_without_a_key(self, ps: Penstock, clock: ManualClock) -> None:
        q = hooked(
            ps,
            on_enqueue="function on_enqueue(message)\n"
            "  if message.headers.api then message.throttle_keys = {message.headers.api} end\n"
            "end",
        )
        ps.throttles.set("mail", rate_per_s=1, burst=1)
        q.enqueue_many([NewMessage(b"slow", {"api": "mail"})] * 3 + [NewMessage(b"fast")] * 2)
        assert sorted(payloads(q.lease(10))) == [b"fast", b"fast", b"slow"]
        clock.advance(1)
        assert payloads(q.lease(10)) == [b"slow"]

    # -- on_failure

    @requires("delay", "journal")
    def test_a_nack_is_retried_killed_or_dropped_as_the_script_says(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = hooked(ps, on_failure=DECIDES)
        kinds = [asking("retry", delay="30"), asking("dead_letter"), asking("drop"), NewMessage(b"none")]
        known = dict(zip(["retry", "dead", "drop", "none"], ids(q.enqueue_many(kinds)), strict=True))
        assert errors(q.nack(receipts(take(q, 4)), reason="why")) == [None] * 4
        assert q.get(known["retry"]).visible_at_ns == clock.now_ns() + 30 * 10**9
        assert (q.get(known["dead"]).state, q.get(known["dead"]).reason) == ("dead", "so says the script")
        assert kinds_of(q, known["drop"]) == ["enqueued", "leased", "dropped"]
        assert q.get(known["none"]).state == "ready"
        stats = q.stats()
        assert (stats.delayed, stats.ready, stats.dead, stats.leased, stats.failed_total) == (1, 1, 1, 0, 4)
        (dropped,) = [event for event in q.events() if event.kind == "dropped"]
        assert (dropped.reason, dropped.attempt) == ("so says the script", 1)

    @requires("delay")
    def test_a_script_is_told_what_failed_and_how(self, ps: Penstock) -> None:
        q = hooked(ps, on_failure=DECIDES, max_attempts=2)
        message_id = q.enqueue(b"say", headers={"verdict": "say"})
        q.nack([take_one(q, consumer="w").receipt], delay_s=7, reason="broke")
        assert q.get(message_id).reason == "nack broke w 1 7.0 more hooked say "

    @requires("delay")
    def test_the_end_of_a_lease_is_a_failure_that_the_script_decides_about(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = hooked(ps, on_failure=DECIDES, lease_s=10)
        known = ids(q.enqueue_many([asking("retry", delay="30"), asking("drop"), asking("say")]))
        take(q, 3, consumer="w")
        clock.advance(10)
        assert q.lease(10) == []
        assert (q.get(known[0]).state, q.get(known[0]).visible_at_ns) == (
            "delayed",
            clock.now_ns() + 30 * 10**9,
        )
        assert q.get(known[2]).reason == "lease_expired  w 1 none more hooked say "
        assert q.stats().failed_total == 3
        clock.advance(30)
        assert payloads(take(q, 1)) == [b"retry"]

    def test_a_lease_that_ended_is_delivered_again_by_the_same_call(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = hooked(ps, on_failure=DECIDES, lease_s=10)
        plain = ps.create_queue("plain", lease_s=10)
        for each in (q, plain):
            each.enqueue_many([NewMessage(b"%d" % n) for n in range(3)])
            take(each, 3)
        clock.advance(10)
        assert sorted(payloads(take(q, 3))) == [b"0", b"1", b"2"]
        assert sorted(payloads(take(plain, 3))) == [b"0", b"1", b"2"]

    def test_sweeping_ends_leases_with_the_script_as_leasing_does(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = hooked(ps, on_failure=DECIDES, lease_s=10)
        q.enqueue_many([asking("drop"), asking("dead_letter"), NewMessage()])
        take(q, 3)
        clock.advance(10)
        sweep_all(ps)
        stats = q.stats()
        assert (stats.leased, stats.ready, stats.dead, stats.failed_total) == (0, 1, 1, 3)

    def test_no_script_lifts_the_limit_on_attempts(self, ps: Penstock) -> None:
        q = hooked(ps, on_failure="function on_failure() return 'retry', 0 end", max_attempts=2)
        message_id = q.enqueue(b"")
        for state in ("ready", "dead"):
            q.nack([take_one(q).receipt], reason="again")
            assert q.get(message_id).state == state

    def test_a_rejected_message_is_dead_or_dropped_but_never_retried(self, ps: Penstock) -> None:
        q = hooked(ps, on_failure=DECIDES)
        retried, dropped = ids(q.enqueue_many([asking("retry", delay="0"), asking("drop")]))
        assert errors(q.reject(receipts(take(q, 2)), reason="bad")) == [None, None]
        assert (q.get(retried).state, q.get(retried).reason) == ("dead", "bad")
        assert q.length() == 0
        assert dropped not in [message.id for message in q.iter()]

    def test_a_script_that_fails_leaves_it_to_the_queues_settings(self, ps: Penstock) -> None:
        q = hooked(ps, on_failure=DECIDES, max_attempts=2)
        message_id = q.enqueue(b"", headers={"verdict": "nonsense"})
        for state in ("ready", "dead"):
            q.nack([take_one(q).receipt], reason="why")
            assert q.get(message_id).state == state
        assert q.get(message_id).reason == "why"

    def test_a_receipt_that_is_over_is_stale_whatever_a_script_says(
        self, ps: Penstock, clock: ManualClock
    ) -> None:
        q = hooked(ps, on_failure=DECIDES, lease_s=10)
        q.enqueue_many([asking("drop"), NewMessage(b"x")])
        first, second = take(q, 2)
        assert errors(q.ack([first.receipt])) == [None]
        assert errors(q.nack([first.receipt, second.receipt, second.receipt, "x"])) == [
            "StaleReceipt",
            None,
            "StaleReceipt",
            "StaleReceipt",
        ]

    @requires("fifo")
    def test_a_dropped_message_unblocks_its_key(self, ps: Penstock) -> None:
        q = hooked(ps, fifo=True, on_failure=DECIDES)
        q.enqueue_many([asking("drop"), NewMessage(b"next")])
        q.nack([take_one(q).receipt])
        assert payloads(take(q, 1)) == [b"next"]

    def test_a_dead_letter_queue_gets_what_a_script_kills(self, ps: Penstock) -> None:
        dead = ps.create_queue("dead")
        q = hooked(ps, on_failure=DECIDES, dead_letter="dead")
        q.enqueue_many([asking("dead_letter")])
        q.nack([take_one(q).receipt])
        (message,) = dead.peek(10)
        assert message.headers["penstock-reason"] == "so says the script"

    # -- setting them

    @pytest.mark.parametrize("hook", ["on_enqueue", "on_failure"])
    @pytest.mark.parametrize(
        ("script", "said"),
        [
            ("x = = 1", r":1: unexpected symbol"),
            ("function {hook}()\n  if\nend", r":3: unexpected symbol"),
            ("function other() end", r"no global function {hook} is defined"),
            ("local function {hook}() end", r"no global function {hook} is defined"),
            ("{hook} = 5", r"no global function {hook} is defined"),
            ("function {hook}() end\nerror('at once')", r":2: at once"),
            ("\nwhile true do end", r":2: stopped after"),
            ("\x1bLua", r"unexpected symbol"),
            ("", r"no global function {hook} is defined"),
            ("-- " + "x" * 70_000, r"accepted: up to 65536"),
        ],
    )
    def test_a_script_that_cannot_be_used_is_refused_when_it_is_set(
        self, ps: Penstock, hook: str, script: str, said: str
    ) -> None:
        hooked(ps, "good", **{hook: f"function {hook}() end"})
        before = ps.queues()
        settings: dict[str, Any] = {hook: script.replace("{hook}", hook)}
        for act in (
            lambda: ps.create_queue("bad", **settings),
            lambda: ps.update_queue("good", **settings),
            lambda: ps.replace_queues(["other", {"name": "good", **settings}]),
        ):
            with pytest.raises(InvalidConfig, match=hook + ".*" + said.replace("{hook}", hook)):
                act()
            assert ps.queues() == before

    def test_a_changed_script_counts_from_the_next_message_on(self, subject: Subject) -> None:
        q = hooked(subject.ps, on_enqueue="function on_enqueue(message) message.headers.by = 'first' end")
        q.enqueue(b"")
        subject.ps.update_queue("hooked", on_enqueue="function on_enqueue(m) m.headers.by = 'second' end")
        q.enqueue(b"")
        subject.ps.update_queue("hooked", on_enqueue=None)
        q.enqueue(b"")
        assert [message.headers.get("by") for message in q.peek(10)] == ["first", "second", None]

    @requires("persistence")
    def test_scripts_are_there_after_reopening(self, subject: Subject) -> None:
        hooked(subject.ps, on_enqueue=TENANTS)
        q = subject.reopen().queue("hooked")
        with pytest.raises(InvalidMessage, match="no tenant"):
            q.enqueue(b"")
