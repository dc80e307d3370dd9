"""What a backend can do, as data: the conformance suite proves every flag, on or off."""

from __future__ import annotations

import msgspec


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """One flag per power; `MEANING` says what each promises."""

    atomic_ack: bool = False
    consumer_groups: bool = False
    replay: bool = False
    idempotent_enqueue: bool = False
    transactions: bool = False
    persistence: bool = False
    clustering: bool = False
    time_to_live: bool = False
    prioritization: bool = False
    batch_operations: bool = False
    delay: bool = False
    fairness: bool = False
    throttling: bool = False
    journal: bool = False
    fifo: bool = False
    bulk_read: bool = False
    bulk_write: bool = False
    restore: bool = False

    def names(self) -> list[str]:
        """The flags that are on."""
        return [name for name in self.__struct_fields__ if getattr(self, name)]


#: flag -> (what it promises where it is on, what needs it and raises `Unsupported` where it is off;
#: "" for a property of the engine that no call asks for).
MEANING: dict[str, tuple[str, str]] = {
    "atomic_ack": ("an ack removes the message and its lease in one step", ""),
    "consumer_groups": ("every group of consumers sees every message", "lease(group=…)"),
    "replay": ("events already read can be read again", "cursor.commit to an earlier position"),
    "idempotent_enqueue": ("a repeated dedup_id stores nothing", "dedup_id"),
    "transactions": ("changes that span queues are one atomic write", ""),
    "persistence": ("what was acknowledged survives the process", ""),
    "clustering": ("queues spread over several machines", ""),
    "time_to_live": ("waiting messages expire", "ttl_s"),
    "prioritization": ("higher levels first, lower ones never starve", "priority other than 4"),
    "batch_operations": ("a batch is one call to the storage engine", ""),
    "delay": ("messages become visible later", "delay_s"),
    "fairness": ("fairness keys share deliveries by weight", "fairness_key, weight"),
    "throttling": ("token buckets limit throttle keys", "throttle_keys, throttles"),
    "journal": ("every change is an event with a gap-free number", "events, cursor, journal"),
    "fifo": ("strict order with one message of a key in flight", "fifo=True"),
    "bulk_read": ("whole tables are read as Arrow, from a snapshot", "take_snapshot, Spark"),
    "bulk_write": ("whole tables are enqueued from Arrow, once", "begin_write, Spark"),
    "restore": ("messages of another store are put in as they stood there", "restore"),
}
