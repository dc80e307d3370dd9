"""Consumer groups of queues on streams: the first to lease has the queue's own line, others get their own.

A group that comes later is entered in the queue's row first: from then on whatever is enqueued goes to it,
too. Then it is given what waits in the queue, a slice at a time; whoever finds that undone goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from penstock.backends.base import GroupInfo
from penstock.backends.redis.catalogue import Catalogue
from penstock.backends.redis.engine import (
    AT_ONCE,
    BETWEEN,
    JOINING,
    LEAVING,
    MOST_CHANGES,
    WHOLE,
    Engine,
    GroupRow,
    Known,
    QueueChanged,
    QueueRow,
    restless,
)
from penstock.backends.redis.runs import runs_if_told, settled_runs
from penstock.errors import InvalidMessage, QueueNotFound
from penstock.message import OK, Outcome, checked_name, parse_receipt

DEFAULT = "default"
MOST_GROUPS = 16


class Groups:
    """The consumer groups of one store's queues."""

    def __init__(self, engine: Engine, catalogue: Catalogue) -> None:
        self._engine = engine
        self._catalogue = catalogue

    def usual(self, queue: str) -> str:
        """The group of those who name none."""
        own = self._engine.server.settings.queues.get(queue)
        return own.consumer_group if own is not None and own.consumer_group else DEFAULT

    def line(self, queue: str, group: str) -> str:
        """Where a group leases from; it is made where there is none."""
        known = self._engine.queue(queue)
        if known.group == group:
            return queue
        found = _find(known.groups, group)
        if found is None or found.stage != WHOLE:
            self.create(queue, group)
            if self._engine.queue(queue).group == group:
                return queue
        return queue + BETWEEN + group

    def create(self, queue: str, group: str) -> None:
        """Whoever comes first has the queue's own line; a later one sees everything that waits there."""
        checked_name(group, "group")
        while True:
            self._engine.forget(queue)
            found = _find(self._engine.queue(queue).groups, group)
            if found is None:
                self._catalogue.revise(queue, lambda row: self._with(row, group))
            elif found.stage == JOINING:
                self._join(queue, found)
            elif found.stage == LEAVING:
                self._leave(queue, found)
            else:
                return

    def _with(self, row: QueueRow, group: str) -> QueueRow | None:
        if _find(row.groups, group) is not None:
            return None
        if not row.groups:
            return msgspec.structs.replace(row, groups=(GroupRow(group, row.number),))
        if len(row.groups) >= MOST_GROUPS:
            raise InvalidMessage(
                f"queue {row.settings.name!r} has {MOST_GROUPS} consumer groups, and may have no more; "
                "drop one of them"
            )
        number = int(self._engine.server.command("HINCRBY", self._engine.keys.store, "numbers", 1))
        return msgspec.structs.replace(row, groups=(*row.groups, GroupRow(group, number, JOINING)))

    def _join(self, queue: str, group: GroupRow) -> None:
        """Give the group what waits: from the beginning, whoever began it, for what was given is known."""
        try:
            self._patiently(queue, group, "join")
        except QueueNotFound:
            return  # Dropped meanwhile, or its queue deleted: whoever wants it looks again.
        self._catalogue.revise(queue, lambda row: _staged(row, group, WHOLE))

    def _patiently(self, queue: str, group: GroupRow, script: str) -> None:
        """All slices; a queue that stays locked, or whose line has no counters, is told of."""
        try:
            self._slices(queue, group, script, MOST_CHANGES)
        except QueueChanged as changed:
            raise restless(queue) from changed

    def _slices(self, queue: str, group: GroupRow, script: str, attempts: int) -> None:
        """One after the other; `QueueChanged` if one of them was refused so many times."""
        server, closed = self._engine.server, self._engine.closed
        cursor, is_all, runs, attempt = b"0", False, runs_if_told(server), 0
        while not is_all:
            own, line = self._lines(queue, group)
            try:
                if script == "join":
                    if cursor == b"end" and (now := settled_runs(server, own.keys[0], closed)) != runs:
                        cursor, runs = b"0", now  # A place in a scan is of one run of the server.
                    is_all = cursor == b"end"
                    sent = (b"0" if is_all else cursor, int(is_all))
                    cursor = self._engine.run("join", [own, line], *sent)[2]
                    cursor = b"end" if cursor == b"0" else cursor
                else:
                    _, _, cursor, left = self._engine.run("part", [line], cursor)
                    is_all = cursor == b"0" and left == 0
                attempt = 0
            except QueueChanged:
                is_all, attempt = False, attempt + 1
                if attempt >= attempts:
                    raise
                self._engine.forget(queue)
                # Of a cluster, too: who changed the row may have died before the lines were.
                self._engine.patience(attempt)

    def _lines(self, queue: str, group: GroupRow) -> tuple[Known, Known]:
        """Of the queue and of this very group; `QueueNotFound` where another has its name by now."""
        for _ in range(2):
            own, line = self._engine.queue(queue), self._engine.queue(queue + BETWEEN + group.name)
            if line.number == group.number:
                return own, line
            self._engine.forget(queue)  # What was seen last may also be the one before.
        raise QueueNotFound(queue)

    # -- dropping

    def drop(self, queue: str, group: str) -> None:
        """What the group alone still had goes; nothing of that is nobody's."""
        checked_name(group, "group")
        self._engine.forget(queue)
        groups = self._engine.queue(queue).groups
        found = _find(groups, group)
        if found is None:
            raise InvalidMessage(f"queue {queue!r} has no consumer group {group!r:.60}")
        if groups[0].name == group:
            raise InvalidMessage(
                f"group {group!r:.60} has the own line of queue {queue!r}: purge it, or delete the queue"
            )
        self._catalogue.revise(queue, lambda row: _staged(row, found, LEAVING))
        self._leave(queue, found)

    def _leave(self, queue: str, group: GroupRow) -> None:
        self._left(queue, group, lambda: self._patiently(queue, group, "part"))

    def _left(self, queue: str, group: GroupRow, part: Callable[[], None]) -> None:
        try:
            part()
        except QueueNotFound:
            return  # Somebody else came to the end of it.

        def without(row: QueueRow) -> QueueRow | None:
            left = tuple(one for one in row.groups if one.number != group.number or one.stage != LEAVING)
            return None if left == row.groups else msgspec.structs.replace(row, groups=left)

        self._catalogue.revise(queue, without)

    def finish(self, queue: str) -> None:
        """Go on with what somebody who dropped a group left undone; not while a repair has the queue."""
        for one in self._engine.queue(queue).groups:
            if one.stage == LEAVING:
                part = partial(self._slices, queue, one, "part", AT_ONCE)
                self._left(queue, one, part)

    # -- looking

    def infos(self, queue: str) -> list[GroupInfo]:
        out = []
        self._engine.forget(queue)
        for one in self._engine.queue(queue).groups:
            if one.stage == LEAVING:
                continue
            address = queue + BETWEEN + one.name
            numbers = self._engine.with_queue(address, lambda q: self._engine.run("stream", [q]))
            _, _, _, pending, consumers, lag, _ = numbers
            out.append(GroupInfo(one.name, pending, lag, consumers))
        return out

    def by_line(
        self, queue: str, receipts: Sequence[str], act: Callable[[str, Sequence[str]], list[Outcome]]
    ) -> list[Outcome]:
        """Act on receipts where they belong: each names its group by a number."""
        groups = self._engine.queue(queue).groups
        if BETWEEN in queue:
            return act(queue, receipts)
        if len(groups) < 2:
            # By far the most: all of the own line. What is not may be of a group that came since.
            outcomes = act(queue, receipts)
            strange = [
                at for at, one in enumerate(outcomes) if not one.ok and not _is_of(groups, receipts[at])
            ]
            if strange:
                self._engine.forget(queue)
        else:
            outcomes, strange = [OK] * len(receipts), list(range(len(receipts)))
            if not all(_is_of(groups, receipt) for receipt in receipts):
                self._engine.forget(queue)  # Of a group that came since, or that is gone.
        lines = {one.number: queue + BETWEEN + one.name for one in self._engine.queue(queue).groups}
        places: dict[str, list[int]] = {}
        for at in strange:
            places.setdefault(lines.get(_number(receipts[at]) or -1, queue), []).append(at)
        for address, some in places.items():
            for at, outcome in zip(some, act(address, [receipts[at] for at in some]), strict=True):
                outcomes[at] = outcome
        return outcomes


def _is_of(groups: Sequence[GroupRow], receipt: object) -> bool:
    """Whether a receipt is of one of these groups, or none at all."""
    number = _number(receipt)
    return number is None or any(one.number == number for one in groups)


def _find(groups: Sequence[GroupRow], name: str) -> GroupRow | None:
    return next((one for one in groups if one.name == name), None)


def _staged(row: QueueRow, group: GroupRow, stage: int) -> QueueRow | None:
    """The row with this very group in another stage; a group that is being dropped stays so."""
    found = next((one for one in row.groups if one.number == group.number), None)
    if found is None or found.stage in (stage, LEAVING):
        return None
    groups = (msgspec.structs.replace(one, stage=stage) if one is found else one for one in row.groups)
    return msgspec.structs.replace(row, groups=tuple(groups))


def _number(receipt: object) -> int | None:
    parsed = parse_receipt(receipt)  # type: ignore[arg-type]  # It says what it cannot be.
    return None if parsed is None else int.from_bytes(parsed[1][:4], "big")
