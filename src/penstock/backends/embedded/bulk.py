"""Move, redrive, purge and the dropping of queues: bounded atomic slices that survive a crash.

A bulk operation of more than one slice is written down as a job, and each slice writes how far it is;
`sweep` takes up what a crash left.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence

import msgspec

from penstock.backends.burial import ORIGIN, revived
from penstock.backends.embedded import keys
from penstock.backends.embedded.calls import Call, keep, unpack_call
from penstock.backends.embedded.deadletter import is_taken
from penstock.backends.embedded.dropping import drop_slice
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Meta, StateCode
from penstock.backends.embedded.lookup import NO_BODY, STATES, Found, find_sound, ready_found
from penstock.backends.embedded.numbers import next_number
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import (
    MARK,
    Job,
    decode_job,
    decode_state,
    packed,
)
from penstock.backends.embedded.transitions import (
    arrive,
    drop_bodies,
    enter_line,
    enter_ready,
    leave,
    unhold,
)
from penstock.errors import (
    InvalidMessage,
    MessageLeased,
    MessageNotFound,
    PenstockError,
    QueueNotFound,
    StorageCorrupt,
    StorageError,
    as_answer,
    is_of_the_store,
)
from penstock.event import Kind
from penstock.message import OK, Outcome, format_id, parse_id

log = logging.getLogger("penstock")

SLICE = 500
#: Rows of jobs that one turn of the upkeep looks at.
JOBS_LOOKED_AT = 64
#: What a caller who asks again runs of its job at a time, and how often it looks at one that another runs.
SLICES_AT_ONCE = 16
LOOK_EVERY_S = 0.01


class Work:
    """A job and how far it is. `done` is stored; `position` is where to look on, in memory."""

    def __init__(self, job: Job, number: int | None = None, done: int = 0) -> None:
        self.job = job
        self.number = number
        self.done = done
        self.resumed = False
        self.position: dict[int, bytes] = {}
        self.outcomes: list[Outcome] = []

    @property
    def answer(self) -> int | list[Outcome]:
        return self.outcomes if self.job.what == "move" else self.done


class Bulk:
    """Runs bulk operations on one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: set[int] = set()
        self._resumed: dict[int, Work] = {}
        #: Jobs that met something damaged: left alone until the store is opened again.
        self._given_up: dict[int, str] = {}

    @property
    def given_up(self) -> list[str]:
        return list(self._given_up.values())

    # -- what callers ask for -------------------------------------------------------------------

    def purge(self, queue: str, codes: Sequence[StateCode]) -> int:
        return self._start(queue, lambda q: _bounded(Job("purge", q.qid, list(codes)), q))

    def redrive(self, queue: str, limit: int, target: str | None) -> int:
        def job(q: QueueState) -> Job:
            states = [int(StateCode.DEAD), int(StateCode.READY)]
            name = "" if target is None else self._engine.queue(target).name
            return _bounded(Job("redrive", q.qid, states, limit=limit, target=name), q)

        return self._start(queue, job)

    def move(self, queue: str, ids: Sequence[str], target: str) -> list[Outcome]:
        """Waiting and dead messages go to another queue under their own ids."""
        parsed: list[bytes | Outcome] = []
        for text in ids:
            try:
                parsed.append(parse_id(text))
            except InvalidMessage as error:
                parsed.append(Outcome(as_answer(error)))
        raw_ids = [raw for raw in parsed if isinstance(raw, bytes)]
        with self._engine.lock:
            self._engine.check_usable()
            q = self._engine.queue(queue)
            if (there := self._engine.queue(target)) is q:
                raise InvalidMessage(f"move: target {target!r} is the queue itself")
            at_ns = self._engine.clock.now_ns()
            call = self._calling()
            work = Work(Job("move", q.qid, at_ns=at_ns, target=there.name, ids=raw_ids, call=call))
        self._run(work, len(raw_ids) > SLICE)
        # Those that it had not come to when the queue was deleted.
        gone = [Outcome(QueueNotFound(queue))] * (len(raw_ids) - len(work.outcomes))
        outcomes = iter(work.outcomes + gone)
        return [one if isinstance(one, Outcome) else next(outcomes) for one in parsed]

    def resume(self, slices: int) -> int:
        """Take up jobs that nobody runs: after a crash, or the dropping of a queue."""
        engine, taken = self._engine, 0
        prefix = keys.meta(Meta.JOB)
        # A job has two rows at most; those that were given up stay, and must not hide the others.
        limit = JOBS_LOOKED_AT + 2 * len(self._given_up)
        with engine.lock:
            engine.check_usable()
            rows = list(engine.kv.scan(engine.meta, prefix, keys.after_prefix(prefix), limit=limit))
        for key, raw in rows:
            if len(key) == 5 and taken < slices:
                taken += self._take_up(int.from_bytes(key[1:], "big"), raw, slices - taken)
        return taken

    def finish(self, call: Call) -> None:
        """Bring a job that this call had begun, and a crash interrupted, to its end."""
        engine, found = self._engine, self._job_of(call)
        while found is not None:
            number, raw = found
            if number in self._given_up:
                raise StorageCorrupt(f"{self._given_up[number]}; run check with repair, and ask again")
            if not self._take_up(number, raw, SLICES_AT_ONCE):
                threading.Event().wait(LOOK_EVERY_S)  # Another thread is at it.
            with engine.lock:
                engine.check_usable()
                if engine.kv.get(_job_key(number), engine.meta) is None:
                    return

    def _job_of(self, call: Call) -> tuple[int, bytes] | None:
        engine, prefix, packed_call = self._engine, keys.meta(Meta.JOB), call.packed()
        with engine.lock:
            engine.check_usable()
            rows = list(engine.kv.scan(engine.meta, prefix, keys.after_prefix(prefix)))
        for key, raw in rows:
            with contextlib.suppress(StorageCorrupt):  # Somebody else's, or nobody can tell.
                if len(key) == 5 and decode_job(raw).call == packed_call:
                    return int.from_bytes(key[1:], "big"), raw
        return None

    def _take_up(self, number: int, raw: bytes, slices: int) -> int:
        """Run up to so many slices of a job, if it is nobody else's; how many it were."""
        if (done := self._claim(number)) is None:
            return 0
        taken = 0
        try:
            # Kept from call to call: where it has looked already is in memory alone.
            work = self._resumed.get(number)
            if work is None:
                work = self._resumed[number] = Work(decode_job(raw), number, done)
                work.outcomes = self._outcomes_so_far(work)
            work.resumed = True
            while taken < slices:
                taken += 1
                if self._slice(work):
                    del self._resumed[number]
                    break
        except BaseException as error:
            self._resumed.pop(number, None)
            if not isinstance(error, Exception) or is_of_the_store(error):
                raise
            self._given_up[number] = f"job {number} was left alone: {error}"
            log.error("%s", self._given_up[number])
        finally:
            self._running.discard(number)
        return taken

    def _calling(self) -> bytes:
        for call, _ in self._engine.calls.current:
            return b"" if call is None else call.packed()
        return b""

    def _claim(self, number: int) -> int | None:
        """How far the job is, if it is this thread's to run: still there, and nobody else's."""
        engine = self._engine
        with engine.lock:
            engine.check_usable()
            if number in self._running or number in self._given_up:
                return None
            if engine.kv.get(_job_key(number), engine.meta) is None:
                return None
            self._running.add(number)
            progress = engine.kv.get(_job_key(number) + b"p", engine.meta)
            return int.from_bytes(progress[1:], "big") if progress else 0

    def _outcomes_so_far(self, work: Work) -> list[Outcome]:
        """Of the ids that a move was through with when it was interrupted, told from where they are now."""
        job, engine = work.job, self._engine
        with engine.lock:
            q = engine.queue_by_number(job.qid)
            if job.what != "move" or q is None:
                return []
            went = job.ids[: work.done]
            target = engine.queues.get(job.target, q)
            refusals = [
                None if found is None else _why_not_moved(q, target, raw_id, found)
                for raw_id, found in zip(went, find_sound(engine, q, went), strict=True)
            ]
        return [OK if refusal is None else Outcome(refusal) for refusal in refusals]

    # -- slices ---------------------------------------------------------------------------------

    def _start(self, queue: str, make: Callable[[QueueState], Job]) -> int:
        with self._engine.lock:
            self._engine.check_usable()
            q = self._engine.queue(queue)
            job = make(q)
            job.call = self._calling()
            affected = sum(q.counters.counts[code] for code in job.states)
            work = Work(job)
        # A call of another process's may be asked again between two slices, however few it takes.
        self._run(work, affected > SLICE or bool(job.call))
        return work.done

    def _run(self, work: Work, long: bool) -> None:
        begun = False
        try:
            if long:
                with self._engine.lock, self._engine.transaction() as txn:
                    work.number = next_number(txn)
                    self._running.add(work.number)
                    txn.put(_job_key(work.number), packed(work.job), self._engine.meta)
            while not self._slice(work):
                begun = True
        except Exception:
            if work.number is not None and not begun:
                self._withdraw(work.number)
            raise
        finally:
            if work.number is not None:
                self._running.discard(work.number)

    def _withdraw(self, number: int) -> None:
        """A job of which nothing is done: its caller hears of an error, so nothing may come of it later."""
        with contextlib.suppress(StorageError), self._engine.lock, self._engine.transaction() as txn:
            txn.changed = True
            txn.delete(_job_key(number), self._engine.meta)

    def _slice(self, work: Work) -> bool:
        """One atomic step; True when the job is done."""
        with self._engine.lock, self._engine.transaction() as txn:
            q = self._engine.queue_by_number(work.job.qid)
            before = work.done
            if work.job.what == "drop":
                finished = drop_slice(txn, work.job.qid, work.position, SLICE)
            elif q is None:  # Dropped meanwhile: nothing is left to do.
                finished = True
            else:
                finished = _STEPS[work.job.what](txn, q, work)
            call = unpack_call(work.job.call)
            if finished and call is not None:
                keep(txn, call, work.answer)
            if work.number is not None:
                if finished:
                    txn.changed = True
                    txn.delete(_job_key(work.number), self._engine.meta)
                    txn.delete(_job_key(work.number) + b"p", self._engine.meta)
                elif work.done != before:
                    txn.put(_job_key(work.number) + b"p", MARK + keys.u64(work.done), self._engine.meta)
            return finished


