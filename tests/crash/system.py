"""What load and oracle ask of an open system: the facade's calls, also over a backend that a test built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.backends.base import CheckReport, QueueBackend
from penstock.journal import Journal, UserState
from penstock.queue import Queue
from penstock.settings import QueueSettings, queue_settings


class System(Protocol):
    """The part of `Penstock` that is used here."""

    state: UserState

    def create_queue(self, name: str, **settings: Any) -> Queue: ...

    def delete_queue(self, name: str) -> None: ...

    def queues(self) -> list[QueueSettings]: ...

    def queue(self, name: str) -> Queue: ...

    def journal(self, world: str) -> Journal: ...

    def sweep(self, budget: int = 100) -> int: ...

    def check(self) -> CheckReport: ...

    def close(self) -> None: ...


class BackendSystem:
    """`System` over one backend: `penstock.open` has no way to be given a store with faults."""

    def __init__(self, backend: QueueBackend) -> None:
        self._backend = backend
        self.state = UserState(backend)

    def create_queue(self, name: str, **settings: Any) -> Queue:
        self._backend.create_queue(queue_settings(name, settings))
        return Queue(self._backend, name)

    def delete_queue(self, name: str) -> None:
        self._backend.delete_queue(name)

    def replace_queues(self, queues: Sequence[QueueSettings]) -> None:
        self._backend.replace_queues(queues)

    def queues(self) -> list[QueueSettings]:
        return self._backend.queues()

    def queue(self, name: str) -> Queue:
        return Queue(self._backend, name)

    def journal(self, world: str) -> Journal:
        return Journal(self._backend, world)

    def sweep(self, budget: int = 100) -> int:
        return self._backend.sweep(budget)

    def check(self) -> CheckReport:
        return self._backend.check()

    def close(self) -> None:
        self._backend.close()
