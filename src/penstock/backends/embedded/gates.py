"""Gates: lanes whose throttle keys have no tokens wait here, out of line, until there are some.

A gate is one bucket as one priority of one queue sees it. It lets in as many lanes as the bucket has tokens;
the others wait, and are looked at again only when the bucket has a token for one more. So what a lease costs
depends neither on how many messages wait for tokens nor on how many lanes do.

Fairness keys that wait at a gate share its tokens by weight (start-time fair queueing): a key's claim has a
tag, which every token that it uses moves on, the less the greater its weight, and the lowest goes in first.

A lane that needs several tokens, and whose turn it is at one gate, may find another shut. If it is the next
one there too, and that gate opens before the first one has another token, its token is kept for it until
then. Otherwise those that need fewer would always come before it.
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
    from penstock.backends.embedded.turns import Turn

#: How far one token moves the tag of a key of weight 1.
STEP = 1 << 40


class Claim:
    """A fairness key's claim to the tokens of a gate."""

    __slots__ = ("gate", "inside", "lanes", "queued", "step", "tag", "turn", "waiting")

    def __init__(self, gate: Gate, turn: Turn) -> None:
        self.gate = gate
        self.turn = turn
        self.tag = gate.tag
        self.step = STEP
        #: Lanes of the key that need the gate: those in line, and wherever they are.
        self.inside = 0
        self.lanes = 0
        #: Those that wait for it, earliest message first; entries of lanes that wait no more are void.
        self.waiting: list[tuple[bytes, Lane]] = []
        self.queued = False

    @property
    def place(self) -> int:
        """Its place at the gate: as if what is in line had used its tokens already."""
        return self.tag + self.inside * self.step

    def first(self) -> Lane | None:
        """The lane that has waited longest."""
        while self.waiting:
            lane = self.waiting[0][1]
            if lane.place == Place.WAITING and lane.waits is self:
                return lane
            heapq.heappop(self.waiting)
        return None


class Gate:
    """One bucket before one level: `inside` lanes that have a token of it to use, in line or `kept` for them,
    and the claims of those that wait.
    """

    __slots__ = ("bucket", "claims", "inside", "kept", "level", "tag", "waiting", "wake_ns")

    def __init__(self, bucket: Bucket, level: int) -> None:
        self.bucket = bucket
        self.level = level
        self.claims: dict[Turn, Claim] = {}
        self.inside = 0
        #: Lanes that wait at another gate while a token is kept for them here, and until when.
        self.kept: dict[Lane, int] = {}
        #: Where whoever comes anew starts: nobody saves up.
        self.tag = 0
        #: By place as it was when they were queued.
        self.waiting: list[tuple[int, int, Claim]] = []
        self.wake_ns = NEVER_NS

    def has_room(self, now_ns: int) -> bool:
        return self.inside < self.bucket.tokens(now_ns)

    def free_tokens(self, now_ns: int) -> int:
        """What lanes in line may use."""
        return self.bucket.tokens(now_ns) - len(self.kept)

    def room_at_ns(self, now_ns: int) -> int:
        """When there may be a token for one more lane."""
        at_ns = self.bucket.ready_at_ns(self.inside + 1, now_ns)
        return min(at_ns, next(iter(self.kept.values()))) if self.kept else at_ns

    def is_next(self, claim: Claim) -> bool:
        """Whether it comes before all that wait."""
        return not self.waiting or claim.place < self.waiting[0][0]


