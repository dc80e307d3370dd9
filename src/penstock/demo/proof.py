"""What happened, from the journal: who was handed what, what became of it, and whether anything is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock import Event, Kind, Queue

EVENTS_PAGE = 5000
FIRST_DELIVERIES = 1000


@dataclass
class Report:
    """The journal's account against the ids that the shops were given."""

    #: id -> shop, of everything that was accepted.
    shops: dict[str, str] = field(default_factory=dict)
    kinds: Counter[Kind] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    acked: Counter[str] = field(default_factory=Counter)
    dead: set[str] = field(default_factory=set)
    first: Counter[str] = field(default_factory=Counter)

    def note(self, event: Event) -> None:
        self.kinds[event.kind] += 1
        if event.kind == Kind.ACKED:
            self.acked[event.message_id] += 1
        elif event.kind == Kind.DEAD:
            self.dead.add(event.message_id)
            self.reasons[event.reason or "lease ran out five times"] += 1
        elif event.kind == Kind.LEASED and self.kinds[Kind.LEASED] <= FIRST_DELIVERIES:
            self.first[self.shops.get(event.message_id, "?")] += 1

    def read(self, queue: Queue, progress: Callable[[int, int], None]) -> None:
        """The whole journal of the queue."""
        last, after = queue.stats().last_seq, 0
        while events := queue.events(after=after, limit=EVENTS_PAGE):
            for event in events:
                self.note(event)
            after = events[-1].seq
            progress(after, last)

    def missing(self) -> int:
        """Messages that were accepted, and neither acked nor dead-lettered."""
        return sum(message_id not in self.acked and message_id not in self.dead for message_id in self.shops)

    def twice(self) -> int:
        """Messages that were finished more than once."""
        return sum(count > 1 or message_id in self.dead for message_id, count in self.acked.items())
