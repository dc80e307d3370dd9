"""What the owner of a store answers for calls of other processes: whose they are, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from penstock.backends.embedded import calls, reads
from penstock.backends.embedded.bulk import Bulk
from penstock.backends.embedded.calls import Call
from penstock.backends.embedded.engine import Engine
from penstock.message import Delivery


class Served:
    """A part of the backend: what its listener asks for, and nobody else."""

    _engine: Engine
    _bulk: Bulk

    def serving(self, caller: bytes, number: int) -> AbstractContextManager[None]:
        """Within it, what this thread asks is that call of another process."""
        return self._engine.calls.serving([(Call(caller, number), None)])

    def serving_together(
        self, callers: Sequence[tuple[tuple[bytes, int] | None, int]]
    ) -> AbstractContextManager[None]:
        """Within it, what this thread asks is these calls, each with its number of items (None: nobody's)."""
        return self._engine.calls.serving([(call and Call(*call), count) for call, count in callers])

    def answer_of(self, caller: bytes, number: int) -> bytes | None:
        """What the call was answered, encoded, if it happened; a bulk operation is brought to its end."""
        call = Call(caller, number)
        self._bulk.finish(call)
        with self._engine.lock:
            self._engine.check_usable()
            return calls.kept(self._engine, call)

    def delivered(self, queue: str, receipts: Sequence[str]) -> list[Delivery]:
        """Deliveries once more, by their receipts, as far as their leases hold."""
        with self._engine.lock:
            self._engine.check_usable()
            return reads.delivered(self._engine, self._engine.queue(queue), receipts)

    def callers(self) -> list[bytes]:
        with self._engine.lock:
            self._engine.check_usable()
            return calls.callers(self._engine)

    def forget(self, callers: Sequence[bytes]) -> None:
        with self._engine.lock, self._engine.transaction() as txn:
            calls.forget(txn, callers)
