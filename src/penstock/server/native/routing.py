"""Which backend of a system makes a call that came for the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.backends.base import BackendHealth, BackendInfo, BackendMetrics, QueueBackend
from penstock.capabilities import Capabilities
from penstock.errors import QueueAlreadyExists, Unsupported
from penstock.penstock import DEFAULT, Penstock
from penstock.server.access import STORE
from penstock.server.native.permissions import queue_of

#: What clients see as the backend's name.
NAME = "http"
#: What is not served: snapshots and tickets name places, and a client's word for those is not taken.
REFUSED: dict[str, tuple[str, tuple[str, ...]]] = {
    "take_snapshot": ("bulk_read", ("rocksdb",)),
    **dict.fromkeys(("begin_write", "commit_write", "abort_write"), ("bulk_write", ("rocksdb",))),
    "restore": ("restore", ("rocksdb", "memory")),
}
#: What the facade does on all backends, with the arguments of the contract.
_OF_ALL = frozenset(
    {"queues", "replace_queues", "due", "check", "reindex", "rekey", "sweep"}
    | {"quarantine", "quarantine_get", "quarantine_drop"}
)


def served(capabilities: Capabilities) -> Capabilities:
    """Of a backend's, those that are served."""
    return msgspec.structs.replace(capabilities, **{flag: False for flag, _ in REFUSED.values()})


class Router:
    """Finds who makes a call. What it finds blocks, and is called in a thread."""

    def __init__(self, ps: Penstock) -> None:
        self._ps = ps
        self._default = ps.backends[DEFAULT]

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
            if method in ("health", "metrics"):
                return self._health if method == "health" else self._metrics
        home = self.home(method, args)
        if not hasattr(home, method):
            raise Unsupported(method, "consumer_groups", NAME, ("redis-streams",))
        function: Callable[..., Any] = getattr(home, method)
        return function

    def _info(self) -> BackendInfo:
        info = self._default.info()
        return msgspec.structs.replace(info, backend=NAME, capabilities=served(info.capabilities))

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
