"""One queue of the model: its messages, their order, and whose turn it is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction

from penstock import Kind, NewMessage, QueueSettings, State

WAITING = (State.DELAYED, State.READY)
#: A lower priority is served out of turn at most once in so many deliveries, and at least once in 20.
TURN_AT_MOST, TURN_AT_LEAST = 10, 20


class Buckets:
    """Token buckets, in fractions: exact, and nothing like the system's arithmetic."""

    def __init__(self) -> None:
        #: key -> rate, burst, tokens at a time, that time
        self._all: dict[str, tuple[Fraction, int, Fraction, int]] = {}
        self.now_ns = 0

    def limit(self, key: str, rate_per_s: float, burst: int) -> None:
        tokens = min(self.tokens(key), Fraction(burst)) if key in self._all else Fraction(burst)
        self._all[key] = (Fraction(str(rate_per_s)), burst, tokens, self.now_ns)

    def delete(self, key: str) -> None:
        self._all.pop(key, None)

    def tokens(self, key: str) -> Fraction:
        rate, burst, tokens, at_ns = self._all[key]
        return min(Fraction(burst), tokens + rate * (self.now_ns - at_ns) / 10**9)

    def have_tokens(self, item: Item) -> bool:
        return all(self.tokens(key) >= 1 for key in self.limiting(item))

    def limiting(self, item: Item) -> set[str]:
        return set(item.new.throttle_keys) & set(self._all)

    def take(self, item: Item) -> None:
        for key in self.limiting(item):
            rate, burst, _, _ = self._all[key]
            self._all[key] = (rate, burst, self.tokens(key) - 1, self.now_ns)

    def shown(self) -> list[tuple[str, float, int, float]]:
        rows = sorted(self._all.items(), key=lambda row: row[0].encode())
        return [(key, float(rate), burst, float(self.tokens(key))) for key, (rate, burst, _, _) in rows]


@dataclass
class Item:
    """One message. `place` orders those that became visible at the same time; None: it does not say."""

    id: str
    new: NewMessage
    enqueued_ns: int
    visible_ns: int
    place: int | None
    expires_ns: int | None = None
    #: Since when it waits for its queue's delay; None: it does not.
    since_ns: int | None = None
    state: State = State.READY
    attempts: int = 0
    receipt: str = ""
    consumer: str = ""
    leased_ns: int = 0
    until_ns: int | None = None
    reason: str = ""
    origin: str = ""
    buried_attempts: int = 0


@dataclass
class Line:
    """One queue."""

    settings: QueueSettings
    items: dict[str, Item] = field(default_factory=dict)
    dedup: dict[str, tuple[int, str]] = field(default_factory=dict)
    cursors: dict[str, tuple[int, bool]] = field(default_factory=dict)
    log: list[tuple[Kind, str]] = field(default_factory=list)
    enqueued: int = 0
    acked: int = 0
    failed: int = 0
    unserved: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    out_of_turn: dict[int, int] = field(default_factory=dict)

    def of(self, *states: State) -> list[Item]:
        return [item for item in self.items.values() if item.state in states]

    def read_by_all(self, last_seq: int) -> int:
        """The last seq that every required cursor has read."""
        return min((position for position, required in self.cursors.values() if required), default=last_seq)

    def lane(self, item: Item) -> tuple[int, str]:
        return (0 if self.settings.fifo else item.new.priority, item.new.fairness_key)

    def range_of(self, item: Item) -> tuple[object, ...]:
        """What ready messages are listed together by."""
        throttles = () if self.settings.fifo else sorted(set(item.new.throttle_keys))
        return (*self.lane(item), *throttles)

    def must_precede(self, a: Item, b: Item) -> bool:
        """Whether the semantics say that `a` comes before `b`, both ready in one lane."""
        if not self.settings.fifo and a.visible_ns != b.visible_ns:
            return a.visible_ns < b.visible_ns
        return a.place is not None and b.place is not None and a.place < b.place

    def deliverable(self, buckets: Buckets) -> list[Item]:
        """What may be delivered next: nothing that comes before it in its lane may."""
        if self.settings.max_leased is not None and len(self.of(State.LEASED)) >= self.settings.max_leased:
            return []
        ready = [item for item in self.of(State.READY) if self._has_room(item)]
        able = [item for item in ready if buckets.have_tokens(item)]
        # In a fifo queue, what waits for tokens is waited for; elsewhere, it may leave one to others.
        before = ready if self.settings.fifo else [o for o in able if not self._is_contended(o, buckets)]
        return [
            item
            for item in able
            if not any(self.lane(o) == self.lane(item) and self.must_precede(o, item) for o in before)
        ]

    def _is_contended(self, item: Item, buckets: Buckets) -> bool:
        """Whether others of its priority, of other keys or throttle sets, want the tokens that it needs.

        Those of a key that has just got enough in flight do until it would be their turn.
        """
        return any(
            other.new.priority == item.new.priority
            and self.range_of(other) != self.range_of(item)
            and buckets.limiting(item) & buckets.limiting(other)
            for other in self.of(State.READY)
        )

    def may_be_kept_back(self, item: Item, buckets: Buckets) -> bool:
        """Whether a token that it needs may be kept for a message that waits for another one besides.

        Or, in a fifo queue, whether one that waits for tokens may be before it: they came together.
        """
        if self.settings.fifo and any(
            self.lane(other) == self.lane(item)
            and not self.must_precede(item, other)
            and not buckets.have_tokens(other)
            for other in self.of(State.READY)
        ):
            return True
        return any(
            (self.settings.fifo or other.new.priority == item.new.priority)
            and self.range_of(other) != self.range_of(item)
            and buckets.limiting(other) & buckets.limiting(item)
            and not buckets.have_tokens(other)
            and len(buckets.limiting(other)) > 1
            for other in self.of(State.READY)
        )

    def _has_room(self, item: Item) -> bool:
        """Whether another message of its key may be in flight."""
        key, per_key = item.new.fairness_key, self.settings.max_leased_per_key
        states = (State.LEASED, State.DELAYED) if self.settings.fifo else (State.LEASED,)
        in_flight = sum(
            other.new.fairness_key == key and other.since_ns is None for other in self.of(*states)
        )
        return not in_flight if self.settings.fifo else per_key is None or in_flight < per_key

    def check_turn(self, item: Item, levels: set[int]) -> None:
        """It is delivered now, while these priorities have something to deliver."""
        if self.settings.fifo:
            return
        mine = item.new.priority
        for level in range(10):
            self.unserved[level] = 0 if level == mine or level not in levels else self.unserved[level] + 1
            self.out_of_turn[level] = self.out_of_turn.get(level, TURN_AT_MOST) + 1
            assert self.unserved[level] < TURN_AT_LEAST, f"priority {level} starves"
        if mine < max(levels):
            assert self.out_of_turn[mine] > TURN_AT_MOST, f"priority {mine} is served before {max(levels)}"
            self.out_of_turn[mine] = 0

    def refuses(self, new: NewMessage) -> bool:
        ill = not 0 <= new.priority <= 9 or new.weight < 1 or "\0" in new.fairness_key
        ill = ill or "" in new.throttle_keys
        ill_id = new.id is not None and len(new.id) != 36
        return ill or ill_id or (self.settings.fifo and (new.delay_s > 0 or new.priority != 4))

    def retry_delay_s(self, attempts: int) -> float:
        retry = self.settings.retry
        if retry.policy == "list":
            return retry.delays_s[min(attempts, len(retry.delays_s)) - 1]
        if retry.policy == "fixed":
            return retry.delay_s
        return min(retry.delay_s * 2.0 ** (attempts - 1), retry.max_delay_s)
