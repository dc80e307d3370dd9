"""A queue's settings, which every backend stores; and how any store encrypts, and limits scripts."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.errors import InvalidConfig, InvalidMessage
from penstock.message import checked_name

DAY_S = 86_400.0
MAX_DURATION_S = 10 * 365 * DAY_S
MAX_SCRIPT_BYTES = 64 * 1024
MAX_ANNOTATIONS_BYTES = 64 * 1024


class EncryptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`key_id` names the key that new records are sealed with. `enabled` None: as the store was, so far.

    Keys come from the environment, `key_file` (absolute once read) or `key_command` (its words).
    """

    enabled: bool | None = None
    key_id: str = "main"
    key_file: str | None = None
    key_command: str | tuple[str, ...] | None = None


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Beyond one of these, a backend is degraded; None: however much there is of it."""

    max_latency_s: float = 0.25
    max_error_rate: float = 0.05
    max_lag: int | None = 10_000
    max_memory_ratio: float = 0.9
    max_oldest_age_s: float | None = None
    max_depth: int | None = None


class HookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of a queue's script may take: processor time, and memory in bytes."""

    time_limit_ms: int = 10
    memory_limit: int = 2**20


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When a failed message comes back, if the nack does not say.

    `fixed` waits `delay_s`; `exponential` waits `delay_s`·2ⁿ up to `max_delay_s`, with `jitter` a
    uniformly random part of it; `list` takes `delays_s` in turn and repeats the last.
    """

    policy: Literal["fixed", "exponential", "list"] = "fixed"
    delay_s: float = 0.0
    max_delay_s: float = 3600.0
    jitter: bool = True
    delays_s: tuple[float, ...] = ()


class QueueSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be set for one queue."""

    name: str
    lease_s: float = 30.0
    max_attempts: int = 5
    dead_letter: str | None = None
    fifo: bool = False
    #: Of a fifo queue: how long each message waits from when it came in. Counts for those that wait already.
    delay_s: float = 0.0
    retention_s: float = 0.0
    dead_retention_s: float | None = None
    dedup_window_s: float = 300.0
    journal_retention_s: float | None = 7 * DAY_S
    journal_max_bytes: int | None = None
    retry: Retry = Retry()
    max_leased: int | None = None
    max_leased_per_key: int | None = None
    compress_over_bytes: int | None = None
    on_enqueue: str | None = None
    on_failure: str | None = None
    #: What others note about the queue, which Penstock keeps and does not read.
    annotations: dict[str, str] = {}


#: setting -> (lowest, highest) accepted, both inclusive.
_RANGES: dict[str, tuple[float, float]] = {
    "lease_s": (0.001, MAX_DURATION_S),
    "max_attempts": (1, 1_000_000),
    "delay_s": (0, MAX_DURATION_S),
    "retention_s": (0, MAX_DURATION_S),
    "dead_retention_s": (0.001, MAX_DURATION_S),
    "dedup_window_s": (0, MAX_DURATION_S),
    "journal_retention_s": (0.001, MAX_DURATION_S),
    "journal_max_bytes": (1, 2**62),
    "max_leased": (1, 2**31),
    "max_leased_per_key": (1, 2**31),
    "compress_over_bytes": (0, 2**31),
}


_RETRY_KEYS = Retry.__struct_fields__[1:]


def queue_settings(name: str, values: dict[str, object]) -> QueueSettings:
    """Settings from plain values, or `InvalidConfig` naming the queue, the key and what is accepted."""
    _check_name(name, "queue name", "")
    known = QueueSettings.__struct_fields__[1:]
    for key in values:
        if key not in known:
            raise InvalidConfig(f"queue {name!r}: unknown setting {key!r}; accepted: {', '.join(known)}")
    settings = _converted(name, values)
    for key, (low, high) in _RANGES.items():
        value = getattr(settings, key)
        if value is not None and not low <= value <= high:
            shown = f"is {value!r}" if abs(value) < 2**64 else "is out of range"
            raise InvalidConfig(f"queue {name!r}: {key} {shown}; accepted: {low} to {high}")
    if settings.delay_s and not settings.fifo:
        raise InvalidConfig(
            f"queue {name!r}: delay_s goes with fifo; in other queues each message has its own delay_s"
        )
    _check_retry(name, settings.retry)
    _check_scripts(settings)
    _check_annotations(settings)
    if settings.dead_letter is not None:
        _check_name(settings.dead_letter, "dead_letter", name)
    if settings.dead_letter == name:
        raise InvalidConfig(f"queue {name!r}: dead_letter is the queue itself; name another queue")
    return settings


