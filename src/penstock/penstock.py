"""Penstock: opens backends and routes each queue to its own."""

from __future__ import annotations

import builtins
import heapq
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, cast

import msgspec

from penstock import config as configuration
from penstock.backends.base import (
    BackendHealth,
    BackendInfo,
    BackendMetrics,
    CheckReport,
    HealthNumbers,
    Progress,
    QuarantineItem,
    QueueBackend,
    RekeyReport,
    Throttle,
)
from penstock.backends.bulk import (
    SNAPSHOT_LIFETIME_S,
    BulkBackend,
    BulkReader,
    BulkWriter,
    Snapshot,
    Staged,
    StoredMessage,
    Txn,
    WriteTicket,
    Written,
)
from penstock.backends.judging import silent
from penstock.backends.registry import check_config, naming, open_backend, open_reader, open_writer
from penstock.clock import Clock, SystemClock
from penstock.config import BackendSettings, Config
from penstock.errors import (
    BackendUnavailable,
    InvalidConfig,
    InvalidMessage,
    MessageNotFound,
    QueueAlreadyExists,
    QueueNotFound,
    StorageError,
    Unauthorized,
    Unsupported,
)
from penstock.event import Entry
from penstock.journal import Journal, Moment, UserState, moment_ns
from penstock.keyring import KeyProvider, configured_keys
from penstock.message import MAX_COUNT, DueItem, EnqueueResult, checked_batch
from penstock.queue import Queue
from penstock.settings import QueueSettings, queue_settings
from penstock.version import __version__

DEFAULT = configuration.DEFAULT


class Info(msgspec.Struct, frozen=True):
    """What is open: the version, where the configuration came from, and each backend by name."""

    version: str
    source: str
    backends: dict[str, BackendInfo]

    @property
    def default(self) -> BackendInfo:
        return self.backends[DEFAULT]


class Health(msgspec.Struct, frozen=True):
    """The worst status of any backend, and every reason and status, by backend."""

    status: str
    reasons: dict[str, list[str]]
    backends: dict[str, str] = {}
    #: What each is judged by; a backend of another package may have none.
    numbers: dict[str, HealthNumbers] = {}
    #: What can be lost by the way that a backend is set up, though all is well.
    warnings: dict[str, list[str]] = {}


def open(
    target: str | os.PathLike[str] | Config,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    keys: KeyProvider | None = None,
) -> Penstock:
    """Open a folder, a penstock.yaml or a URL. Everything is verified before this returns.

    With a `clock`, time and sweeps are the caller's; without one, a thread of the store's own sweeps.
    Encryption keys come from `keys`, if it is given, instead of where the configuration says.
    """
    return Penstock(configuration.resolve(target), clock, rng, keys)


