"""Many messages at once: move, redrive and purge, in bounded steps of which each is atomic."""

from __future__ import annotations

from collections.abc import Sequence

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


class Moving:
    """Bulk operations on the queues of one store."""

    def __init__(self, engine: Engine, looking: Looking, transferring: Transferring) -> None:
        self._engine = engine
        self._looking = looking
        self._transferring = transferring

    def purge(self, queue: str, codes: Sequence[int]) -> int:
        """What was there when it was called: later ones have later numbers."""

        def act(q: Known) -> int:
            done = 0
            last: bytes | str = ""
            for code in codes:
                position: bytes | str = ""
                while True:
                    _, _, count, position, last = self._engine.run("purge", [q], code, last, position, SLICE)
                    done += count
                    if not position:
                        break
            return done

        return self._engine.with_queue(queue, act)

    # -- move

    def move(self, queue: str, ids: Sequence[str], target: str) -> list[Outcome]:
        parsed: list[bytes | Outcome] = []
        for text in ids:
            try:
                parsed.append(parse_id(text))
            except InvalidMessage as error:
                parsed.append(Outcome(as_answer(error)))
        raw_ids = [raw for raw in parsed if isinstance(raw, bytes)]
        if queue == target:
            self._engine.queue(queue)
            raise InvalidMessage(f"move: target {target!r} is the queue itself")

        def act(q: Known) -> list[Outcome]:
            there = self._engine.queue(target)
            if not raw_ids:
                self._looking.find(q, [])
            done: list[Outcome] = []
            for at in range(0, len(raw_ids), SLICE):
                done += self._move(q, there, raw_ids[at : at + SLICE])
            return done

        outcomes = iter(self._engine.with_queue(queue, act))
        return [one if isinstance(one, Outcome) else next(outcomes) for one in parsed]

    def _move(self, q: Known, target: Known, ids: Sequence[bytes]) -> list[Outcome]:
        answers: dict[bytes, PenstockError | None] = {}
        left = list(dict.fromkeys(ids))
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
            replies = self._transferring.transfer(q, target, transfers, MOVED)
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
        seen: set[bytes] = set()
        outcomes: list[Outcome] = []
        for raw_id in ids:
            error = answers[raw_id]
            if raw_id in seen and error is None:  # A repetition: as the first went, it is here no more.
                error = MessageNotFound(format_id(raw_id), q.name)
            seen.add(raw_id)
            outcomes.append(OK if error is None else Outcome(error))
        return outcomes

    # -- redrive

    def redrive(self, queue: str, limit: int, target: str | None) -> int:
        if target is not None:
            self._engine.queue(target)

        def act(q: Known) -> int:
            done = 0
            for index in ("y", "a"):
                done += self._redrive_from(q, index, limit - done, target)
            return done

        self._engine.with_queue(queue, lambda q: self._looking.find(q, []))
        return self._engine.with_queue(queue, act)

    def _redrive_from(self, q: Known, index: str, limit: int, target: str | None) -> int:
        done = passed = 0
        last_seq: int | None = None
        while done < limit:
            most = min(SLICE, limit - done)
            _, _, ids, records, bodies, seq = self._engine.run("dead", [q], index, passed, most)
            last_seq = int(seq) if last_seq is None else last_seq
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
            went = sum(self._redrive_to(q, goal, some) for goal, some in by_target.items())
            done += went
            passed += len(ids) - went
            if ended:
                break
        return done

    def _redrive_to(self, q: Known, goal: str, some: list[tuple[bytes, Found]]) -> int:
        if goal == q.name:
            dead = [(raw_id, found[0]) for raw_id, found in some if found[0].code == DEAD]
            if not dead:
                return 0
            seqs = b"".join([record.seq.to_bytes(8, "big") for _, record in dead])
            return int(self._engine.run("revive", [q], seqs, *[raw_id for raw_id, _ in dead])[2])
        try:
            there = self._engine.queue(goal)
        except QueueNotFound:
            return 0  # Their origin is gone: they stay where they are.
        transfers = [
            as_arriving(REDRIVEN, q.name, raw_id, found[0], stored_body(*found)) for raw_id, found in some
        ]
        return self._transferring.transfer(q, there, transfers, REDRIVEN).count(b"1")


def _why_not_moved(q: Known, target: Known, raw_id: bytes, found: Found | None) -> PenstockError | None:
    text = format_id(raw_id)
    if found is None or found[0].code == GONE:
        return MessageNotFound(text, q.name)
    state = STATES[found[0].code]
    if state == State.LEASED:
        return MessageLeased(text, q.name)
    if state == State.DONE or (state == State.DELAYED and target.settings.fifo):
        return InvalidMessage(f"message {text} is {state}: it cannot be moved to {target.name!r}")
    return None