def world_limits(retention_s: object, max_bytes: object) -> tuple[float | None, int | None]:
    """What a world may be told to keep, or `InvalidMessage` naming what is accepted; None for no limit."""
    kept_s = _world_limit("retention_s", retention_s, *_RANGES["journal_retention_s"])
    size = _world_limit("max_bytes", max_bytes, *_RANGES["journal_max_bytes"])
    if size is not None and size != int(size):
        raise InvalidMessage(f"max_bytes is {size!r}; accepted: whole numbers, or None")
    return kept_s, None if size is None else int(size)


def _world_limit(key: str, value: object, low: float, high: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidMessage(f"{key} is {value!r:.40}; accepted: {low} to {high}, or None")
    return value


def _converted(name: str, values: dict[str, object]) -> QueueSettings:
    plain = {"name": name, **values}
    retry = values.get("retry")
    if isinstance(retry, Retry):
        plain["retry"] = msgspec.structs.asdict(retry)
    try:
        return msgspec.convert(plain, QueueSettings)
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        accepted = ""
        if "retry" in str(error):
            accepted = f"; accepted: policy fixed, exponential or list, and {', '.join(_RETRY_KEYS)}"
        raise InvalidConfig(f"queue {name!r}: {error}{accepted}") from None


def _check_name(value: str, what: str, queue: str) -> None:
    try:
        checked_name(value, what)
    except InvalidMessage as error:
        raise InvalidConfig(f"queue {queue!r}: {error}" if queue else str(error)) from None


def _check_scripts(settings: QueueSettings) -> None:
    """Their sizes; what is in them is checked by the backend that will run them."""
    for key in ("on_enqueue", "on_failure"):
        script = getattr(settings, key)
        try:
            size = len(script.encode()) if script is not None else 0
        except UnicodeEncodeError:
            raise InvalidConfig(f"queue {settings.name!r}: {key} has a lone surrogate: not UTF-8") from None
        if size > MAX_SCRIPT_BYTES:
            raise InvalidConfig(
                f"queue {settings.name!r}: {key} has {size} bytes; accepted: up to {MAX_SCRIPT_BYTES}"
            )


def _check_annotations(settings: QueueSettings) -> None:
    size = 0
    for key, value in settings.annotations.items():
        _check_name(key, "annotations: a name", settings.name)
        try:
            size += len(key.encode()) + len(value.encode())
        except UnicodeEncodeError:
            raise InvalidConfig(
                f"queue {settings.name!r}: annotations: {key!r} has a lone surrogate: not UTF-8"
            ) from None
    if size > MAX_ANNOTATIONS_BYTES:
        raise InvalidConfig(
            f"queue {settings.name!r}: annotations have {size} bytes; accepted: up to {MAX_ANNOTATIONS_BYTES}"
        )


def _check_retry(name: str, retry: Retry) -> None:
    delays = (retry.delay_s, retry.max_delay_s, *retry.delays_s)
    if not all(0 <= delay <= MAX_DURATION_S for delay in delays):
        raise InvalidConfig(
            f"queue {name!r}: retry delays must be 0 to {MAX_DURATION_S:.0f} seconds, not {delays}"
        )
    if retry.policy == "list" and not retry.delays_s:
        raise InvalidConfig(f"queue {name!r}: retry.delays_s is needed by policy 'list': a list of seconds")
    if retry.policy != "list" and retry.delays_s:
        raise InvalidConfig(f"queue {name!r}: retry.delays_s goes with policy 'list' only")
