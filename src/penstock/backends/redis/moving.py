"""Many messages at once: move, redrive and purge, in bounded steps of which each is atomic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from penstock.backends.burial import ORIGIN
from penstock.backends.redis.engine import Engine, Known
from penstock.backends.redis.looking import SLICE, Found, Looking
from penstock.backends.redis.records import CODES, GONE, STATES, stored_body
from penstock.backends.redis.transferring import MOVED, REDRIVEN, Transfer, Transferring, as_arriving
from penstock.codec.body import decode_body
from penstock.errors import (
    InvalidMessage,
    MessageLeased,
    MessageNotFound,
    PenstockError,
    QueueNotFound,
    as_answer,
)
from penstock.message import OK, Outcome, State, format_id, parse_id

#: Rounds that a move gives a message which others keep changing.
ROUNDS = 20

DEAD, READY = CODES[State.DEAD], CODES[State.READY]


class _Meant:
    """The queue that a call is about, and what it did so far, through all that it has to begin anew.

    One of the same name that was made meanwhile is another: nothing in it was there when it was called.
    """

    def __init__(self) -> None:
        self.done = 0
        self.last_seqs: dict[str, int] = {}
        self._number: int | None = None

    def is_it(self, q: Known) -> bool:
        if self._number != q.number and not self.done:
            self._number, self.last_seqs = q.number, {}
        return self._number == q.number


class Moving:
    """Bulk operations on the queues of one store."""

    def __init__(self, engine: Engine, looking: Looking, transferring: Transferring) -> None:
        self._engine = engine
        self._looking = looking
        self._transferring = transferring

    def purge(self, queue: str, codes: Sequence[int]) -> int:
        """What was there when it was called: later ones have later numbers."""
        meant = _Meant()

        def act(q: Known) -> None:
            last: bytes | str = ""
            for code in codes if meant.is_it(q) else ():
                position: bytes | str = ""
                while True:
                    _, _, count, position, last = self._engine.run("purge", [q], code, last, position, SLICE)
                    meant.done += count
                    if not position:
                        break

        return self._counted(queue, act, meant)

    def _counted(self, queue: str, act: Callable[[Known], None], meant: _Meant) -> int:
        """How many it was done to, though the queue is deleted in the middle of it."""
        try:
            self._engine.with_queue(queue, act)
        except QueueNotFound:
            if not meant.done:
                raise
        return meant.done

    # -- move

    def move(self, queue: str, ids: Sequence[str], target: str) -> list[Outcome]:
        parsed: list[bytes | Outcome] = []
        for text in ids:
            try:
                parsed.append(parse_id(text))
            except InvalidMessage as error:
                parsed.append(Outcome(as_answer(error)))
        raw_ids = list(dict.fromkeys(raw for raw in parsed if isinstance(raw, bytes)))
        if queue == target:
            self._engine.queue(queue)
            raise InvalidMessage(f"move: target {target!r} is the queue itself")
        #: What became of each, whatever is begun anew or fails behind it.
        answers: dict[bytes, PenstockError | None] = {}

        def act(q: Known) -> None:
            there = self._engine.queue(target)
            left = [raw_id for raw_id in raw_ids if raw_id not in answers]
            if not left:
                self._looking.find(q, [])
            for at in range(0, len(left), SLICE):
                self._move(q, there, left[at : at + SLICE], answers)

        try:
            self._engine.with_queue(queue, act)
        except PenstockError as error:
            if None not in answers.values():  # Nothing was moved.
                raise
            answers = {raw_id: answers.get(raw_id, as_answer(error)) for raw_id in raw_ids}
        return list(_outcomes(queue, parsed, answers))

    def _move(
        self, q: Known, target: Known, ids: Sequence[bytes], answers: dict[bytes, PenstockError | None]
    ) -> None:
        left = list(ids)
        for attempt in range(ROUNDS):
            self._engine.patience(attempt)
            transfers: list[Transfer] = []
            for raw_id, found in zip(left, self._looking.find(q, left), strict=True):
                refusal = _why_not_moved(q, target, raw_id, found)
                if refusal is not None or found is None:
                    answers[raw_id] = refusal
                else:
                    transfers.append(as_arriving(MOVED, q.name, raw_id, found[0], stored_body(*found)))
            left = []
            replies = self._transferring.each(q, target, transfers, MOVED)
            for one, reply in zip(transfers, replies, strict=True):
                if reply == b"0":
                    left.append(one.raw_id)
                elif reply == b"2":
                    answers[one.raw_id] = InvalidMessage(
                        f"message {format_id(one.raw_id)} exists in {target.name!r} already; "
                        "it was left where it is"
                    )
                else:
                    answers[one.raw_id] = None
            if not left:
                break
        answers.update({raw_id: MessageLeased(format_id(raw_id), q.name) for raw_id in left})

    # -- redrive

    def redrive(self, queue: str, limit: int, target: str | None) -> int:
        if target is not None:
            self._engine.queue(target)
        meant = _Meant()

        def act(q: Known) -> None:
            for index in ("y", "a") if meant.is_it(q) else ():
                self._redrive_from(q, index, limit, target, meant)

        self._engine.with_queue(queue, lambda q: self._looking.find(q, []))
        return self._counted(queue, act, meant)

    def _redrive_from(self, q: Known, index: str, limit: int, target: str | None, meant: _Meant) -> None:
        passed = 0
        while meant.done < limit:
            most = min(SLICE, limit - meant.done)
            _, _, ids, records, bodies, seq = self._engine.run("dead", [q], index, passed, most)
            last_seq = meant.last_seqs.setdefault(index, int(seq))
            by_target: dict[str, list[tuple[bytes, Found]]] = {}
            ended, ids = len(bodies) == len(ids) < most, ids[: len(bodies)]
            for raw_id, raw, body in zip(ids, records, bodies, strict=False):
                if raw is None or body is None:
                    continue
                record = self._engine.record_to_settle(q, raw_id, raw)
                body = self._engine.opened_body(q, raw_id, body)
                # Those that came after the call are not meant: they would never end.
                if record.seq <= last_seq and record.code in (DEAD, READY):
                    headers = decode_body(body).headers
                    goal = target or headers.get(ORIGIN, q.name)
                    by_target.setdefault(goal, []).append((raw_id, (record, body)))
            before = meant.done
            for goal, some in by_target.items():
                self._redrive_to(q, goal, some, meant)
            passed += len(ids) - (meant.done - before)
            if ended:
                break

    def _redrive_to(self, q: Known, goal: str, some: list[tuple[bytes, Found]], meant: _Meant) -> None:
        if goal == q.name:
            dead = [(raw_id, found[0]) for raw_id, found in some if found[0].code == DEAD]
            if dead:
                seqs = b"".join([record.seq.to_bytes(8, "big") for _, record in dead])
                meant.done += int(self._engine.run("revive", [q], seqs, *[raw_id for raw_id, _ in dead])[2])
            return
        try:
            there = self._engine.queue(goal)
        except QueueNotFound:
            return  # Their origin is gone: they stay where they are.
        transfers = [
            as_arriving(REDRIVEN, q.name, raw_id, found[0], stored_body(*found)) for raw_id, found in some
        ]
        for reply in self._transferring.each(q, there, transfers, REDRIVEN):
            meant.done += reply == b"1"


def _outcomes(
    queue: str, parsed: Sequence[bytes | Outcome], answers: Mapping[bytes, PenstockError | None]
) -> Iterator[Outcome]:
    seen: set[bytes] = set()
    for one in parsed:
        if isinstance(one, Outcome):
            yield one
            continue
        error = answers[one]
        if one in seen and error is None:  # A repetition: as the first went, it is here no more.
            error = MessageNotFound(format_id(one), queue)
        seen.add(one)
        yield OK if error is None else Outcome(error)


def _why_not_moved(q: Known, target: Known, raw_id: bytes, found: Found | None) -> PenstockError | None:
    text = format_id(raw_id)
    if found is None or found[0].code == GONE:
        return MessageNotFound(text, q.name)
    state = STATES[found[0].code]
    if state == State.LEASED:
        return MessageLeased(text, q.name)
    has_own_delay = state == State.DELAYED and not found[0].is_in_line
    if state == State.DONE or (has_own_delay and target.settings.fifo):
        return InvalidMessage(f"message {text} is {state}: it cannot be moved to {target.name!r}")
    return None