class Penstock:
    """An open system: queues, wherever each of them lives. Safe to share between threads."""

    def __init__(
        self,
        config: Config,
        clock: Clock | None,
        rng: random.Random | None,
        keys: KeyProvider | None = None,
    ) -> None:
        self._config = config
        self._keys = keys
        self.clock = clock or SystemClock()
        self._backends: dict[str, QueueBackend] = {}
        try:
            check_config(config)  # All of it, before the first store is opened.
            for name, settings in config.all_backends().items():
                self._backends[name] = open_backend(settings, clock, rng, keys)
            self._declare_queues()
        except BaseException:
            self.close()
            raise
        self._default = self._backends[DEFAULT]
        self.state = UserState(self._default)
        self.throttles = Throttles(self._default)

    def _declare_queues(self) -> None:
        """Queues that the configuration names exist afterwards, as it says, each on its backend."""
        for name, backend in self._backends.items():
            existing = {settings.name: settings for settings in backend.queues()}
            for queue in existing:
                declared_on = self._config.queues[queue].backend if queue in self._config.queues else name
                if declared_on != name:
                    raise InvalidConfig(
                        f"{self._config.source}: queues.{queue}.backend is {declared_on!r}, but the queue "
                        f"lives on {name!r}; delete it there, or name that backend"
                    )
            declared = {q: c.settings for q, c in self._config.queues.items() if c.backend == name}
            if any(existing.get(queue) != settings for queue, settings in declared.items()):
                with naming(self._config.source, "queues"):
                    # Others may make queues of their own at the same time: these alone are spoken of.
                    backend.declare_queues([*declared.values()])

    @property
    def backends(self) -> Mapping[str, QueueBackend]:
        """By name, for those who serve or look after a whole system; queues are reached by `queue`."""
        return self._backends

    # -- queues

    def create_queue(self, name: str, *, backend: str = DEFAULT, **settings: Any) -> Queue:
        """Make a queue. Settings: see `QueueSettings`."""
        wanted = queue_settings(name, settings)
        target = self._backend(backend)
        for other in self._backends.values():
            if other is not target and other.queue(name) is not None:
                raise QueueAlreadyExists(name)
        target.create_queue(wanted)
        return Queue(target, name)

    def update_queue(self, name: str, **settings: Any) -> None:
        """Change some settings of a queue; the others stay, and so does what others change meanwhile."""
        backend = self._home(name)
        while (was := backend.queue(name)) is not None:
            values = {field: getattr(was, field) for field in QueueSettings.__struct_fields__[1:]}
            if backend.update_queue(queue_settings(name, {**values, **settings}), was):
                return
        raise QueueNotFound(name)

    def delete_queue(self, name: str) -> None:
        """Remove a queue and everything in it."""
        self._home(name).delete_queue(name)

    def replace_queues(self, queues: Sequence[QueueSettings | dict[str, Any] | str]) -> None:
        """Make these the queues of the default backend, all at once: others are deleted."""
        if isinstance(queues, str) or not isinstance(queues, Sequence):
            raise InvalidConfig(f"replace_queues takes a list of queues, not {type(queues).__name__}")
        wanted = [_settings(queue) for queue in queues]
        for name, backend in self._backends.items():
            if name != DEFAULT:
                for settings in wanted:
                    if backend.queue(settings.name) is not None:
                        raise QueueAlreadyExists(settings.name)
        self._default.replace_queues(wanted)

    def queues(self) -> list[QueueSettings]:
        """Every queue's settings, by name."""
        found = (settings for backend in self._backends.values() for settings in backend.queues())
        return sorted(found, key=lambda settings: settings.name)

    def queue(self, name: str) -> Queue:
        """The queue, or `QueueNotFound`."""
        return Queue(self._home(name), name)

    # -- journals

    def journal(self, world: str) -> Journal:
        """The user's own journal of that name; it comes into being with its first entry."""
        return Journal(self._default, world)

    def get_entries(self, ids: Sequence[str]) -> list[Entry | None]:
        """Entries by id, whichever world they are in; None for what is not there."""
        return list(self._default.get_entries(checked_batch(ids, "ids")))

    # -- the system

    def due(
        self, since: Moment = None, until: Moment = None, limit: int = 100, after: str | None = None
    ) -> list[DueItem]:
        """What falls due, across queues, earliest first; pass the last item's `position` as `after`."""
        since_ns, until_ns = moment_ns(since, "since") or 0, moment_ns(until, "until")
        # Items of one time go by backend: those before the one that the position is of are through.
        at_name, at_ns, position = self._due_position(after)
        found, passed = [], after is not None
        for name, backend in self._backends.items():
            here = name == at_name
            start_ns = max(since_ns, at_ns + 1 if passed and not here else at_ns)
            passed = passed and not here
            items = backend.due(start_ns, until_ns, limit, position if here else None)
            found.append([_with_backend(item, name) for item in items])
        return list(heapq.merge(*found, key=lambda item: item.at_ns))[:limit]

    def info(self) -> Info:
        infos = {name: backend.info() for name, backend in self._backends.items()}
        return Info(__version__, self._config.source, infos)

    def health(self) -> Health:
        found = {name: _health(backend) for name, backend in self._backends.items()}
        order = ("healthy", "degraded", "unhealthy")
        return Health(
            max((health.status for health in found.values()), key=order.index),
            {name: health.reasons for name, health in found.items() if health.reasons},
            {name: health.status for name, health in found.items()},
            {name: health.numbers for name, health in found.items() if health.numbers is not None},
            {name: health.warnings for name, health in found.items() if health.warnings},
        )

    def metrics(self) -> dict[str, BackendMetrics]:
        """Everything that is measured, by backend; `penstock.metrics` gives it to Prometheus.

        Backends that do not answer and queues that are damaged are left out; `health` says why.
        """
        found: dict[str, BackendMetrics] = {}
        for name, backend in self._backends.items():
            with suppress(StorageError, BackendUnavailable, InvalidConfig, Unauthorized):
                found[name] = backend.metrics()
        return found

    def check(self, repair: bool = False, progress: Progress | None = None) -> CheckReport:
        """Prove the stores' invariants by reading them; `.ok`, `.problems`.

        With `repair`, what can be mended is, the rest is moved to quarantine, and each problem's `action`
        says which. `progress` is called with what is read, how much of it, and of how much.
        """
        return _together([backend.check(repair, progress) for backend in self._backends.values()])

    def reindex(self, progress: Progress | None = None) -> CheckReport:
        """Rebuild every index from bodies and journals; nothing else is answered meanwhile."""
        return _together([backend.reindex(progress) for backend in self._backends.values()])

    def quarantine(self, limit: int = 100, after: str | None = None) -> list[QuarantineItem]:
        """What repairs took out of the stores, oldest first; pass the last item's id as `after`."""
        found = [backend.quarantine(limit, after) for backend in self._backends.values()]
        return list(heapq.merge(*found, key=lambda item: item.id))[:limit]

    def quarantine_get(self, item_id: str) -> bytes:
        """The bytes of an item, as they were in the store."""
        *others, last = self._backends.values()
        for backend in others:
            with suppress(MessageNotFound):
                return backend.quarantine_get(item_id)
        return last.quarantine_get(item_id)

    def quarantine_drop(self, ids: Sequence[str]) -> int:
        """Delete items for good; how many there were. The system journal keeps what they were."""
        return sum(backend.quarantine_drop(ids) for backend in self._backends.values())

    def rekey(self, progress: Progress | None = None) -> RekeyReport:
        """Encrypt what is stored with the key that new messages are encrypted with; see docs/encryption.md.

        Where encryption is off, decrypt it. Others may work meanwhile; after a crash it goes on by itself.
        """
        reports = [backend.rekey(progress) for backend in self._backends.values()]
        return RekeyReport(
            sum(report.records for report in reports),
            sum(report.rewritten for report in reports),
            sum(report.unreadable for report in reports),
        )

    def take_snapshot(
        self, *, backend: str = DEFAULT, lifetime_s: float = SNAPSHOT_LIFETIME_S, id: str | None = None
    ) -> Snapshot:
        """A moment of everything on a backend, for bulk readers in any process; see docs/tables.md.

        It goes when a reader releases it, or when nobody has read from it for `lifetime_s`. With `id`, a UUID
        that you choose, the snapshot of that id, if it is still there.
        """
        source = self._backend(backend)
        if not source.capabilities.bulk_read and not hasattr(source, "take_snapshot"):
            raise Unsupported("take_snapshot", "bulk_read", source.name, ("rocksdb",))
        return cast(BulkBackend, source).take_snapshot(lifetime_s, id)

    def begin_write(self, queue: str | None = None, *, backend: str = DEFAULT) -> WriteTicket:
        """Leave to stage rows for a queue in bulk, or with None for all of a backend's; see docs/bulk.md."""
        source = self._backend(backend)
        if queue is not None:
            source = self._home(queue)
            backend = next(name for name, one in self._backends.items() if one is source)
        ticket = self._bulk(source).begin_write(queue)
        return msgspec.structs.replace(ticket, backend=backend)

    def commit_write(self, ticket: WriteTicket, txn: Txn, staged: Sequence[Staged]) -> Written:
        """Enqueue what was staged, all of it, once; the same job again changes nothing."""
        return self._bulk(self._backend(ticket.backend)).commit_write(ticket, txn, staged)

    def abort_write(self, ticket: WriteTicket, txn: Txn) -> None:
        """Throw away what was staged, unless its commit has begun."""
        self._bulk(self._backend(ticket.backend)).abort_write(ticket, txn)

    def open_reader(self, snapshot: Snapshot, *, backend: str = DEFAULT) -> BulkReader:
        """A snapshot that was taken here, with the system's own keys and clock."""
        return open_reader(snapshot, self._keys_of(backend), self.clock)

    def open_writer(self, ticket: WriteTicket) -> BulkWriter:
        """What stages rows for a ticket that was given here, with the system's own keys."""
        return open_writer(ticket, self._keys_of(ticket.backend))

    def _keys_of(self, backend: str) -> KeyProvider | None:
        settings = self._config.all_backends()[backend]
        if self._keys is not None or isinstance(settings, BackendSettings):
            return self._keys
        return configured_keys(settings.encryption.key_file, settings.encryption.key_command)

    def _bulk(self, backend: QueueBackend) -> BulkBackend:
        if not hasattr(backend, "begin_write"):
            raise Unsupported("a bulk write", "bulk_write", backend.name, ("rocksdb",))
        return cast(BulkBackend, backend)

    def restore(self, queue: str, messages: Sequence[StoredMessage]) -> list[EnqueueResult]:
        """Put messages of another store into a queue as they stood there; one that is there is left alone."""
        target = self._home(queue)
        if not hasattr(target, "restore"):
            raise Unsupported("restore", "restore", target.name, ("rocksdb", "memory"))
        return cast(BulkBackend, target).restore(queue, checked_batch(messages, "messages"))

    def sweep(self, budget: int = 100) -> int:
        """Do up to `budget` slices of housekeeping on each backend; how many were done."""
        return sum(backend.sweep(budget) for backend in self._backends.values())

    def close(self) -> None:
        with ExitStack() as closing:  # Each of them, though another's closing fails.
            for backend in self._backends.values():
                closing.callback(backend.close)

    def __enter__(self) -> Penstock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _backend(self, name: str) -> QueueBackend:
        try:
            return self._backends[name]
        except (KeyError, TypeError):
            known = ", ".join(self._backends)
            raise InvalidConfig(f"backend {name!r} is not configured; configured: {known}") from None

    def _due_position(self, after: str | None) -> tuple[str, int, str | None]:
        """(backend, time, the backend's own position)"""
        if after is None:
            return "", 0, None
        name, at_ns, position = ("@@" + str(after)).rsplit("@", 2)
        if name[2:] not in self._backends or not at_ns.isdecimal() or int(at_ns) > MAX_COUNT:
            raise InvalidMessage(f"after {after!r:.60} is not the position of a due item")
        return name[2:], int(at_ns), position

    def _home(self, name: str) -> QueueBackend:
        for backend in self._backends.values():
            if backend.queue(name) is not None:
                return backend
        raise QueueNotFound(name)


