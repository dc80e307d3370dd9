"""Routes of what is no queue's own: state, throttles, what is open, its health, checks and repairs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from penstock.backends.base import BackendMetrics, Problem, QuarantineItem, RekeyReport, Throttle
from penstock.message import DueItem
from penstock.penstock import Health, Info
from penstock.server.access import STORE
from penstock.server.rest.errors import not_found
from penstock.server.rest.route import Call, Route
from penstock.server.rest.shapes import DONE, Answered, Asked, ById, Changed, Count, Done, Limit


class Value(Asked):
    """A small value."""

    value: bytes


class Stored(Answered):
    """A small value."""

    value: bytes


class Rate(Asked):
    """So many deliveries a second, `burst` of them at once at most."""

    rate_per_s: float
    burst: float


class ThrottleList(Answered):
    """Every limit, by key."""

    throttles: list[Throttle]


class DueAsked(Asked):
    """From when to when, and where to go on; `until_ns` is not included."""

    since_ns: Count | None = None
    until_ns: Count | None = None
    limit: Limit = 100
    after: str | None = None


class Due(Answered):
    """Earliest first; pass the last one's `position` as `after`."""

    items: list[DueItem]


class Metrics(Answered):
    """By backend, what is measured. Backends that do not answer are left out."""

    backends: dict[str, BackendMetrics]


class Check(Asked):
    """Whether what can be mended is."""

    repair: bool = False


class Checked(Answered):
    """What was read, and what is wrong. Of very many problems only the first are listed."""

    ok: bool
    problems: list[Problem]
    queues: int
    messages: int
    events: int
    counts: dict[str, int]
    remaining: int | None


class Sweep(Asked):
    """How many slices of housekeeping on each backend."""

    budget: Annotated[int, Meta(ge=0, le=10_000)] = 100


class QuarantineAsked(Asked):
    """How many, after which."""

    limit: Limit = 100
    after: str | None = None


class Quarantine(Answered):
    """What repairs took out of the stores, oldest first."""

    items: list[QuarantineItem]


class Content(Answered):
    """The bytes of an item, as they were in the store."""

    content: bytes


def get_info(call: Call) -> Info:
    """The version, and each backend with what it can do."""
    info = call.ps.info()
    if call.who.may("read", STORE):
        return info
    backends = {name: msgspec.structs.replace(backend, path=None) for name, backend in info.backends.items()}
    return msgspec.structs.replace(info, source="", backends=backends)


def get_health(call: Call) -> Health:
    """The worst status of any backend, with reasons and numbers."""
    return call.ps.health()


def get_metrics(call: Call) -> Metrics:
    """Everything that is measured; `/metrics` has it for Prometheus."""
    return Metrics(call.ps.metrics())


def list_due(call: Call, asked: DueAsked) -> Due:
    """What falls due, across queues, earliest first."""
    return Due(call.ps.due(asked.since_ns, asked.until_ns, asked.limit, asked.after))


def check(call: Call, asked: Check) -> Checked:
    """Prove the stores' invariants by reading them; mend what can be."""
    return msgspec.convert(call.ps.check(asked.repair), Checked, from_attributes=True)


def reindex(call: Call) -> Checked:
    """Rebuild every index; nothing else is answered meanwhile."""
    return msgspec.convert(call.ps.reindex(), Checked, from_attributes=True)


def rekey(call: Call) -> RekeyReport:
    """Encrypt what is stored with the key that new messages are encrypted with."""
    return call.ps.rekey()


def sweep(call: Call, asked: Sweep) -> Changed:
    """Do some housekeeping now; how many slices were done."""
    return Changed(call.ps.sweep(asked.budget))


def list_quarantine(call: Call, asked: QuarantineAsked) -> Quarantine:
    """What repairs took out of the stores; pass the last one's id as `after`."""
    return Quarantine(call.ps.quarantine(asked.limit, asked.after))


def get_quarantined(call: Call) -> Content:
    """The bytes of an item."""
    return Content(call.ps.quarantine_get(call.path["item"]))


def drop_quarantined(call: Call, asked: ById) -> Changed:
    """Delete items for good, those that are named."""
    return Changed(call.ps.quarantine_drop(asked.id))


def get_state(call: Call) -> Stored:
    """The value of a key."""
    value = call.ps.state.get(call.path["key"])
    if value is None:
        raise not_found(f"the state has no key {call.path['key']!r:.60}")
    return Stored(value)


def put_state(call: Call, asked: Value) -> Done:
    """Set the value of a key."""
    call.ps.state.put(call.path["key"], asked.value)
    return DONE


def delete_state(call: Call) -> Done:
    """Forget a key, whether or not it is there."""
    call.ps.state.delete(call.path["key"])
    return DONE


def list_throttles(call: Call) -> ThrottleList:
    """Every limit, by key."""
    return ThrottleList(call.ps.throttles.list())


def get_throttle(call: Call) -> Throttle:
    """A limit, and what is left of its tokens."""
    throttle = call.ps.throttles.get(call.path["key"])
    if throttle is None:
        raise not_found(f"there is no throttle {call.path['key']!r:.60}")
    return throttle


def set_throttle(call: Call, asked: Rate) -> Done:
    """Deliver at most so many messages a second that name this key."""
    call.ps.throttles.set(call.path["key"], asked.rate_per_s, asked.burst)
    return DONE


def delete_throttle(call: Call) -> Done:
    """No limit any more, whether or not there was one."""
    call.ps.throttles.delete(call.path["key"])
    return DONE


ROUTES = (
    Route("GET", "/info", get_info, "info"),
    Route("GET", "/health", get_health, "health"),
    Route("GET", "/metrics", get_metrics, "metrics"),
    Route("GET", "/due", list_due, "due"),
    Route("POST", "/check", check, "check"),
    Route("POST", "/reindex", reindex, "reindex"),
    Route("POST", "/rekey", rekey, "rekey"),
    Route("POST", "/sweep", sweep, "sweep"),
    Route("GET", "/quarantine", list_quarantine, "quarantine"),
    Route("GET", "/quarantine/{item}", get_quarantined, "quarantine_get"),
    Route("DELETE", "/quarantine", drop_quarantined, "quarantine_drop"),
    Route("GET", "/state/{key}", get_state, "get_state"),
    Route("PUT", "/state/{key}", put_state, "put_state"),
    Route("DELETE", "/state/{key}", delete_state, "delete_state"),
    Route("GET", "/throttles", list_throttles, "throttles"),
    Route("GET", "/throttles/{key}", get_throttle, "get_throttle"),
    Route("PUT", "/throttles/{key}", set_throttle, "set_throttle"),
    Route("DELETE", "/throttles/{key}", delete_throttle, "delete_throttle"),
)