class Gates:
    """The gates of one queue."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: By bucket and level: a lane of a low priority must not stand in the way of one of a high priority.
        self._gates: dict[tuple[Bucket, int], Gate] = {}
        #: When a gate is to be looked at; entries that differ from the gate's own time are void.
        self._wakes: list[tuple[int, int, Gate]] = []
        self._count = itertools.count()
        #: Claims with lanes that wait, whose turn came while the key had enough in flight.
        self._passed_over: dict[Turn, list[Claim]] = {}

    # -- what lanes need ------------------------------------------------------------------------

    def equip(self, lane: Lane, turn: Turn, throttle_keys: Iterable[str]) -> None:
        """The lane, which is not in line, needs tokens of these keys from now on."""
        lane.claims = tuple(self._claim(key, lane.lane[0], turn) for key in throttle_keys)

    def _claim(self, key: str, level: int, turn: Turn) -> Claim:
        place = self._engine.buckets.get(key), level
        gate = self._gates.get(place)
        if gate is None:
            gate = self._gates[place] = Gate(*place)
        claim = gate.claims.get(turn)
        if claim is None:
            claim = gate.claims[turn] = Claim(gate, turn)
        claim.lanes += 1
        return claim

    def retire(self, lane: Lane) -> None:
        """The lane, which is not in line, needs no tokens any more."""
        for claim in lane.claims:
            claim.lanes -= 1
            if not claim.lanes:
                gate = claim.gate
                del gate.claims[claim.turn]
                if not gate.claims:
                    gate.wake_ns = NEVER_NS
                    del self._gates[gate.bucket, gate.level]
        lane.claims = ()

    # -- in and out -----------------------------------------------------------------------------

    def are_free(self, lane: Lane, now_ns: int) -> bool:
        """Whether there are tokens for the lane that nobody is before it for."""
        return all(claim.gate.has_room(now_ns) and not claim.gate.waiting for claim in lane.claims)

    def has_tokens_for(self, lane: Lane) -> bool:
        """Whether the lane has tokens to use: it is in line, or some are kept for it."""
        return lane.place == Place.IN_LINE or any(lane in claim.gate.kept for claim in lane.claims)

    def let_in(self, lane: Lane, now_ns: int, *, waited: bool) -> bool:
        """Whether the lane may stand in line; if not, it waits for the gate that opens last.

        One that has not `waited` does not overtake those that do.
        """
        shut, opens_ns = None, -1
        for claim in lane.claims:
            gate = claim.gate
            if lane in gate.kept:
                continue
            if not gate.has_room(now_ns):
                at_ns = gate.room_at_ns(now_ns)
            elif waited or not gate.waiting:
                continue
            else:
                at_ns = now_ns
            if at_ns > opens_ns:
                shut, opens_ns = claim, at_ns
        if shut is None:
            for claim in lane.claims:
                if claim.gate.kept.pop(lane, None) is None:
                    claim.inside += 1
                    claim.gate.inside += 1
            lane.waits = None
            return True
        self._keep(lane, shut, opens_ns, now_ns)
        lane.place, lane.waits = Place.WAITING, shut
        heapq.heappush(shut.waiting, (lane.head, lane))
        self._queue(shut)
        self._wake(shut.gate, opens_ns)
        return False

    def _keep(self, lane: Lane, shut: Claim, opens_ns: int, now_ns: int) -> None:
        """The lane is about to wait: keep the token of the gate that has just let it go, and those that were
        kept for it before, until the other one opens; if that is worth it.
        """
        if shut.gate.bucket.rate_nano:
            # Those inside use their tokens meanwhile, and the next one to come is all that is waited for.
            opens_ns = min(opens_ns, now_ns + shut.gate.bucket.interval_ns)
        is_next = shut.gate.is_next(shut)
        for claim in lane.claims:
            gate = claim.gate
            was_kept = gate.kept.pop(lane, None) is not None
            if not was_kept and claim is not lane.waits:
                continue
            if is_next and opens_ns - now_ns <= gate.bucket.interval_ns:
                gate.kept[lane] = opens_ns + 1
                if not was_kept:
                    claim.inside += 1
                    gate.inside += 1
                self._wake(gate, opens_ns + 1)
            elif was_kept:
                self._free(claim, now_ns)

    def _free(self, claim: Claim, now_ns: int) -> None:
        gate = claim.gate
        claim.inside -= 1
        gate.inside -= 1
        if gate.waiting:
            self._wake(gate, gate.room_at_ns(now_ns))

    def returned(self, lane: Lane) -> None:
        """The lane was away though it had messages: its key starts where the others are."""
        for claim in lane.claims:
            claim.tag = max(claim.tag, claim.gate.tag)

    def _queue(self, claim: Claim) -> None:
        if not claim.queued:
            claim.queued = True
            heapq.heappush(claim.gate.waiting, (claim.place, next(self._count), claim))

    def return_to(self, turn: Turn, now_ns: int) -> None:
        """The key has no longer enough in flight: what was passed over waits for its turn again."""
        for claim in self._passed_over.pop(turn, ()):
            if claim.first() is not None:
                claim.tag = max(claim.tag, claim.gate.tag)
                self._queue(claim)
                self._wake(claim.gate, claim.gate.room_at_ns(now_ns))

    def withdraw(self, lane: Lane, now_ns: int) -> None:
        """What the lane needs the tokens for is gone, and it waits no more."""
        lane.place, lane.waits = Place.NOWHERE, None
        for claim in lane.claims:
            if claim.gate.kept.pop(lane, None) is not None:
                self._free(claim, now_ns)

    def left(self, lane: Lane, now_ns: int) -> None:
        """The lane stands in line no more: there is room for another."""
        for claim in lane.claims:
            self._free(claim, now_ns)

    def served(self, lane: Lane, count: int, weight: int) -> bool:
        """The lane, in line or not, has used tokens; whether it is now for others to use some."""
        others_first = False
        for claim in lane.claims:
            gate = claim.gate
            gate.tag = max(gate.tag, claim.tag)
            claim.step = STEP // weight
            claim.tag += count * claim.step
            if gate.waiting and claim.place - claim.step > gate.waiting[0][0]:
                others_first = True
        return others_first

    # -- time -----------------------------------------------------------------------------------

    def released(self, now_ns: int) -> Iterator[Lane]:
        """Lanes that may try again; each must have found its place before the next is asked for."""
        wakes = self._wakes
        while wakes and wakes[0][0] <= now_ns:
            at_ns, _, gate = heapq.heappop(wakes)
            if at_ns == gate.wake_ns:
                gate.wake_ns = NEVER_NS
                yield from self._released_by(gate, now_ns)

    def _released_by(self, gate: Gate, now_ns: int) -> Iterator[Lane]:
        self._end_keeping(gate, now_ns)
        while gate.waiting and gate.has_room(now_ns):
            place, _, claim = heapq.heappop(gate.waiting)
            claim.queued = False
            lane = claim.first()
            if lane is None:
                continue
            if claim.turn.full:
                self._passed_over.setdefault(claim.turn, []).append(claim)
                continue
            if claim.place > place:
                # Others of its lanes have used tokens since.
                claim.queued = True
                heapq.heappush(gate.waiting, (claim.place, next(self._count), claim))
                continue
            heapq.heappop(claim.waiting)
            if claim.waiting:
                self._queue(claim)
            lane.place = Place.NOWHERE  # It `waits` here still: if it finds another gate shut, that counts.
            yield lane
        if gate.waiting:
            self._wake(gate, gate.room_at_ns(now_ns))

    def _end_keeping(self, gate: Gate, now_ns: int) -> None:
        """What was kept for nothing was kept from others: to its key, it counts as used."""
        while gate.kept:
            lane, until_ns = next(iter(gate.kept.items()))
            if until_ns > now_ns:
                return
            del gate.kept[lane]
            claim = next(claim for claim in lane.claims if claim.gate is gate)
            claim.tag += claim.step
            claim.inside -= 1
            gate.inside -= 1

    def look_again(self, bucket: Bucket, now_ns: int) -> None:
        """The bucket's limit was changed, or tokens came back."""
        for level in range(LEVELS):
            gate = self._gates.get((bucket, level))
            if gate is not None and gate.waiting:
                gate.wake_ns = NEVER_NS
                self._wake(gate, gate.room_at_ns(now_ns))

    def next_release_ns(self) -> int:
        """A time before which no lane that waits is let in."""
        while self._wakes and self._wakes[0][0] != self._wakes[0][2].wake_ns:
            heapq.heappop(self._wakes)
        return self._wakes[0][0] if self._wakes else NEVER_NS

    def _wake(self, gate: Gate, at_ns: int) -> None:
        if at_ns < gate.wake_ns:
            gate.wake_ns = at_ns
            heapq.heappush(self._wakes, (at_ns, next(self._count), gate))
