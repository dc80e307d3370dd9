"""The backend contract over HTTP: calls are made again until they are answered, and happen once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.backends.base import BackendInfo, Progress
from penstock.backends.bulk import SNAPSHOT_LIFETIME_S, Snapshot, WriteTicket
from penstock.backends.forwarding.contract import Forwarded
from penstock.backends.forwarding.methods import METHODS, encoded
from penstock.backends.http import peer
from penstock.backends.http.peer import Peer
from penstock.backends.http.place import Place

#: What takes as long as there is to do.
_LONG = frozenset(
    {"check", "reindex", "rekey", "sweep", "purge", "redrive", "replace_queues", "delete_queue"}
    | {"declare_queues"}
    | {"take_snapshot", "commit_write", "abort_write"}
)
#: Where these have the time that they wait.
_WAITS = {"lease": 3, "lease_group": 4}


class HttpBackend(Forwarded):
    """A store behind a server. Safe to call from any thread."""

    def __init__(self, place: Place) -> None:
        self._peer = Peer(place)
        # Whoever opens a store wants to know at once that it cannot be reached.
        try:
            info: BackendInfo = self._make("info", (), {}, patience_s=0)
        except BaseException:
            self.close()
            raise
        self.name = info.backend
        self.capabilities = info.capabilities

    def _call(
        self, method: str, *args: Any, progress: Progress | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._make(method, args, kwargs or {}, peer.PATIENCE_S)

    def _make(self, method: str, args: Sequence[Any], kwargs: dict[str, Any], patience_s: float) -> Any:
        self._peer.check_usable()
        answer = self._peer.ask(
            method,
            f"/v1/call/{method}",
            encoded(method, args, kwargs),
            timeout_s=_timeout_s(method, args),
            patience_s=patience_s,
        )
        return self._peer.understood(method, answer, METHODS[method].answer)

    # -- what the server gives leave for says which server that is

    def take_snapshot(self, lifetime_s: float = SNAPSHOT_LIFETIME_S, id: str | None = None) -> Snapshot:
        taken = super().take_snapshot(lifetime_s, id)
        return msgspec.structs.replace(taken, place=self._here(taken.place))

    def begin_write(self, queue: str | None) -> WriteTicket:
        ticket = super().begin_write(queue)
        return msgspec.structs.replace(ticket, place=self._here(ticket.place))

    def _here(self, text: str) -> str:
        return f"{self._peer.place.shared()}#{text}"

    def close(self) -> None:
        self._peer.close()


def _timeout_s(method: str, args: Sequence[Any]) -> float | None:
    if method in _LONG:
        return None
    wait_s = args[_WAITS[method]] if method in _WAITS else 0
    # What is no time is the server's to refuse.
    is_time = isinstance(wait_s, int | float) and 0 <= wait_s < threading.TIMEOUT_MAX
    return peer.ANSWER_WITHIN_S + (wait_s if is_time else 0)
