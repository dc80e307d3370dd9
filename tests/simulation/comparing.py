"""What is compared of a message, whether the model, a listing or a delivery has it."""

from __future__ import annotations

from penstock import Delivery, Message, State
from tests.simulation.line import WAITING, Item, Line

#: Places in line may run ahead of the time, by less than this.
DRIFT_NS = 1_000_000

Facts = dict[str, object]


def agree(what: str, system: object, model: object) -> None:
    """Both say the same; where both say much, the complaint is what only one of them says."""
    if system == model:
        return
    if isinstance(system, list) and isinstance(model, list) and system and model:
        first = next((i for i, both in enumerate(zip(system, model, strict=False)) if both[0] != both[1]), -1)
        what, system, model = f"{what}[{first}]", system[first], model[first]
    if isinstance(system, dict) and isinstance(model, dict):
        keys = [key for key in {**system, **model} if system.get(key) != model.get(key)]
        system, model = ({key: d[key] for key in keys if key in d} for d in (system, model))
    raise AssertionError(f"{what}: the system says {system!r}, the model says {model!r}")


def of_item(item: Item, queue: str) -> Facts:
    facts: Facts = {
        "id": item.id,
        "queue": queue,
        "payload": item.new.payload,
        "headers": item.new.headers,
        "origin": (item.origin, item.buried_attempts) if item.origin else None,
        "key": (item.new.fairness_key, item.new.weight, item.new.priority, item.new.dedup_id),
        "throttle_keys": item.new.throttle_keys,
        "enqueued_ns": item.enqueued_ns,
    }
    if item.state in (*WAITING, State.LEASED):
        facts |= {"expires_ns": item.expires_ns, "attempts": item.attempts}
    if item.state == State.LEASED:
        facts["lease"] = (item.consumer, item.leased_ns, item.until_ns)
    if item.state in WAITING:
        facts["visible_ms"] = item.visible_ns // DRIFT_NS
    if item.state == State.DEAD and item.reason:
        facts["reason"] = item.reason
    return facts


def of_message(one: Message) -> Facts:
    facts = _common(one)
    if one.state in (*WAITING, State.LEASED):
        facts |= {"expires_ns": one.expires_at_ns, "attempts": one.attempts}
    if one.state == State.LEASED:
        facts["lease"] = (one.consumer, one.leased_at_ns, one.lease_expires_at_ns)
    if one.state in WAITING:
        facts["visible_ms"] = one.visible_at_ns // DRIFT_NS
    if one.state == State.DEAD and one.reason not in (None, "lease ran out"):
        facts["reason"] = one.reason
    return facts


def of_delivery(one: Delivery) -> Facts:
    lease = (one.consumer, one.leased_at_ns, one.lease_expires_at_ns)
    return _common(one) | {"expires_ns": one.expires_at_ns, "attempts": one.attempts, "lease": lease}


def _common(one: Message | Delivery) -> Facts:
    owned = {key: value for key, value in one.headers.items() if key.startswith("penstock-")}
    origin = (owned["penstock-origin"], int(owned["penstock-attempts"])) if owned else None
    return {
        "id": one.id,
        "queue": one.queue,
        "payload": one.payload,
        "headers": {key: value for key, value in one.headers.items() if key not in owned},
        "origin": origin,
        "key": (one.fairness_key, one.weight, one.priority, one.dedup_id),
        "throttle_keys": one.throttle_keys,
        "enqueued_ns": one.enqueued_at_ns,
    }


def compare_messages(name: str, line: Line, listed: dict[State, list[Message]]) -> None:
    for state, found in listed.items():
        there = {one.id: of_message(one) for one in found}
        agree(f"{state} messages of {name}", there, {one.id: of_item(one, name) for one in line.of(state)})
    # Ready ones are listed by priority, then key by key and throttle set by throttle set, each in its order.
    ready = [line.items[one.id] for one in listed[State.READY]]
    lanes = [line.range_of(item) for item in ready]
    priorities = [line.lane(item)[0] for item in ready]
    agree("order of priorities", priorities, sorted(priorities, reverse=True))
    turns = sum(lane != before for lane, before in zip(lanes, [None, *lanes], strict=False))
    agree("runs of one key", turns, len(set(lanes)))
    for i, item in enumerate(ready):
        later = [other for other in ready[i + 1 :] if line.range_of(other) == line.range_of(item)]
        assert not any(line.must_precede(other, item) for other in later), f"{item.id} is listed too early"
