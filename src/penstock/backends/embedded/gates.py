"""Gates: lanes whose throttle keys have no tokens wait here, out of line, until there are some.

A gate is one bucket as one priority of one queue sees it. It lets in as many lanes as the bucket has tokens;
the others wait, those whose turn it is first, and are looked at again only when the bucket has a token for
one more. So what a lease costs depends neither on how many messages wait for tokens nor on how many lanes do.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.backends.embedded.lanes import Lane, Place
from penstock.scheduling.fairness import LEVELS
from penstock.scheduling.throttle import NEVER_NS, Bucket

if TYPE_CHECKING:
    from penstock.backends.embedded.engine import Engine


class Gate:
    """One bucket before one level: `inside` lanes in line that need it, and the ones that wait for it."""

    __slots__ = ("bucket", "inside", "lanes", "level", "waiting", "wake_ns")

    def __init__(self, bucket: Bucket, level: int) -> None:
        self.bucket = bucket
        self.level = level
        self.inside = 0
        #: Lanes that need it, wherever they are.
        self.lanes = 0
        #: By ticket. Entries that are not a lane's own ticket, or of one that does not wait, are void.
        self.waiting: list[tuple[int, Lane]] = []
        self.wake_ns = NEVER_NS


class Gates:
    """The gates of one queue."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: By bucket and level: a lane of a low priority must not stand in the way of one of a high priority.
        self._gates: dict[tuple[Bucket, int], Gate] = {}
        #: When a gate is to be looked at; entries that differ from the gate's own time are void.
        self._wakes: list[tuple[int, int, Gate]] = []
        self._tickets = itertools.count()

    def equip(self, lane: Lane, throttle_keys: Iterable[str]) -> None:
        """The lane, which is not in line, needs tokens of these keys from now on."""
        gates = []
        for key in throttle_keys:
            place = self._engine.buckets.get(key), lane.lane[0]
            gate = self._gates.get(place)
            if gate is None:
                gate = self._gates[place] = Gate(*place)
            gate.lanes += 1
            gates.append(gate)
        lane.gates = tuple(gates)
        lane.ticket = next(self._tickets)

    def retire(self, lane: Lane) -> None:
        """The lane, which is not in line, needs no tokens any more."""
        for gate in lane.gates:
            gate.lanes -= 1
            if not gate.lanes:
                gate.wake_ns = NEVER_NS
                del self._gates[gate.bucket, gate.level]
        lane.gates = ()

    def are_free(self, lane: Lane, now_ns: int) -> bool:
        """Whether there are tokens for the lane that nobody is before it for."""
        return all(gate.inside < gate.bucket.tokens(now_ns) and not gate.waiting for gate in lane.gates)

    def let_in(self, lane: Lane, now_ns: int, *, waited: bool) -> bool:
        """Whether the lane may stand in line; if not, it waits for the gate that opens last.

        One that has not `waited` does not overtake those that do.
        """
        shut, opens_ns = None, -1
        for gate in lane.gates:
            if gate.inside < gate.bucket.tokens(now_ns):
                if waited or not gate.waiting:
                    continue
                at_ns = now_ns
            else:
                at_ns = gate.bucket.ready_at_ns(gate.inside + 1, now_ns)
            if at_ns > opens_ns:
                shut, opens_ns = gate, at_ns
        if shut is None:
            for gate in lane.gates:
                gate.inside += 1
            return True
        lane.place = Place.WAITING
        if len(shut.waiting) > 2 * shut.lanes:
            shut.waiting = sorted(entry for entry in shut.waiting if _waits(*entry))
        heapq.heappush(shut.waiting, (lane.ticket, lane))
        self._wake(shut, opens_ns)
        return False

    def withdraw(self, lane: Lane) -> None:
        """What the lane needs the tokens for is gone, and it waits no more."""
        lane.place = Place.NOWHERE
        lane.ticket = next(self._tickets)

    def left(self, lane: Lane, now_ns: int) -> None:
        """The lane stands in line no more: there is room for another."""
        for gate in lane.gates:
            gate.inside -= 1
            if gate.waiting:
                self._wake(gate, gate.bucket.ready_at_ns(gate.inside + 1, now_ns))

    def served(self, lane: Lane, count: int, weight: int) -> bool:
        """Whether it is now for the lane to wait, behind those that wait for the same tokens.

        What it took beyond its turn is kept in mind for the next one.
        """
        if lane.turn_left <= 0:
            lane.turn_left += weight
        lane.turn_left -= count
        if lane.turn_left > 0:
            return False
        lane.turn_left = max(lane.turn_left, 1 - weight)
        lane.ticket = next(self._tickets)
        return any(gate.waiting for gate in lane.gates)

    def released(self, now_ns: int) -> Iterator[Lane]:
        """Lanes that may try again; each must have found its place before the next is asked for."""
        wakes = self._wakes
        while wakes and wakes[0][0] <= now_ns:
            at_ns, _, gate = heapq.heappop(wakes)
            if at_ns != gate.wake_ns:
                continue
            gate.wake_ns = NEVER_NS
            while gate.waiting and gate.inside < gate.bucket.tokens(now_ns):
                ticket, lane = heapq.heappop(gate.waiting)
                if _waits(ticket, lane):
                    lane.place = Place.NOWHERE
                    yield lane
            if gate.waiting:
                self._wake(gate, gate.bucket.ready_at_ns(gate.inside + 1, now_ns))

    def look_again(self, bucket: Bucket, now_ns: int) -> None:
        """The bucket's limit was changed, or tokens came back."""
        for level in range(LEVELS):
            gate = self._gates.get((bucket, level))
            if gate is not None and gate.waiting:
                gate.wake_ns = NEVER_NS
                self._wake(gate, bucket.ready_at_ns(gate.inside + 1, now_ns))

    def next_release_ns(self) -> int:
        """A time before which no lane that waits is let in."""
        while self._wakes and self._wakes[0][0] != self._wakes[0][2].wake_ns:
            heapq.heappop(self._wakes)
        return self._wakes[0][0] if self._wakes else NEVER_NS

    def _wake(self, gate: Gate, at_ns: int) -> None:
        if at_ns < gate.wake_ns:
            gate.wake_ns = at_ns
            heapq.heappush(self._wakes, (at_ns, next(self._tickets), gate))


def _waits(ticket: int, lane: Lane) -> bool:
    return lane.place == Place.WAITING and lane.ticket == ticket
