"""Mending messages: each is settled in one state by what is stored of it and what the journal says."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.backends.embedded import keys
from penstock.backends.embedded.checking.evidence import Evidence, last_events, restored
from penstock.backends.embedded.checking.findings import Finding
from penstock.backends.embedded.checking.standing import (
    CODES,
    Placed,
    Standing,
    body_of,
    index_rows,
    place,
    usable_row,
)
from penstock.backends.embedded.checking.view import View
from penstock.backends.embedded.engine import Engine, Transaction
from penstock.backends.embedded.keys import Due, StateCode
from penstock.backends.embedded.lookup import CODES as CODE_OF
from penstock.backends.embedded.lookup import STATES, fresh_row
from penstock.backends.embedded.quarantine import keep
from penstock.backends.embedded.queue_state import QueueState
from penstock.backends.embedded.rows import StateRow, encode_state
from penstock.codec.body import Body
from penstock.errors import StorageCorrupt
from penstock.event import Kind

#: Messages that one write settles: the store answers nobody else meanwhile.
SETTLED_AT_ONCE = 2000

#: What is mended by an event that says how the message is stored.
_RECORDED = ("fold_differs", "fold_illegal", "body_left", "state_missing")


def settle_all(engine: Engine, number: int, findings: list[Finding]) -> None:
    """Settle the messages of one queue that something was found about."""
    by_id: dict[bytes, list[Finding]] = {}
    for finding in findings:
        by_id.setdefault(finding.raw_id, []).append(finding)
    ids = list(by_id)
    for at in range(0, len(ids), SETTLED_AT_ONCE):
        chunk = ids[at : at + SETTLED_AT_ONCE]
        with engine.lock:
            q = engine.queue_by_number(number)
            if q is None:
                return
            view = View(engine.kv, engine)
            try:
                evidence = last_events(view, q, chunk)
                with engine.lock, engine.transaction() as txn:
                    for raw_id in chunk:
                        _Settling(txn, view, q, raw_id, evidence).run(by_id[raw_id])
            finally:
                view.release()
                q.unload()


class _Settling:
    """One message, under the lock."""

    def __init__(
        self, txn: Transaction, view: View, q: QueueState, raw_id: bytes, evidence: Evidence
    ) -> None:
        self._txn = txn
        self._view = view
        self._q = q
        self._raw_id = raw_id
        self._evidence = evidence
        self._done: list[str] = []
        self._why = ""

    def run(self, findings: list[Finding]) -> None:
        self._why = "; ".join(dict.fromkeys(finding.what for finding in findings))
        standing = self._standing()
        body = body_of(standing.body)
        placed = self._decide(standing, body) if body is not None else None
        if placed is None:
            self._remove(standing, body)
        rows: dict[bytes, tuple[str, bytes]] = {}
        if placed is not None:
            rows = {key: (space, value) for space, key, value in index_rows(self._q, placed)}
            self._write(standing, placed, rows)
        self._delete_strays(standing, body, rows, findings)
        if placed is not None and any(finding.kind in _RECORDED for finding in findings):
            self._done.append("recorded as it is stored")
        if self._done or self._lost(standing, findings):
            self._record(placed)
        action = ", ".join(dict.fromkeys(self._done)) or "found in order"
        for finding in findings:
            finding.action = action

    def _standing(self) -> Standing:
        q, raw_id = self._q, self._raw_id
        state_keys = [keys.state(q.qid, code, raw_id) for code in CODES]
        rows = [self._read("state", key) for key in state_keys]
        states = [(code, raw) for code, raw in zip(CODES, rows, strict=True) if raw is not None]
        return Standing(raw_id, self._read("messages", q.prefix + raw_id), states)

    def _read(self, space: str, key: bytes) -> bytes | None:
        """The row; one that cannot be read is as good as lost."""
        try:
            return self._view.get(space, key)
        except StorageCorrupt:
            self._txn.delete(key, self._txn.engine.kv.space(space))
            self._done.append("unreadable rows given up")
            return None

    # -- deciding -----------------------------------------------------------------------------------

    def _decide(self, standing: Standing, body: Body) -> Placed | None:
        """Its one state; every other state row goes to quarantine. None: it is not in the queue."""
        usable: dict[StateCode, StateRow] = {}
        for code, raw in standing.states:
            row = usable_row(self._q, code, raw, body)
            if row is None:
                self._keep("state", keys.state(self._q.qid, code, standing.raw_id), raw)
            else:
                usable[code] = row
        if not usable:
            return self._by_journal(body)
        code = self._named(usable)
        for other, raw in standing.states:
            if other in usable and other != code:
                self._keep("state", keys.state(self._q.qid, other, standing.raw_id), raw)
        return Placed(standing.raw_id, code, usable[code], fresh=False)

    def _named(self, usable: dict[StateCode, StateRow]) -> StateCode:
        """Of several states the one that the journal names, else the one entered last."""
        last = self._evidence.last.get(self._raw_id)
        named = CODE_OF.get(last.state) if last is not None and last.state is not None else None
        if named in usable:
            return named
        return max(usable, key=lambda code: (usable[code].seq, code))

    def _by_journal(self, body: Body) -> Placed | None:
        q, raw_id = self._q, self._raw_id
        last = self._evidence.last.get(raw_id)
        if last is None:
            return Placed(raw_id, StateCode.READY, fresh_row(q, body), fresh=True)
        placed = restored(q, raw_id, body, last)
        if placed is not None:
            if not placed.fresh:
                self._done.append("state restored from the journal")
            return placed
        held = keys.held(q.qid, last.event.seq, raw_id)
        if self._read("held", held) is None:
            return None
        self._done.append("kept for cursors, as the journal says")
        row = StateRow(0, last.event.seq, last.event.at_ns, 0, 0, 0, 1, b"")
        return Placed(raw_id, StateCode.GONE, row, fresh=False)

    # -- doing --------------------------------------------------------------------------------------

    def _keep(self, space: str, key: bytes, value: bytes) -> None:
        keep(self._txn, self._q.name, space, key, value, self._why)
        self._done.append("moved to quarantine")

    def _remove(self, standing: Standing, body: Body | None) -> None:
        """What is left of it goes to quarantine, and the message from its queue."""
        q = self._q
        if standing.body is not None:
            self._keep("messages", q.prefix + standing.raw_id, standing.body)
        if body is None:
            for code, raw in standing.states:
                self._keep("state", keys.state(q.qid, code, standing.raw_id), raw)

    def _write(self, standing: Standing, placed: Placed, rows: dict[bytes, tuple[str, bytes]]) -> None:
        txn, q, engine = self._txn, self._q, self._txn.engine
        if not placed.fresh:
            raw = encode_state(placed.row)
            if (placed.code, raw) not in standing.states:
                txn.mark(q)
                txn.put(keys.state(q.qid, placed.code, placed.raw_id), raw, engine.state)
        for key, (space, value) in rows.items():
            if self._read(space, key) == value:
                continue
            txn.mark(q)
            txn.put(key, value, engine.kv.space(space))
            self._done.append(f"{space} row rebuilt")
            if space == "ready":
                q.ready.add(txn, placed.row.lane, [(key, value, None, None)])
            elif space == "due":
                if key[0] == Due.LINE:
                    engine.lines.note(q.qid, 0)
                else:
                    engine.note_due(txn, Due(key[0]), keys.parse_due(key)[1])

    def _delete_strays(
        self,
        standing: Standing,
        body: Body | None,
        rows: dict[bytes, tuple[str, bytes]],
        findings: Iterable[Finding],
    ) -> None:
        """Index rows that were found, or that belong to a state which it is not in."""
        strays = {(finding.space, finding.key) for finding in findings if finding.kind.endswith("_stray")}
        for code, raw in standing.states:
            other = place(self._q, standing._replace(states=[(code, raw)]), body)
            if other is not None:
                strays |= {(space, key) for space, key, _ in index_rows(self._q, other)}
        for space, key in strays:
            if key not in rows and self._read(space, key) is not None:
                self._txn.mark(self._q)
                self._txn.delete(key, self._txn.engine.kv.space(space))
                self._done.append(f"{space} row removed")

    def _lost(self, standing: Standing, findings: list[Finding]) -> bool:
        """Whether the journal has a message of which nothing is stored."""
        lost = standing.body is None and self._evidence.alive(self._raw_id)
        if lost and any(finding.kind == "body_missing" for finding in findings):
            self._done.append("recorded as lost")
            return True
        return False

    def _record(self, placed: Placed | None) -> None:
        txn, q = self._txn, self._q
        if placed is None or placed.code == StateCode.GONE:
            txn.record(q, Kind.REPAIRED, [self._raw_id], reason=self._why)
            return
        row, state = placed.row, STATES[placed.code]
        txn.record(
            q,
            Kind.REPAIRED,
            [self._raw_id],
            row.attempts,
            row.until_ns,
            row.consumer,
            self._why,
            state,
        )