def start_drop(txn: Transaction, qid: int) -> None:
    """Write down that everything of a queue goes; `resume` does it."""
    txn.put(_job_key(next_number(txn)), packed(Job("drop", qid)), txn.engine.meta)


def _job_key(number: int) -> bytes:
    return keys.meta(Meta.JOB, keys.u32(number))


def _bounded(job: Job, q: QueueState) -> Job:
    job.seq = q.counters.next_seq - 1
    job.order_ns = q.counters.last_order_ns
    return job


def _candidates(txn: Transaction, q: QueueState, work: Work, limit: int) -> list[Found]:
    """The next messages of the job's states that were there when it was called, without bodies."""
    engine, job = txn.engine, work.job
    out: list[Found] = []
    looked = 0
    for code in job.states:
        if code == StateCode.READY:
            rows = q.ready.scan(work.position.get(code))
        else:
            prefix = keys.state_prefix(q.qid, code)
            rows = engine.kv.scan(engine.state, work.position.get(code, prefix), keys.after_prefix(prefix))
        for key, value in rows:
            if looked == limit:
                return out
            looked += 1
            work.position[code] = key if code == StateCode.READY else key + b"\0"
            found = (
                ready_found(engine, q, (key, value))
                if code == StateCode.READY
                else Found(key[-16:], StateCode(code), decode_state(value), NO_BODY, fresh=False)
            )
            was_there = found.row.order_ns <= job.order_ns if found.fresh else found.row.seq <= job.seq
            if was_there:
                out.append(found)
    return out


