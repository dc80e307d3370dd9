"""The OpenAPI description, made of the table of routes and of the types of their handlers."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec

from penstock.backends.http.wire import ARROW
from penstock.server.native import permissions
from penstock.server.rest.errors import MEANING, Error
from penstock.server.rest.formats import FORMATS
from penstock.server.rest.route import Route
from penstock.server.rest.table import SECTIONS, TABLE
from penstock.version import __version__

#: Where it is served.
DESCRIPTION = "/openapi.json"
_ABOUT = (
    "Queues, messages, journals and the store of a Penstock server. Bodies are JSON, or MessagePack with "
    "`Content-Type: application/msgpack`; `Accept` says what the answer is in. Bytes are base64 in JSON and "
    "binary in MessagePack. Durations are seconds, times are nanoseconds since 1970. Batches are answered "
    "item by item, with status 200: look at each. Where the server wants a key, send it as "
    "`Authorization: Bearer KEY`."
)
#: Of the header that makes a request happen once.
KEY_PATTERN = "[!-~]{1,200}"
_ONCE = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same key with the same request again: it happens once, and is answered each time.",
    "schema": {"type": "string", "pattern": f"^{KEY_PATTERN}$"},
}


@cache
def document() -> dict[str, Any]:
    """The whole description."""
    kinds: list[Any] = [Error]
    kinds += [route.asked for route in TABLE.routes if route.asked is not None and not route.asks_by_query]
    kinds += [route.answer for route in TABLE.routes]
    references, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    by_kind = dict(zip(map(id, kinds), references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for section, routes in SECTIONS.items():
        for route in routes:
            paths.setdefault(route.path, {})[route.verb.lower()] = _operation(route, section, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__, "description": _ABOUT},
        "tags": [{"name": section} for section in SECTIONS],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {f"Error{status}": _error(status, by_kind[id(Error)]) for status in MEANING},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(route: Route, section: str, by_kind: dict[int, Any]) -> dict[str, Any]:
    status = HTTPStatus(route.status)
    answered = {
        "description": status.phrase,
        "content": _content(by_kind[id(route.answer)], route.gives_arrow),
    }
    errors = {str(code): {"$ref": f"#/components/responses/Error{code}"} for code in MEANING}
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": (route.handler.__doc__ or "").strip(),
        "description": _needs(route),
        "tags": [section],
        "parameters": [*_of_path(route), *_of_query(route), *([] if route.is_repeatable else [_ONCE])],
        "responses": {str(route.status): answered, **errors},
    }
    if not route.asks_by_query and route.asked is not None:
        needed = any(field.required for field in msgspec.structs.fields(route.asked))
        operation["requestBody"] = {
            "required": needed,
            "content": _content(by_kind[id(route.asked)], route.takes_arrow),
        }
    return operation


def _needs(route: Route) -> str:
    """Which permission; what else an operation needs is in the documentation."""
    if route.method in permissions.OF_QUEUE:
        return f"Needs the permission `{permissions.OF_QUEUE[route.method]}` on the queue."
    if route.method in permissions.OF_STORE:
        return f"Needs the permission `{permissions.OF_STORE[route.method]}` on all queues (`*`)."
    return "For every key; it is told what concerns it."


def _of_path(route: Route) -> list[dict[str, Any]]:
    named = {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": named} for name in route.parameters]


def _of_query(route: Route) -> list[dict[str, Any]]:
    if not route.asks_by_query or route.asked is None:
        return []
    (_,), schemas = msgspec.json.schema_components([route.asked])
    schema = schemas[route.asked.__name__]
    return [
        {"name": name, "in": "query", "required": name in schema["required"], "schema": _given(of)}
        for name, of in schema["properties"].items()
    ]


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """Without the null that stands for a parameter which is not there: a query has no word for it."""
    there = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    return there[0] if len(there) == 1 else schema


def _content(schema: Any, arrow: bool = False) -> dict[str, Any]:
    """Of Arrow there is no schema in the terms of JSON: its columns are those of the tables."""
    forms = {one.media_type: {"schema": schema} for one in FORMATS}
    return {**forms, ARROW: {}} if arrow else forms


def _error(status: int, schema: Any) -> dict[str, Any]:
    return {"description": MEANING[status][1], "content": _content(schema)}
