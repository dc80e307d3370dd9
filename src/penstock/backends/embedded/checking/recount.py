"""A queue's counters, from what they count."""

from __future__ import annotations

from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.folding import EVENTS_PER_PART, Fold
from penstock.backends.embedded.checking.journals import Walk
from penstock.backends.embedded.checking.standing import body_of, place, standings
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.keys import Meta, StateCode
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import Counters, decode_counters, decode_state
from penstock.codec.frame import FrameHead, decode_head, verify
from penstock.errors import StorageCorrupt

#: Events that may be missing at a journal's end. Rows that speak of later ones are taken to be wrong.
MISSING_AT_END = 1_000_000
#: Beyond this many parts of a journal, each takes more memory instead.
MOST_PARTS = 64


def stored_counters(view: View, q: QueueState) -> Counters:
    """A queue's counters as they are stored; `StorageCorrupt` if they cannot be right."""
    raw = view.get("meta", keys.meta(Meta.COUNTERS, q.prefix))
    base_seq, last_seq = _span(view, q)
    if raw is None:
        if last_seq:
            raise StorageCorrupt("counters row is missing")
        return Counters()
    counters = decode_counters(raw)
    if not 0 <= counters.base_seq < counters.next_seq or last_seq >= counters.next_seq:
        first, last = counters.base_seq + 1, counters.next_seq - 1
        raise StorageCorrupt(
            f"counters row has events {first} to {last}; the journal has {base_seq + 1} to {last_seq}"
        )
    return counters


def recount(view: View, q: QueueState, stored: Counters | None = None) -> Counters:
    """Everything that the rows and the journal tell; what cannot be counted is as it is stored."""
    counters = q.counters = Counters()
    if stored is not None:
        counters.next_seq, counters.base_seq = stored.next_seq, stored.base_seq
        counters.base_counts, counters.last_order_ns = stored.base_counts, stored.last_order_ns
    else:
        counters.base_seq, last_seq = _span(view, q)
        last_seq = max(last_seq, _last_seq_in_rows(view, q, last_seq + MISSING_AT_END))
        counters.next_seq = last_seq + 1
    for standing in standings(view, q):
        body = body_of(standing.body)
        placed = place(q, standing, body)
        if placed is None or standing.body is None:
            continue
        if placed.code == StateCode.GONE:
            counters.held += 1
            continue
        counters.counts[placed.code] += 1
        if placed.code != StateCode.DELAYED or not placed.row.until_ns:  # Else it may be in the future.
            counters.last_order_ns = max(counters.last_order_ns, placed.row.order_ns)
    counters.journal_bytes = sum(len(raw) for _, raw in view.rows("journal", q.prefix, keys.u32(q.qid + 1)))
    if not counters.journal_bytes:
        counters.base_counts = list(counters.counts)
    totals, whole = fold_totals(view, q)
    if stored is not None and not whole:
        totals = [stored.enqueued_total, stored.acked_total, stored.failed_total]
    counters.enqueued_total, counters.acked_total, counters.failed_total = totals
    return counters


def _span(view: View, q: QueueState) -> tuple[int, int]:
    """The seq before the first frame that is in its place, and the last one's."""
    first, last = (_first_sound(view, q, reverse=reverse) for reverse in (False, True))
    return (first.first_seq - 1 if first else 0), (last.last_seq if last else 0)


def _first_sound(view: View, q: QueueState, *, reverse: bool) -> FrameHead | None:
    for key, raw in view.rows("journal", q.prefix, keys.u32(q.qid + 1), reverse=reverse):
        try:
            verify(raw)
            head = decode_head(raw)
        except StorageCorrupt:
            continue
        if head.last_seq == int.from_bytes(key[4:], "big"):
            return head
    return None


def _last_seq_in_rows(view: View, q: QueueState, limit: int) -> int:
    """The last event that a state row or held row speaks of."""
    last = 0
    for _, raw in view.rows("state", q.prefix, keys.u32(q.qid + 1)):
        try:
            seq = decode_state(raw).seq
        except StorageCorrupt:
            continue
        last = max(last, seq if seq <= limit else 0)
    return last


def parts_of(view: View, q: QueueState) -> int:
    """In how many parts a queue's journal is folded: by what is there, for a counter can be wrong."""
    frames = view.rows("journal", q.prefix, keys.u32(q.qid + 1), reverse=True)
    last = next((int.from_bytes(key[4:], "big") for key, _ in frames), 0)
    last = min(last, q.counters.next_seq - 1)
    return min(max(0, last - q.counters.base_seq) // EVENTS_PER_PART + 1, MOST_PARTS)


def fold_totals(view: View, q: QueueState) -> tuple[list[int], bool]:
    """How often messages were enqueued, acked and failed; whether the journal knows all of it."""
    parts, totals, whole = parts_of(view, q), [0, 0, 0], True
    for part in range(parts):
        fold = folded(view, q, part, parts)
        totals = [a + b for a, b in zip(totals, fold.totals, strict=True)]
        whole = whole and fold.whole
    return totals, whole


def folded(view: View, q: QueueState, part: int = 0, parts: int = 1) -> Fold:
    """One part of a queue's journal, folded to its end."""
    fold = Fold(part, parts, whole=q.counters.base_seq == 0)
    walk = Walk(view, q.name, q.qid, q.counters.base_seq, None)
    for runs in walk.runs():
        if runs is None:
            fold.lose()
        for run in runs or ():
            fold.add(run)
    if walk.end(q.counters.next_seq - 1):
        fold.lose()
    return fold
