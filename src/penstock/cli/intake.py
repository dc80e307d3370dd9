"""What `enqueue` has read goes into a queue by batches, and what was refused to whoever mends it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import typer

from penstock.cli.exits import wording
from penstock.cli.feed import Item, Source
from penstock.cli.rows import Row, bytes_field
from penstock.cli.session import Session

if TYPE_CHECKING:
    from penstock import EnqueueResult, Queue

#: A batch ends here too, so that large payloads do not pile up in memory.
BATCH_BYTES = 8 * 1024 * 1024


@dataclass
class Tally:
    """What became of the rows so far."""

    began: float
    accepted: int = 0
    duplicates: int = 0
    refused: int = 0
    last: str = ""
    """Everything up to here is stored, and nothing after it..."""
    unsure: str = ""
    """...unless a write was interrupted: then up to here, perhaps."""

    def row(self) -> Row:
        return {"accepted": self.accepted, "duplicates": self.duplicates, "refused": self.refused}

    def text(self) -> str:
        took_s = time.perf_counter() - self.began
        per_s = (self.accepted + self.duplicates) / took_s if took_s else 0
        return (
            f"{self.accepted:,} accepted, {self.duplicates:,} duplicate, {self.refused:,} refused "
            f"in {took_s:.1f} s ({per_s:,.0f}/s)"
        )

    def stopped(self) -> str:
        """How far it got, so that the rest can be given again."""
        perhaps = f" (what follows up to {self.unsure} may be stored too)" if self.unsure else ""
        return f"stopped after {self.last or 'nothing'}{perhaps}: {self.text()}"


class Intake:
    """Puts items into a queue by batches, and says what became of each."""

    def __init__(self, session: Session, queue: Queue, rejects: Callable[[Item], None], ids: bool) -> None:
        self._session = session
        self._queue = queue
        self._reject = rejects
        self._ids = ids
        self._waiting: list[Item] = []
        self._waiting_bytes = 0
        self.tally = Tally(time.perf_counter())

    def take(self, item: Item, batch: int) -> None:
        if item.message is None:
            self.tally.refused += 1
            self._reject(item)
            return
        self._waiting.append(item)
        self._waiting_bytes += len(item.message.payload)
        if len(self._waiting) >= batch or self._waiting_bytes >= BATCH_BYTES:
            self.store()

    def store(self) -> None:
        """Write what has been taken. If it fails, all before this batch is stored and nothing of it."""
        items, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not items:
            return
        try:
            results = self._queue.enqueue_many([item.message for item in items if item.message is not None])
        except KeyboardInterrupt:
            self.tally.unsure = place(items[-1])
            raise
        self._count(items[-1], results)
        for item, result in zip(items, results, strict=True):
            self._tell(item, result)

    def _count(self, last: Item, results: Sequence[EnqueueResult]) -> None:
        """The whole batch, before a word of it is written: whoever reads that may stop at any line."""
        self.tally.last = place(last)
        for result in results:
            if result.error is not None:
                self.tally.refused += 1
            elif result.duplicate:
                self.tally.duplicates += 1
            else:
                self.tally.accepted += 1

    def _tell(self, item: Item, result: EnqueueResult) -> None:
        if result.error is not None:
            self._reject(replace(item, reason=wording(result.error, self._session.given)))
        elif self._ids and self._session.out.as_json:
            found = {"id": result.id, "duplicate": result.duplicate}
            self._session.out.object({**found, "source": item.source, "line": item.line})
        elif self._ids:
            self._session.out.say(str(result.id))


def place(item: Item) -> str:
    return f"{item.source}, line {item.line}" if item.line else item.source


def reject_to(
    session: Session, path: str | None, sources: Sequence[Source], closing: ExitStack
) -> Callable[[Item], None]:
    """Refused rows go to standard error without their content, or with it to the end of a file."""
    if path is None:
        return lambda item: session.out.note(f"{place(item)}: {item.reason}")
    try:
        if any(_is_same_file(path, source) for source in sources):
            raise typer.BadParameter(f"{path} is being read; name another file for --rejects")
        # At its end: rows that an earlier run refused may be there still.
        file = closing.enter_context(open(path, "a", encoding="utf-8"))  # noqa: SIM115  (closed by the stack)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror or error}") from None

    def write(item: Item) -> None:
        found: Row = {"source": item.source, "line": item.line, "reason": item.reason}
        found.update(bytes_field("row", item.row))
        file.write(msgspec.json.encode(found).decode() + "\n")

    return write


def _is_same_file(path: str, source: Source) -> bool:
    """Whether a file is the one that is read. A terminal is, and may be."""
    if not os.path.exists(path):
        return False
    try:
        read = os.fstat(source.stream.fileno())
    except (OSError, ValueError):  # Standard input that is no file.
        return False
    return stat.S_ISREG(read.st_mode) and os.path.samestat(os.stat(path), read)
