"""What the sections of a report are called, and the sentences that say how to read them."""

from __future__ import annotations

from typing import NamedTuple


class Reading(NamedTuple):
    """A section's title, and what to look for in it."""

    title: str
    how: str


READINGS = {
    "queues": Reading(
        "Queues",
        "Each queue over the whole time, the busiest first. One that takes in more than it gets done, or "
        "whose oldest message grows old, needs more workers. Waiting and oldest are as they stand now.",
    ),
    "throughput": Reading(
        "Throughput",
        "Messages a second. In a healthy queue delivered follows enqueued, acked follows delivered, and "
        "failed stays near the floor. Where enqueued is above acked for long, a backlog grows.",
    ),
    "wait": Reading(
        "Waiting time",
        "How long messages had been ready when they were delivered. If the upper lines rise while the "
        "lowest stays, some messages wait for others: look at the slowest keys, at priorities and at "
        "limits.",
    ),
    "work": Reading(
        "Service time",
        "How long a delivery took until it was acked, failed or ran out of its lease. Workers that slow "
        "down show here first, before anything waits.",
    ),
    "depth": Reading(
        "Depth",
        "Messages that wait (ready or delayed) and that are being worked on (leased), at the end of each "
        "point. A line that comes back to the floor was a burst; one that does not is a lack of workers.",
    ),
    "lag": Reading(
        "Lag",
        "How long the oldest ready message had been waiting at each moment. A straight climb is work that"
        " nobody takes: its slope is time itself.",
    ),
    "fairness": Reading(
        "Fair shares",
        "What each fairness key was delivered while keys of its queue and priority went short, against "
        "what its weight made due. A key is short in a point of time if a message of it waited from its "
        "beginning to its end. What was delivered meanwhile is due to the keys by weight, and to none more "
        "than it asked for: what one leaves over is due to the others. The bar is what it got, the mark is "
        "what was due: they should meet. A key that was never short got all it asked for, however little. "
        "Throttles, limits per key and fifo hold a key below its mark, and lift the others.",
    ),
    "retries": Reading(
        "Retries",
        "Deliveries by attempt. Most work should be done at the first; every later row is work done "
        "again. Below, what was said of deliveries that failed, the most frequent first.",
    ),
    "dead": Reading(
        "Dead letters",
        "Messages that will not be tried again, by what was said last. Mend the cause, then send them "
        "back: penstock redrive.",
    ),
    "slowest": Reading(
        "Slowest keys",
        "Fairness keys by how long their messages took to work on, at the 95th of 100. A key far above "
        "the others holds workers that the others could use.",
    ),
    "by-queue": Reading(
        "Queue by queue",
        "The same plots for each of the busiest queues; open one to see it.",
    ),
}
