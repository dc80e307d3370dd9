"""One queue of the model: its messages, their order, and whose turn it is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from penstock import Kind, NewMessage, QueueSettings, State

WAITING = (State.DELAYED, State.READY)
#: A lower priority is served out of turn at most once in so many deliveries, and at least once in 20.
TURN_AT_MOST, TURN_AT_LEAST = 10, 20


@dataclass
class Item:
    """One message. `place` orders those that became visible at the same time; None: it does not say."""

    id: str
    new: NewMessage
    enqueued_ns: int
    visible_ns: int
    place: int | None
    expires_ns: int | None = None
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

    def must_precede(self, a: Item, b: Item) -> bool:
        """Whether the semantics say that `a` comes before `b`, both ready in one lane."""
        if not self.settings.fifo and a.visible_ns != b.visible_ns:
            return a.visible_ns < b.visible_ns
        return a.place is not None and b.place is not None and a.place < b.place

    def deliverable(self) -> list[Item]:
        ready = self.of(State.READY)
        in_flight = {self.lane(item) for item in self.of(State.LEASED, State.DELAYED)}
        return [
            item
            for item in ready
            if not (self.settings.fifo and self.lane(item) in in_flight)
            and not any(self.lane(o) == self.lane(item) and self.must_precede(o, item) for o in ready)
        ]

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
        ill_id = new.id is not None and len(new.id) != 36
        return ill or ill_id or (self.settings.fifo and (new.delay_s > 0 or new.priority != 4))

    def retry_delay_s(self, attempts: int) -> float:
        retry = self.settings.retry
        if retry.policy == "list":
            return retry.delays_s[min(attempts, len(retry.delays_s)) - 1]
        if retry.policy == "fixed":
            return retry.delay_s
        return min(retry.delay_s * 2.0 ** (attempts - 1), retry.max_delay_s)
