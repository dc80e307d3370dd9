"""The simulation with scripts in every queue: what they decide is written down here a second time."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock import InvalidMessage, Kind, NewMessage, QueueSettings
from penstock.clock import to_ns
from penstock.settings import queue_settings
from tests.simulation.line import Item, Line
from tests.simulation.model import Error, Model
from tests.simulation.stores import MemorySimulation, RocksSimulation
from tests.simulation.system import Settings, Simulation

ON_ENQUEUE = """
function on_enqueue(message)
  if message.payload == "two\\0" and message.weight == 3 then return "refuse", "two at three" end
  if message.headers.type then
    message.fairness_key = "k"
    message.headers.seen = message.queue
  end
  if message.weight == 1 and message.payload == "one" then message.weight = 2 end
  if message.dedup_id == "d2" and message.priority == 4 then message.priority = 9 end
  if message.ttl_s == 12 then message.delay_s = 1 end
end
"""
ON_FAILURE = """
function on_failure(message, failure)
  if message.headers.type and failure.kind ~= "reject" then return "drop", "typed" end
  if message.payload == "one" then return "retry", 2 * message.attempts end
  if failure.kind == "lease_expired" and message.fairness_key == "k/2" then return "dead_letter", "late" end
  if failure.reason ~= "" and message.payload == "" then return "dead_letter" end
end
"""
SCRIPTS = {"on_enqueue": ON_ENQUEUE, "on_failure": ON_FAILURE}


def as_scripted(new: NewMessage, queue: str) -> NewMessage | None:
    """What `on_enqueue` makes of a message; None: refused."""
    new = msgspec.structs.replace(new, headers=dict(new.headers))
    given = msgspec.structs.replace(new)
    if given.payload == b"two\0" and given.weight == 3:
        return None
    if "type" in given.headers:
        new.fairness_key = "k"
        new.headers["seen"] = queue
    if given.weight == 1 and given.payload == b"one":
        new.weight = 2
    if given.dedup_id == "d2" and given.priority == 4:
        new.priority = 9
    if given.ttl_s == 12:
        new.delay_s = 1
    return new


class ScriptedModel(Model):
    def __init__(self, now_ns: int) -> None:
        super().__init__(now_ns)
        self._rejecting = False
        #: The queue that is leased from: it asks no script about what cannot come to it.
        self.leasing: str | None = None

    def releases(self, line: Line) -> bool:
        return self.leasing is None or self.leasing in (line.settings.name, line.settings.dead_letter)

    def in_order(self, ended: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
        """Queue by queue, for each has a script of its own; the one with the earliest first."""
        first = {n: until_ns for until_ns, n, _ in sorted(ended, reverse=True)}
        return sorted(ended, key=lambda one: (first[one[1]], one[1], one))

    def enqueue(self, name: str, new: NewMessage, fresh_id: str) -> tuple[Error, str, bool]:
        if self.lines[name].refuses(new) and not self.lines[name].settings.fifo:
            return InvalidMessage, "", False
        scripted = as_scripted(new, name)
        return (InvalidMessage, "", False) if scripted is None else super().enqueue(name, scripted, fresh_id)

    def upsert(self, name: str, new: NewMessage, fresh_id: str) -> tuple[Error, str, bool]:
        scripted = as_scripted(new, name)
        if scripted is None:
            return InvalidMessage, "", False
        # The model's own goes on to its `enqueue`: the script must not see the message twice.
        if scripted.id not in self.lines[name].items and scripted.dedup_id is None:
            return Model.enqueue(self, name, scripted, fresh_id)
        return super().upsert(name, scripted, fresh_id)

    def reject(self, name: str, receipt: str, reason: str) -> Error:
        self._rejecting = True
        try:
            return super().reject(name, receipt, reason)
        finally:
            self._rejecting = False

    def _fail(self, line: Line, item: Item, visible_ns: int | None, kind: Kind, reason: str) -> None:
        """As `on_failure` says."""
        expired = kind is Kind.RELEASED
        if "type" in item.new.headers and not self._rejecting:
            line.failed += 1
            self._remove(line, item, Kind.DROPPED)
            return
        if item.new.payload == b"one":
            if visible_ns is not None:
                visible_ns = self.now_ns + to_ns(2 * item.attempts)
        elif expired and item.new.fairness_key == "k/2":
            visible_ns, reason = None, "late"
        elif reason and item.new.payload == b"":
            visible_ns = None
        super()._fail(line, item, visible_ns, kind, reason)


class Scripted(Simulation):
    """Every queue has both scripts, however it came into being."""

    def open(self) -> Any:
        if not isinstance(self.model, ScriptedModel):
            self.model = ScriptedModel(self.clock.now_ns())
        return super().open()

    def lease_from(self, name: str, wanted: int, lease_s: float | None, consumer: str, fault: bool) -> None:
        assert isinstance(self.model, ScriptedModel)
        self.model.leasing = name
        super().lease_from(name, wanted, lease_s, consumer, fault)
        self.model.leasing = None

    def create(self, name: str, settings: Settings, fifo: bool) -> None:
        super().create(name, {**settings, **SCRIPTS}, fifo)

    def adopt(self, name: str, settings: QueueSettings) -> None:
        if settings.on_failure is None:
            self.ps.update_queue(name, **SCRIPTS)
            values = {key: getattr(settings, key) for key in QueueSettings.__struct_fields__[1:]}
            settings = queue_settings(name, {**values, **SCRIPTS})
        super().adopt(name, settings)


class ScriptedInMemory(Scripted, MemorySimulation):
    pass


class ScriptedOnRocksDB(Scripted, RocksSimulation):
    pass
