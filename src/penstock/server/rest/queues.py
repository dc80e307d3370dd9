"""Routes of queues: their settings, their numbers, and what is done with all that is in them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.backends.base import GroupInfo, KeyStats, QueueStats
from penstock.penstock import DEFAULT
from penstock.queue import WAITING
from penstock.server.native import permissions
from penstock.server.rest.route import Call, Route
from penstock.server.rest.shapes import DONE, MOST, Answered, Asked, Changed, Done, Limit
from penstock.settings import QueueSettings, Retry, queue_settings


class Settings(Asked):
    """Settings of a queue; what is not there is left as it is, or has its default in a new one."""

    lease_s: float | UnsetType = UNSET
    max_attempts: int | UnsetType = UNSET
    dead_letter: str | UnsetType | None = UNSET
    fifo: bool | UnsetType = UNSET
    delay_s: float | UnsetType = UNSET
    retention_s: float | UnsetType = UNSET
    dead_retention_s: float | UnsetType | None = UNSET
    dedup_window_s: float | UnsetType = UNSET
    journal_retention_s: float | UnsetType | None = UNSET
    journal_max_bytes: int | UnsetType | None = UNSET
    retry: Retry | UnsetType = UNSET
    max_leased: int | UnsetType | None = UNSET
    max_leased_per_key: int | UnsetType | None = UNSET
    compress_over_bytes: int | UnsetType | None = UNSET
    on_enqueue: str | UnsetType | None = UNSET
    on_failure: str | UnsetType | None = UNSET
    annotations: dict[str, str] | UnsetType = UNSET


class NewQueue(Settings):
    """Settings of a queue that is made, and the backend that it is made on."""

    backend: str = DEFAULT


class NamedSettings(Settings, kw_only=True):
    """Settings of one queue among others."""

    name: str


class AllQueues(Asked):
    """All queues that there shall be on the default backend."""

    queues: Annotated[list[NamedSettings], Meta(max_length=MOST)]


class Queues(Answered):
    """Queues by name, with all of their settings."""

    queues: list[QueueSettings]


class OfGroup(Asked):
    """`group`: as a consumer group has it."""

    group: str | None = None


class OfKeys(OfGroup):
    """How many keys, and of which consumer group."""

    limit: Limit = 100


class KeyNumbers(Answered):
    """Fairness keys, those with most waiting first."""

    keys: list[KeyStats]


class Length(Answered):
    """Delayed, ready and leased messages together."""

    length: int


class Purge(OfGroup):
    """The state of what goes; without one, what is delayed or ready."""

    state: str | None = None


class Redrive(OfGroup):
    """How many dead messages, and where to; without a target, to where each came from."""

    limit: Limit = 100
    target: str | None = None


class Groups(Answered):
    """Consumer groups in the order in which they came."""

    groups: list[GroupInfo]


def list_queues(call: Call) -> Queues:
    """The queues that the key may do something with, by name."""
    return Queues([one for one in call.ps.queues() if permissions.sees(call.who, one.name)])


def replace_queues(call: Call, asked: AllQueues) -> Done:
    """Make these the queues of the default backend, all at once: others are deleted."""
    call.ps.replace_queues([_given(one) for one in asked.queues])
    return DONE


def get_queue(call: Call) -> QueueSettings:
    """A queue's settings."""
    return call.queue().settings()


def create_queue(call: Call, asked: NewQueue) -> QueueSettings:
    """Make a queue; 409 if there is one of that name."""
    call.ps.create_queue(call.name, **_given(asked))
    return call.queue().settings()


def update_queue(call: Call, asked: Settings) -> QueueSettings:
    """Change some settings of a queue; the others stay."""
    call.ps.update_queue(call.name, **_given(asked))
    return call.queue().settings()


def delete_queue(call: Call) -> Done:
    """Remove a queue and everything in it."""
    call.ps.delete_queue(call.name)
    return DONE


def queue_stats(call: Call, asked: OfGroup) -> QueueStats:
    """A queue's numbers, at once however much is in it."""
    return call.queue(asked.group).stats()


def queue_length(call: Call, asked: OfGroup) -> Length:
    """How many messages wait or are leased."""
    return Length(call.queue(asked.group).length())


def key_stats(call: Call, asked: OfKeys) -> KeyNumbers:
    """Numbers of the fairness keys that have most waiting, first."""
    return KeyNumbers(list(call.queue(asked.group).key_stats(asked.limit)))


def purge(call: Call, asked: Purge) -> Changed:
    """Remove delayed and ready messages, or those of one state."""
    return Changed(
        call.make("purge", call.line(asked.group), WAITING if asked.state is None else (asked.state,))
    )


def redrive(call: Call, asked: Redrive) -> Changed:
    """Send dead messages back to where they came from, or to a target."""
    return Changed(call.make("redrive", call.line(asked.group), asked.limit, asked.target))


def list_groups(call: Call) -> Groups:
    """The queue's consumer groups, with what is leased and what waits in each."""
    return Groups(list(call.queue().groups()))


def create_group(call: Call) -> Done:
    """Make a consumer group, if there is none of that name."""
    call.queue().create_group(call.path["group"])
    return DONE


def drop_group(call: Call) -> Done:
    """Remove a consumer group; what it alone had not processed goes."""
    call.queue().drop_group(call.path["group"])
    return DONE


def _given(asked: Settings) -> dict[str, Any]:
    given: dict[str, Any] = msgspec.to_builtins(asked)
    return given


def _changed(call: Call, asked: Settings) -> tuple[QueueSettings]:
    """What is set now, for permissions: what was set before was allowed then."""
    given = _given(asked)
    given.pop("backend", None)
    return (queue_settings(call.name, given),)


def _redriven(call: Call, asked: Redrive) -> tuple[str, int, str | None]:
    return call.name, asked.limit, asked.target


ROUTES = (
    Route("GET", "/queues", list_queues, "queues"),
    Route("PUT", "/queues", replace_queues, "replace_queues"),
    Route("GET", "/queues/{queue}", get_queue, "queue"),
    Route("PUT", "/queues/{queue}", create_queue, "create_queue", needs=_changed, status=201),
    Route("PATCH", "/queues/{queue}", update_queue, "update_queue", needs=_changed),
    Route("DELETE", "/queues/{queue}", delete_queue, "delete_queue"),
    Route("GET", "/queues/{queue}/stats", queue_stats, "stats"),
    Route("GET", "/queues/{queue}/length", queue_length, "stats"),
    Route("GET", "/queues/{queue}/keys", key_stats, "key_stats"),
    Route("POST", "/queues/{queue}/purge", purge, "purge"),
    Route("POST", "/queues/{queue}/redrive", redrive, "redrive", needs=_redriven),
    Route("GET", "/queues/{queue}/groups", list_groups, "groups"),
    Route("PUT", "/queues/{queue}/groups/{group}", create_group, "create_group"),
    Route("DELETE", "/queues/{queue}/groups/{group}", drop_group, "drop_group"),
)