def _health(backend: QueueBackend) -> BackendHealth:
    try:
        return backend.health()
    except (StorageError, BackendUnavailable) as error:
        return silent(str(error))


def _together(reports: Sequence[CheckReport]) -> CheckReport:
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    left = [len(one.problems) if one.remaining is None else one.remaining for one in reports]
    return CheckReport(
        [problem for report in reports for problem in report.problems],
        sum(report.queues for report in reports),
        sum(report.messages for report in reports),
        sum(report.events for report in reports),
        dict(counts),
        sum(left),
    )


class Throttles:
    """Token buckets: `ps.throttles`."""

    def __init__(self, backend: QueueBackend) -> None:
        self._backend = backend

    def set(self, key: str, rate_per_s: float, burst: float) -> None:
        """Deliver at most `rate_per_s` messages that name this key, `burst` of them at once."""
        self._backend.set_throttle(key, rate_per_s, burst)

    def get(self, key: str) -> Throttle | None:
        """The limit, and what is left of its tokens; None for a key without one."""
        return self._backend.get_throttle(key)

    def list(self) -> builtins.list[Throttle]:
        """Every limit, by key."""
        return self._backend.throttles()

    def delete(self, key: str) -> None:
        """No limit any more."""
        self._backend.delete_throttle(key)


def _with_backend(item: DueItem, name: str) -> DueItem:
    return msgspec.structs.replace(item, position=f"{name}@{item.at_ns}@{item.position}")


def _settings(queue: QueueSettings | dict[str, Any] | str) -> QueueSettings:
    if isinstance(queue, QueueSettings):
        queue = msgspec.structs.asdict(queue)
    if isinstance(queue, str):
        return queue_settings(queue, {})
    if not isinstance(queue, dict):
        raise InvalidConfig(f"replace_queues takes names, dicts or settings, not {type(queue).__name__}")
    values = dict(queue)
    if "name" not in values:
        raise InvalidConfig("a queue in replace_queues has no name")
    return queue_settings(values.pop("name"), values)