def _purge_slice(txn: Transaction, q: QueueState, work: Work) -> bool:
    before = dict(work.position)
    gone = _candidates(txn, q, work, SLICE)
    if work.position == before:
        return True
    if gone:
        for found in gone:
            leave(txn, q, found)
        ids = [found.raw_id for found in gone]
        drop_bodies(txn, q, ids, q.counters.next_seq)
        txn.record(q, Kind.PURGED, ids, [found.row.attempts for found in gone])
        work.done += len(ids)
    return False


def _redrive_slice(txn: Transaction, q: QueueState, work: Work) -> bool:
    engine, job = txn.engine, work.job
    wanted = job.limit - work.done
    before = dict(work.position)
    candidates = _candidates(txn, q, work, SLICE) if wanted > 0 else []
    if wanted <= 0 or work.position == before:
        return True
    willing = [
        found
        for found in find_sound(engine, q, [found.raw_id for found in candidates])
        if isinstance(found, Found) and (found.code == StateCode.DEAD or ORIGIN in found.body.headers)
    ]
    while willing and work.done < job.limit:
        # Some may not go, for their ids exist there: others then take their place.
        batch, willing = willing[: job.limit - work.done], willing[job.limit - work.done :]
        by_target: dict[str, list[Found]] = {}
        for found in batch:
            by_target.setdefault(job.target or found.body.headers.get(ORIGIN, q.name), []).append(found)
        for name, group in by_target.items():
            if name == q.name:
                work.done += _revive_here(txn, q, group)
            elif name in engine.queues:
                work.done += len(_transfer(txn, q, engine.queue(name), group, Kind.REDRIVEN))
    return work.done >= job.limit


