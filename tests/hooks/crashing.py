"""A process that is to be killed: it works on a queue with both scripts, and says what is done."""

from __future__ import annotations

import sys

import penstock
from penstock import NewMessage

ON_ENQUEUE = """
function on_enqueue(message)
  local n = tonumber(message.payload)
  if n % 7 == 0 then return "refuse", "seven" end
  message.fairness_key = "k" .. n % 5
end
"""
ON_FAILURE = """
function on_failure(message, failure)
  local n = tonumber(message.payload)
  if n % 3 == 0 then return "drop", "three" end
  if n % 3 == 1 then return "dead_letter", "one" end
  if failure.kind == "lease_expired" then return "retry", 0.001 end
end
"""


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(folder: str) -> None:
    with penstock.open(folder) as ps:
        if not ps.queues():
            ps.create_queue("q", on_enqueue=ON_ENQUEUE, on_failure=ON_FAILURE, lease_s=0.005, max_attempts=3)
        q = ps.queue("q")
        helper = ps._default._hooking.scripts.pool  # type: ignore[attr-defined]
        first = q.stats().enqueued_total * 2
        for start in range(first, first + 1_000_000, 20):
            numbers = range(start, start + 20)
            results = q.enqueue_many([NewMessage(b"%d" % n) for n in numbers])
            stored = [n for n, result in zip(numbers, results, strict=True) if result.ok]
            say("stored", helper.pid, *stored)
            deliveries = q.lease(15)
            outcomes = q.nack([one.receipt for one in deliveries[:8]], reason="why")
            failed = [one for one, outcome in zip(deliveries, outcomes, strict=False) if outcome.ok]
            gone = [one for one in failed if int(one.payload) % 3 != 2]
            say("decided", helper.pid, *(one.payload.decode() for one in gone))


if __name__ == "__main__":
    main(sys.argv[1])
