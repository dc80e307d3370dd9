"""Makes the calls of others, each once: also one that is made again because its answer was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.backends.base import Progress, QueueBackend
from penstock.backends.forwarding.methods import METHODS, REPEATABLE, decode_receipts
from penstock.message import Delivery


class Served(QueueBackend, Protocol):
    """A backend that remembers what it answered, so that a call that is made again happens once."""

    def serving(self, caller: bytes, number: int) -> AbstractContextManager[None]:
        """Within it, what this thread asks is that call."""
        ...

    def serving_together(
        self, callers: Sequence[tuple[tuple[bytes, int] | None, int]]
    ) -> AbstractContextManager[None]:
        """Within it, what this thread asks is these calls, each with its number of items (None: nobody's)."""
        ...

    def answer_of(self, caller: bytes, number: int) -> bytes | None:
        """What the call was answered, encoded, if it has happened."""
        ...

    def lease_while(self, listening: Callable[[], bool], queue: str, *args: Any) -> list[Delivery]: ...

    def delivered(self, queue: str, receipts: Sequence[str]) -> list[Delivery]: ...

    def callers(self) -> list[bytes]: ...

    def forget(self, callers: Sequence[bytes]) -> None: ...


class Call(NamedTuple):
    """The `number`th call of a caller, as it came."""

    caller: bytes
    number: int
    method: str
    args: msgspec.Raw
    kwargs: dict[str, Any]


class Answerer:
    """Makes a backend's calls for others, each once."""

    def __init__(self, backend: Served) -> None:
        self._backend = backend

    def answer(
        self, call: Call, again: bool, listening: Callable[[], bool], progress: Progress | None = None
    ) -> object:
        """The call's answer. `again`: it may have happened already, for the caller's connection was new."""
        args = METHODS[call.method].decode_arguments(call.args)
        return self.answer_to(call, args, again, listening, progress)

    def answer_to(
        self,
        call: Call,
        args: tuple[Any, ...],
        again: bool,
        listening: Callable[[], bool],
        progress: Progress | None = None,
    ) -> object:
        """The same for who has read the arguments already."""
        method, name, backend = METHODS[call.method], call.method, self._backend
        if name in REPEATABLE:
            kwargs = call.kwargs if progress is None else {**call.kwargs, "progress": progress}
            return getattr(backend, name)(*args, **kwargs)
        if again and (kept := backend.answer_of(call.caller, call.number)) is not None:
            if name == "lease":
                return backend.delivered(args[0], decode_receipts(kept))
            return method.answer.decode(kept)
        with backend.serving(call.caller, call.number):
            if name == "lease":
                return backend.lease_while(listening, *args)
            return getattr(backend, name)(*args, **call.kwargs)