def _revive_here(txn: Transaction, q: QueueState, group: list[Found]) -> int:
    dead = [found for found in group if found.code == StateCode.DEAD]
    visible: list[int] = []
    for seq, found in enumerate(dead, start=q.counters.next_seq):
        leave(txn, q, found)
        row = found.row
        row.attempts, row.seq, row.since_ns, row.expires_at_ns = 0, seq, txn.now_ns, 0
        row.order_ns = q.next_order_ns(txn.now_ns)
        if q.lines_up:
            visible.append(enter_line(txn, q, found.raw_id, row))
        else:
            visible.append(txn.now_ns)
            enter_ready(txn, q, found.raw_id, row, fresh=False)
    if dead:
        txn.record(q, Kind.REDRIVEN, [found.raw_id for found in dead], due_ns=visible)
    return len(dead)


def _transfer(
    txn: Transaction, q: QueueState, target: QueueState, group: list[Found], kind: Kind
) -> set[bytes]:
    """Take messages out of one queue and into another; the ids that went."""
    there = find_sound(txn.engine, target, [found.raw_id for found in group])
    ids: list[bytes] = []
    visible: list[int] = []
    for found, other in zip(group, there, strict=True):
        if is_taken(other):
            continue
        if isinstance(other, Found):
            unhold(txn, target, other)
        leave(txn, q, found)
        body = revived(found.body)
        if kind == Kind.MOVED and found.code != StateCode.DEAD:
            body = msgspec.structs.replace(body, expires_at_ns=found.row.expires_at_ns)
        # A queue's own delay stays behind.
        own_ns = found.row.until_ns if found.code == StateCode.DELAYED else 0
        visible.append(arrive(txn, target, found.raw_id, body, target.counters.next_seq + len(ids), own_ns))
        ids.append(found.raw_id)
    if ids:
        drop_bodies(txn, q, ids, q.counters.next_seq)
        txn.record(q, kind, ids, extra=target.name)
        txn.record(target, Kind.ENQUEUED, ids, due_ns=visible, extra=q.name)
    return set(ids)


def _move_slice(txn: Transaction, q: QueueState, work: Work) -> bool:
    engine, job = txn.engine, work.job
    ids = job.ids[work.done : work.done + SLICE]
    if job.target not in engine.queues:  # Deleted meanwhile: what has not gone there stays here.
        rest = job.ids[work.done :]
        work.outcomes += [Outcome(QueueNotFound(job.target))] * len(rest)
        return True
    target = engine.queue(job.target)
    errors: dict[int, PenstockError] = {}
    group: list[Found] = []
    places: dict[bytes, int] = {}
    for place, (raw_id, found) in enumerate(zip(ids, find_sound(engine, q, ids), strict=True)):
        if raw_id in places:
            continue
        places[raw_id] = place
        if work.resumed and isinstance(found, Found) and found.body.enqueued_at_ns > job.at_ns:
            found = None  # Came after the call, under the id of one that went: not meant.
        refusal = _why_not_moved(q, target, raw_id, found)
        if refusal is not None:
            errors[place] = refusal
        elif isinstance(found, Found):
            group.append(found)
    went = _transfer(txn, q, target, group, Kind.MOVED)
    for place, raw_id in enumerate(ids):
        first = places[raw_id]
        if raw_id not in went and first not in errors:
            errors[first] = InvalidMessage(
                f"message {format_id(raw_id)} exists in {target.name!r} already; it was left where it is"
            )
        if place != first:  # A repetition: as the first went, it is here no more.
            errors[place] = errors.get(first) or MessageNotFound(format_id(raw_id), q.name)
    work.outcomes += [Outcome(errors[place]) if place in errors else OK for place in range(len(ids))]
    work.done += len(ids)
    return work.done >= len(job.ids)


def _why_not_moved(
    q: QueueState, target: QueueState, raw_id: bytes, found: Found | StorageCorrupt | None
) -> PenstockError | None:
    text = format_id(raw_id)
    if isinstance(found, StorageCorrupt):
        return found
    if found is None or found.code == StateCode.GONE:
        return MessageNotFound(text, q.name)
    if found.code == StateCode.LEASED:
        return MessageLeased(text, q.name)
    has_own_delay = found.code == StateCode.DELAYED and found.row.until_ns
    if found.code == StateCode.DONE or (has_own_delay and target.settings.fifo):
        state = STATES[found.code]
        return InvalidMessage(f"message {text} is {state}: it cannot be moved to {target.name!r}")
    return None


_STEPS = {"purge": _purge_slice, "redrive": _redrive_slice, "move": _move_slice}
