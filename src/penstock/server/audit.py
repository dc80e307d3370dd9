"""Who asked for what in the administration of a store: entries of the world `_audit`, written first.

An entry is durable before what it tells of is done: nothing is done that is not recorded. Whether it then
succeeded is told by the request log, under the request's id, and for queues by the world `_penstock`.
"""

from __future__ import annotations

import msgspec

from penstock.event import Entry
from penstock.penstock import Penstock
from penstock.server.access import Principal
from penstock.server.endpoint import Calls

#: The world of these entries. Kind: the action. Labels: who, and the queue, if it concerns one.
WORLD = "_audit"


class Audit:
    """`await audit(principal, action, queue, request_id)`, before the action."""

    def __init__(self, ps: Penstock, calls: Calls) -> None:
        self._ps = ps
        self._calls = calls

    async def __call__(self, principal: Principal, action: str, queue: str, request_id: str) -> None:
        await self._append(principal.name, action, queue, request_id)

    async def of_server(self, action: str, what: str) -> None:
        """Something that the server found, and nobody asked it for."""
        await self._append("", action, what, "")

    async def _append(self, who: str, action: str, queue: str, request_id: str) -> None:
        body = msgspec.json.encode(
            {"principal": who, "action": action, "queue": queue, "request_id": request_id}
        )
        labels = [f"principal:{who}", *([f"queue:{queue}"] if queue else [])]
        await self._calls.run(self._ps.journal(WORLD).append, [Entry(action, body, labels)])
