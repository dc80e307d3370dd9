"""The table of all routes, by what they are about."""

from __future__ import annotations

from penstock.server.rest import journals, messages, queues, store
from penstock.server.rest.route import Route, Table

#: heading of the description -> its routes.
SECTIONS: dict[str, tuple[Route, ...]] = {
    "queues": queues.ROUTES,
    "messages": messages.ROUTES,
    "history": journals.ROUTES,
    "store": store.ROUTES,
}
TABLE = Table(route for routes in SECTIONS.values() for route in routes)
