"""Which backend of a system makes a call that came for the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec

from penstock.backends.base import BackendHealth, BackendInfo, BackendMetrics, QueueBackend
from penstock.backends.forwarding.answering import Answerer, Call, Served
from penstock.backends.forwarding.methods import REPEATABLE
from penstock.capabilities import Capabilities
from penstock.errors import PenstockError, QueueAlreadyExists, Unsupported
from penstock.penstock import DEFAULT, Penstock
from penstock.server.access import STORE
from penstock.server.endpoint import CallId
from penstock.server.native.permissions import queue_of
from penstock.settings import QueueSettings

#: What clients see as the backend's name.
NAME = "http"
#: Calls of bulk reads and writes, made by `Bulk`, with the capability that each needs. They are of one
#: backend, which a client cannot choose: where there are several, they are off.
BULK: dict[str, str] = {
    "take_snapshot": "bulk_read",
    **dict.fromkeys(("begin_write", "commit_write", "abort_write"), "bulk_write"),
}
#: What the facade does on all backends, with the arguments of the contract.
_OF_ALL = frozenset(
    {"queues", "replace_queues", "due", "check", "reindex", "rekey", "sweep"}
    | {"quarantine", "quarantine_get", "quarantine_drop"}
)


def served(capabilities: Capabilities, backends: int) -> Capabilities:
    """Of the default backend's, those that are served."""
    off = BULK.values() if backends > 1 else ()
    return msgspec.structs.replace(capabilities, **dict.fromkeys(off, False))


class Router:
    """Finds who makes a call. What it finds blocks, and is called in a thread."""

    def __init__(self, ps: Penstock) -> None:
        self._ps = ps
        self._default = ps.backends[DEFAULT]
        #: What is made of all backends.
        self._own: dict[str, Callable[..., Any]] = {
            "health": self._health,
            "metrics": self._metrics,
            "declare_queues": self._declare,
        }

    @property
    def backends(self) -> Mapping[str, QueueBackend]:
        return self._ps.backends

    def home(self, method: str, args: Sequence[Any]) -> QueueBackend:
        """The backend that the call's queue is on; the default one, if there is no such queue."""
        backends, queue = self._ps.backends, queue_of(method, args)
        if len(backends) > 1 and queue != STORE:
            for backend in backends.values():
                if backend.queue(queue) is not None:
                    if method == "create_queue" and backend is not self._default:
                        raise QueueAlreadyExists(queue)
                    return backend
        return self._default

    def function(self, method: str, args: Sequence[Any]) -> Callable[..., Any]:
        """What makes the call."""
        if method == "info":
            return self._info
        if len(self._ps.backends) > 1:
            if method in _OF_ALL:
                found: Callable[..., Any] = getattr(self._ps, method)
                return found
            if method in self._own:
                return self._own[method]
        home = self.home(method, args)
        if not hasattr(home, method):
            raise Unsupported(method, "consumer_groups", NAME, ("redis-streams",))
        function: Callable[..., Any] = getattr(home, method)
        return function

    def make(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        call: CallId | None,
        again: bool,
    ) -> Any:
        """Make it. On a store that can, its answer is written down with what it changes.

        `again`: it may have happened in an earlier life of the server.
        """
        if call is not None and method not in REPEATABLE:
            home = self.home(method, args)
            if hasattr(home, "serving") and len(self._ps.backends) == 1:
                asked = Call(call.caller, call.number, method, msgspec.Raw(), dict(kwargs))
                return Answerer(cast(Served, home)).answer_to(asked, args, again, lambda: True)
        return self.function(method, args)(*args, **kwargs)

    def forget(self, callers: Sequence[bytes]) -> None:
        """These will not ask again."""
        for backend in self._ps.backends.values():
            if hasattr(backend, "forget"):
                with suppress(PenstockError):
                    cast(Served, backend).forget(callers)

    def _info(self) -> BackendInfo:
        info = self._default.info()
        return msgspec.structs.replace(
            info, backend=NAME, capabilities=served(info.capabilities, len(self._ps.backends))
        )

    def _declare(self, settings: Sequence[QueueSettings]) -> None:
        """Each where it is; new ones on the default backend."""
        by_home: dict[str, list[QueueSettings]] = {}
        for one in settings:
            home = self.home("update_queue", [one])
            name = next(name for name, backend in self._ps.backends.items() if backend is home)
            by_home.setdefault(name, []).append(one)
        for name, some in by_home.items():
            self._ps.backends[name].declare_queues(some)

    def _health(self) -> BackendHealth:
        health = self._ps.health()
        reasons = [f"{name}: {reason}" for name, why in health.reasons.items() for reason in why]
        warnings = [f"{name}: {warning}" for name, why in health.warnings.items() for warning in why]
        return BackendHealth(health.status, reasons, health.numbers.get(DEFAULT), warnings)

    def _metrics(self) -> BackendMetrics:
        """All queues; sizes and times are those of the default backend."""
        found = self._ps.metrics()
        queues = {name: one for metrics in found.values() for name, one in metrics.queues.items()}
        default = found[DEFAULT] if DEFAULT in found else self._default.metrics()
        return msgspec.structs.replace(default, queues=queues)
