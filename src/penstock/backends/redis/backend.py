"""The backends on Redis: answer the backend contract from their parts."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NoReturn

import msgspec

from penstock.backends.arguments import check_lease_s, check_reason, checked_state
from penstock.backends.base import (
    BackendHealth,
    BackendInfo,
    BackendMetrics,
    CheckReport,
    CursorInfo,
    KeyStats,
    Progress,
    QuarantineItem,
    QueueStats,
    RekeyReport,
    Throttle,
)
from penstock.backends.bulk import (
    SNAPSHOT_LIFETIME_S,
    Snapshot,
    Staged,
    StoredMessage,
    Txn,
    WriteTicket,
    Written,
)
from penstock.backends.judging import silent
from penstock.backends.redis.capabilities import HAVING, LISTS_SORT, Sort
from penstock.backends.redis.catalogue import Catalogue
from penstock.backends.redis.checking import Checking
from penstock.backends.redis.connecting import Server
from penstock.backends.redis.engine import Engine
from penstock.backends.redis.ferrying import Ferrying
from penstock.backends.redis.health import NONE, channel_reasons, durability_of, examined
from penstock.backends.redis.hooking import Hooking
from penstock.backends.redis.journal import Journals
from penstock.backends.redis.keys import Keys
from penstock.backends.redis.leasing import Leasing
from penstock.backends.redis.looking import Looking
from penstock.backends.redis.moving import Moving
from penstock.backends.redis.numbers import Numbers
from penstock.backends.redis.planning import PlannedCatalogue
from penstock.backends.redis.quarantine import Quarantine
from penstock.backends.redis.records import CODES
from penstock.backends.redis.rekeying import Rekeying
from penstock.backends.redis.restoring import Restoring
from penstock.backends.redis.seals import Seals
from penstock.backends.redis.sending import Sending
from penstock.backends.redis.settling import Settling
from penstock.backends.redis.snapshots import Snapshots
from penstock.backends.redis.stream_keeping import StreamKeeping
from penstock.backends.redis.sweeping import Housekeeper, Sweeping
from penstock.backends.redis.transferring import Transferring
from penstock.backends.redis.user_state import UserState
from penstock.backends.redis.waiting import LOOK_EVERY_NS, Bells
from penstock.backends.redis.worlds import Worlds
from penstock.backends.redis.writing import Writing
from penstock.capabilities import Capabilities
from penstock.clock import Clock, to_ns
from penstock.codec.body import check_duration
from penstock.config import HookSettings
from penstock.errors import InvalidMessage, Unsupported
from penstock.event import Entry, Event
from penstock.message import (
    Delivery,
    DueItem,
    EnqueueResult,
    Message,
    NewMessage,
    Outcome,
    Page,
    check_count,
    checked_name,
    parse_id,
)
from penstock.redis_places import place_of
from penstock.settings import QueueSettings

FORMAT_VERSION = 1


class RedisBackend:
    """Queues on a server of the Redis family."""

    def __init__(
        self,
        server: Server,
        keys: Keys,
        seals: Seals,
        clock: Clock | None,
        rng: random.Random | None,
        path: str,
        sort: Sort = LISTS_SORT,
    ) -> None:
        self.name = sort.name
        self._server = server
        self._path = path
        self._durability = durability_of(server)
        self._channel_reasons = channel_reasons(server, keys)
        # What the server keeps no log of goes with its process, whatever is on a disk of an hour ago.
        is_cluster = server.settings.cluster
        self.capabilities: Capabilities = msgspec.structs.replace(
            sort.on_a_cluster if is_cluster else sort.capabilities, persistence=self._durability != NONE
        )
        engine = self._engine = Engine(server, keys, seals, clock, rng)
        self._state = UserState(engine)
        self._hooking = Hooking(engine, HookSettings(), self._state.get)
        self._worlds = Worlds(engine)
        self._catalogue = (PlannedCatalogue if is_cluster else Catalogue)(engine, self._worlds)
        streams = StreamKeeping(engine) if sort.store == "stream" else None
        self._bells = Bells(server, LOOK_EVERY_NS if streams is None else streams.look_every_ns)
        self._looking = Looking(engine)
        transferring = Ferrying(engine, self._looking) if is_cluster else Transferring(engine)
        settling = self._settling = Settling(engine, self._looking, self._hooking, transferring)
        self._sending = Sending(engine, self._looking, self._hooking, sort.name)
        self._leasing = Leasing(engine, self._looking, settling, self._bells)
        self._moving = Moving(engine, self._looking, transferring)
        self._journals = Journals(engine)
        self._numbers = Numbers(engine, self._leasing, settling, self._durability)
        place = place_of(server.settings)
        self._snapshots, self._writing = Snapshots(engine, place), Writing(engine, place)
        self._rekeying = Rekeying(engine, self._worlds, self._catalogue, self._snapshots, self._writing)
        self._restoring = Restoring(engine, sort.name)
        further = (self._snapshots.sweep, self._writing.resume)
        self._sweeping = Sweeping(
            engine, settling, self._worlds, self._rekeying, transferring, further, streams
        )
        self._quarantine = Quarantine(engine)
        self._checking = Checking(engine, self._quarantine, self._worlds, transferring)
        self._rekeying.tell_others()
        self._housekeeper: Housekeeper | None = None
        if clock is None:
            self._housekeeper = Housekeeper(self._sweeping, engine.closed)
            self._housekeeper.start()

    # -- queues

    def create_queue(self, settings: QueueSettings) -> None:
        self._hooking.check([settings])
        self._catalogue.create(settings)

    def update_queue(self, settings: QueueSettings, was: QueueSettings) -> bool:
        self._hooking.check([settings])
        return self._catalogue.update(settings, was)

    def delete_queue(self, name: str) -> None:
        self._catalogue.delete(name)

    def replace_queues(self, settings: Sequence[QueueSettings]) -> None:
        self._hooking.check(settings)
        self._catalogue.replace(settings)

    def declare_queues(self, settings: Sequence[QueueSettings]) -> None:
        self._hooking.check(settings)
        self._catalogue.declare(settings)

    def queues(self) -> list[QueueSettings]:
        return self._catalogue.settings()

    def queue(self, name: str) -> QueueSettings | None:
        return self._catalogue.get(name)

    # -- messages

    def enqueue(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        return self._sending.enqueue(queue, messages)

    def upsert(self, queue: str, messages: Sequence[NewMessage]) -> list[EnqueueResult]:
        return self._sending.upsert(queue, messages)

    def lease(
        self, queue: str, max_messages: int, lease_s: float | None, wait_s: float, consumer: str
    ) -> list[Delivery]:
        check_duration(wait_s, "wait_s")
        if lease_s is not None:
            check_lease_s(lease_s)
        check_count(max_messages, "max_messages")
        if consumer != "":
            checked_name(consumer, "consumer")
        if max_messages == 0:
            return []
        return self._leasing.lease(queue, max_messages, lease_s, wait_s, consumer)

    def ack(self, queue: str, receipts: Sequence[str]) -> list[Outcome]:
        return self._settling.ack(queue, receipts)

    def nack(self, queue: str, receipts: Sequence[str], delay_s: float | None, reason: str) -> list[Outcome]:
        check_reason(reason)
        if delay_s is not None:
            check_duration(delay_s, "delay_s")
        return self._settling.nack(queue, receipts, delay_s, reason)

    def reject(self, queue: str, receipts: Sequence[str], reason: str) -> list[Outcome]:
        check_reason(reason)
        return self._settling.reject(queue, receipts, reason)

    def extend(self, queue: str, receipts: Sequence[str], lease_s: float) -> list[Outcome]:
        check_lease_s(lease_s)
        return self._settling.extend(queue, receipts, to_ns(lease_s) // 1000)

    def move(self, queue: str, ids: Sequence[str], target: str) -> list[Outcome]:
        return self._moving.move(queue, ids, target)

    def redrive(self, queue: str, limit: int, target: str | None) -> int:
        check_count(limit, "limit")
        return self._moving.redrive(queue, limit, target)

    def purge(self, queue: str, states: Collection[str]) -> int:
        return self._moving.purge(queue, [CODES[checked_state(state)] for state in states])

    # -- looking

    def get_many(self, queue: str, ids: Sequence[str]) -> list[Message | None]:
        return self._looking.get_many(queue, [parse_id(text) for text in ids])

    def peek(self, queue: str, limit: int, offset: int) -> list[Message]:
        check_count(limit, "limit")
        check_count(offset, "offset")
        if limit == 0:
            self._engine.with_queue(queue, lambda q: self._looking.find(q, []))
        return self._looking.peek(queue, limit, offset)

    def page(self, queue: str, state: str, fairness_key: str | None, after: str | None, limit: int) -> Page:
        if limit == 0:
            raise InvalidMessage("limit is 0; accepted: whole numbers from 1")
        check_count(limit, "limit")
        if fairness_key is not None and not isinstance(fairness_key, str):
            raise InvalidMessage(f"fairness_key must be a str, not {type(fairness_key).__name__}")
        return self._looking.page(queue, checked_state(state), fairness_key, after, limit)

    def stats(self, queue: str) -> QueueStats:
        return self._numbers.stats(queue)

    def key_stats(self, queue: str, limit: int) -> list[KeyStats]:
        check_count(limit, "limit")
        return self._numbers.key_stats(queue, limit)

    def due(self, since_ns: int, until_ns: int | None, limit: int, after: str | None) -> list[DueItem]:
        check_count(limit, "limit")
        return self._numbers.due(since_ns, until_ns, limit, after)

    # -- journal

    def events(self, queue: str, after: int, limit: int) -> list[Event]:
        check_count(after, "after")
        check_count(limit, "limit")
        return self._journals.events(queue, after, limit)

    def open_cursor(self, queue: str, name: str, required: bool) -> CursorInfo:
        return self._journals.open_cursor(queue, name, required)

    def read_cursor(self, queue: str, name: str, limit: int) -> list[Event]:
        check_count(limit, "limit")
        return self._journals.read_cursor(queue, name, limit)

    def commit_cursor(self, queue: str, name: str, seq: int) -> None:
        self._journals.commit_cursor(queue, name, seq)

    def drop_cursor(self, queue: str, name: str) -> None:
        self._journals.drop_cursor(queue, name)

    def cursors(self, queue: str) -> list[CursorInfo]:
        return self._journals.cursors(queue)

    def append_entries(self, world: str, entries: Sequence[Entry]) -> list[str]:
        return self._worlds.append(world, entries)

    def scan_entries(self, world: str, **filters: Any) -> list[Entry]:
        return self._worlds.scan(world, **filters)

    def get_entries(self, ids: Sequence[str]) -> list[Entry | None]:
        return self._worlds.get(ids)

    def world_stats(self, world: str) -> dict[str, int]:
        return self._worlds.stats(world)

    def configure_world(self, world: str, retention_s: float | None, max_bytes: int | None) -> None:
        self._worlds.configure(world, retention_s, max_bytes)

    # -- state that hooks and users share

    def put_state(self, key: str, value: bytes) -> None:
        self._state.put(key, value)

    def get_state(self, key: str) -> bytes | None:
        return self._state.get(key)

    def delete_state(self, key: str) -> None:
        self._state.delete(key)

    # -- in bulk

    def take_snapshot(self, lifetime_s: float = SNAPSHOT_LIFETIME_S, id: str | None = None) -> Snapshot:
        return self._snapshots.take(lifetime_s, id)

    def begin_write(self, queue: str | None) -> WriteTicket:
        return self._writing.begin(queue)

    def commit_write(self, ticket: WriteTicket, txn: Txn, staged: Sequence[Staged]) -> Written:
        return self._writing.commit(ticket, txn, staged)

    def abort_write(self, ticket: WriteTicket, txn: Txn) -> None:
        self._writing.abort(ticket, txn)

    def restore(self, queue: str, messages: Sequence[StoredMessage]) -> list[EnqueueResult]:
        return self._restoring.restore(queue, messages)

    # -- token buckets: not here

    def set_throttle(self, key: str, rate_per_s: float, burst: float) -> None:
        self._no_throttles()

    def get_throttle(self, key: str) -> Throttle | None:
        self._no_throttles()

    def throttles(self) -> list[Throttle]:
        self._no_throttles()

    def delete_throttle(self, key: str) -> None:
        self._no_throttles()

    def _no_throttles(self) -> NoReturn:
        raise Unsupported("throttles", "throttling", self.name, HAVING["throttling"])

    # -- the backend itself

    def info(self) -> BackendInfo:
        return BackendInfo(
            backend=self.name,
            engine="redis",
            path=self._path,
            durability=self._durability,
            format_version=FORMAT_VERSION,
            capabilities=self.capabilities,
            sealed_with=self._engine.seals.active,
            rekey_from=self._rekeying.others(),
        )

    def health(self) -> BackendHealth:
        if self._engine.closed.is_set():
            return silent("the store is closed")
        own = [
            *self._channel_reasons,
            *self._hooking.reasons(),
            *self._rekeying.given_up,
            *self._own_reasons(),
        ]
        return examined(self._engine, self._numbers, self._durability, own, self.extra_health())

    def extra_health(self) -> dict[str, int]:
        """Numbers that a kind of store has of its own, as `HealthNumbers` names them: none here."""
        return {}

    def _own_reasons(self) -> Iterable[str]:
        """What else is wrong with stores of this sort."""
        return ()

    def metrics(self) -> BackendMetrics:
        return self._numbers.metrics()

    def check(self, repair: bool = False, progress: Progress | None = None) -> CheckReport:
        return self._checking.check(repair, progress)

    def reindex(self, progress: Progress | None = None) -> CheckReport:
        return self._checking.reindex(progress)

    def quarantine(self, limit: int, after: str | None) -> list[QuarantineItem]:
        check_count(limit, "limit")
        return self._quarantine.items(limit, after)

    def quarantine_get(self, item_id: str) -> bytes:
        return self._quarantine.content(item_id)

    def quarantine_drop(self, ids: Sequence[str]) -> int:
        return self._quarantine.drop(ids)

    def rekey(self, progress: Progress | None = None) -> RekeyReport:
        return self._rekeying.run(progress)

    def sweep(self, budget: int) -> int:
        return self._sweeping.sweep(budget)

    def close(self) -> None:
        if self._engine.closed.is_set():
            return
        self._engine.closed.set()
        if self._housekeeper is not None:
            self._housekeeper.join(5.0)
        self._server.close()
        self._bells.close()
        self._hooking.close()
