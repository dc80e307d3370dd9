"""A backend that can do as little as a backend may: what it lacks, it refuses by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.backends.base import BackendInfo
from penstock.backends.embedded.opening import open_memory
from penstock.capabilities import Capabilities
from penstock.clock import Clock
from penstock.config import BackendSettings, StorageSettings
from penstock.errors import InvalidMessage, Unsupported
from penstock.message import DEFAULT_PRIORITY, Delivery, EnqueueResult, NewMessage, Outcome
from penstock.settings import QueueSettings

HAVING = ("embedded",)

#: flag -> whether a message needs it.
NEEDS: dict[str, Callable[[NewMessage], bool]] = {
    "idempotent_enqueue": lambda m: isinstance(m.dedup_id, str) and m.dedup_id != "",
    "time_to_live": lambda m: m.ttl_s is not None,
    "prioritization": lambda m: m.priority != DEFAULT_PRIORITY,
    "delay": lambda m: bool(m.delay_s),
    "throttling": lambda m: bool(m.throttle_keys),
    "fairness": lambda m: m.fairness_key != "" or m.weight != 1,
}
REFUSED = ("events", "open_cursor", "read_cursor", "commit_cursor", "drop_cursor", "cursors")
REFUSED_THROTTLES = ("set_throttle", "get_throttle", "throttles", "delete_throttle")
REFUSED_BULK = {"take_snapshot": "bulk_read", "begin_write": "bulk_write", "restore": "restore"}
REFUSED_WORLDS = ("append_entries", "scan_entries", "get_entries", "world_stats", "configure_world")


class PlainBackend:
    """The embedded backend in memory, less everything that can be left out."""

    def __init__(self, clock: Clock | None, rng: random.Random | None) -> None:
        self.name = "plain"
        self.capabilities = Capabilities(batch_operations=True, atomic_ack=True, transactions=True)
        self._whole: Any = open_memory(StorageSettings(engine="memory", path=""), clock, rng)

    def __getattr__(self, name: str) -> Any:
        if name in REFUSED or name in REFUSED_WORLDS:
            raise self._unsupported(name, "journal")
        if name in REFUSED_BULK:
            raise self._unsupported(name, REFUSED_BULK[name])
        if name in REFUSED_THROTTLES:
            raise self._unsupported(name, "throttling")
        return getattr(self._whole, name)

    def _unsupported(self, what: str, flag: str) -> Unsupported:
        return Unsupported(what, flag, self.name, HAVING)

    # -- queues

    def _check_settings(self, settings: QueueSettings) -> None:
        if settings.fifo:
            raise self._unsupported(f"queue {settings.name!r}: fifo=True", "fifo")
        if settings.retry.delay_s or settings.retry.delays_s:
            raise self._unsupported(f"queue {settings.name!r}: retry", "delay")

    def create_queue(self, settings: QueueSettings) -> None:
        self._check_settings(settings)
        self._whole.create_queue(settings)

    def update_queue(self, settings: QueueSettings, was: QueueSettings) -> bool:
        self._check_settings(settings)
        return bool(self._whole.update_queue(settings, was))

    def replace_queues(self, settings: Sequence[QueueSettings]) -> None:
        for one in settings:
            self._check_settings(one)
        self._whole.replace_queues(settings)

    def declare_queues(self, settings: Sequence[QueueSettings]) -> None:
        for one in settings:
            self._check_settings(one)
        self._whole.declare_queues(settings)

    # -- messages

    def _lacking(self, message: object) -> Unsupported | None:
        if not isinstance(message, NewMessage):
            return None
        for flag, needed in NEEDS.items():
            if needed(message):
                return self._unsupported(f"a message that needs {flag}", flag)
        return None

    def _answered(
        self,
        call: Callable[[str, list[NewMessage]], list[EnqueueResult]],
        queue: str,
        messages: Sequence[Any],
    ) -> list[EnqueueResult]:
        refused = [self._lacking(message) for message in messages]
        rest = [message for message, error in zip(messages, refused, strict=True) if error is None]
        answers = iter(call(queue, rest))
        return [next(answers) if error is None else EnqueueResult(None, error) for error in refused]

    def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        return self._answered(self._whole.enqueue, queue, messages)

    def upsert(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        return self._answered(self._whole.upsert, queue, messages)

    def lease(self, queue: str, *args: Any) -> list[Delivery]:
        deliveries: list[Delivery] = self._whole.lease(queue, *args)
        return deliveries

    def nack(self, queue: str, receipts: Sequence[str], delay_s: float | None, reason: str) -> list[Outcome]:
        if delay_s is not None and (isinstance(delay_s, bool) or not isinstance(delay_s, int | float)):
            raise InvalidMessage(f"delay_s is {delay_s!r}; accepted: 0")
        if delay_s is not None and delay_s > 0:
            raise self._unsupported("nack(delay_s=…)", "delay")
        outcomes: list[Outcome] = self._whole.nack(queue, receipts, delay_s, reason)
        return outcomes

    # -- itself

    def info(self) -> BackendInfo:
        whole: BackendInfo = self._whole.info()
        return msgspec.structs.replace(whole, backend=self.name, capabilities=self.capabilities)


def open_plain(settings: BackendSettings, clock: Clock | None, rng: random.Random | None) -> PlainBackend:
    return PlainBackend(clock, rng)
