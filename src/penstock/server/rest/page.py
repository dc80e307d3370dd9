"""`/openapi.json`, and `/docs`: the same for people, as one page that loads nothing and runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape
from typing import Any

import msgspec

from penstock.backends.http.wire import ARROW
from penstock.server.endpoint import Response
from penstock.server.rest.openapi import DESCRIPTION, document

#: Where the page is.
DOCS = "/docs"
_CLOSED = (("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'"),)
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --verb: light-dark(#1f5f85, #7cc4ee); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
a { color: var(--verb); }
pre { background: var(--soft); border-radius: 6px; padding: .6rem .8rem; overflow-x: auto; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); text-transform: capitalize; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem; }
details[open] { background: var(--soft); }
summary { cursor: pointer; display: flex; flex-wrap: wrap; gap: .2rem .8rem; align-items: baseline; }
summary b { color: var(--verb); min-width: 4.5rem; font-family: monospace; }
summary span { opacity: .8; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
table { border-collapse: collapse; width: 100%; margin: .3rem 0 .8rem; overflow-wrap: anywhere; }
td:first-child { width: 30%; }
td, th { text-align: left; vertical-align: top; padding: .15rem .8rem .15rem 0; }
td, th { border-top: 1px solid var(--line); }
h4 { margin: .8rem 0 .2rem; }
"""
#: What to try first, where `$URL` is the server's.
_FIRST = """curl -X PUT $URL/v1/queues/mail
curl $URL/v1/queues/mail/messages --json '{"messages": [{"payload_text": "hello Ada"}]}'
curl $URL/v1/queues/mail/lease --json '{"max_messages": 10, "wait_s": 20, "view": "text"}'
curl $URL/v1/queues/mail/ack --json '{"receipts": ["RECEIPT"]}'
curl $URL/v1/queues/mail/events"""


@cache
def description() -> Response:
    return Response(200, msgspec.json.encode(document()))


@cache
def page() -> Response:
    return Response(200, rendered(document()).encode(), "text/html; charset=utf-8", _CLOSED)


def rendered(described: dict[str, Any]) -> str:
    """HTML of a description."""
    info, schemas = described["info"], described["components"]["schemas"]
    sections = {tag["name"]: "" for tag in described["tags"]}
    for path, operations in described["paths"].items():
        for verb, operation in operations.items():
            sections[operation["tags"][0]] += _operation(verb.upper(), path, operation)
    links = " · ".join(f"<a href='#{name}'>{name}</a>" for name in (*sections, "errors", "types"))
    errors = described["components"]["responses"]
    rows = [(name.removeprefix("Error"), _text(one["description"])) for name, one in errors.items()]
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{info['title']} API</title>"
        f"<meta name='viewport' content='width=device-width'><style>{_STYLE}</style></head><body>"
        f"<h1>{info['title']} <small>{info['version']}</small></h1><p>{_text(info['description'])}</p>"
        f"<p>{links} · <a href='{DESCRIPTION}'>{DESCRIPTION}</a></p><pre>{escape(_FIRST)}</pre>"
        + "".join(f"<h2 id='{name}'>{name}</h2>{body}" for name, body in sections.items())
        + f"<h2 id='errors'>errors</h2>{_table(('status', 'meaning'), rows)}<h2 id='types'>types</h2>"
        + "".join(_type(name, schema) for name, schema in sorted(schemas.items()))
        + "</body></html>"
    )


def _operation(verb: str, path: str, operation: dict[str, Any]) -> str:
    rows = [
        (f"<code>{one['name']}</code>", one["in"], _kind(one["schema"]), _default(one["schema"]))
        for one in operation["parameters"]
    ]
    parts = [f"<p>{_text(operation['description'])}</p>"]
    parts += [_table(("parameter", "in", "type", "default"), rows)] if rows else []
    if "requestBody" in operation:
        parts.append(f"<h4>Body</h4>{_content(operation['requestBody'])}")
    status, answered = next(iter(operation["responses"].items()))
    parts.append(f"<h4>Answer {status}</h4>{_content(answered)}")
    return (
        f"<details id='{operation['operationId']}'><summary><b>{verb}</b><code>{escape(path)}</code>"
        f"<span>{_text(operation['summary'])}</span></summary>{''.join(parts)}</details>"
    )


def _content(holder: dict[str, Any]) -> str:
    """What is in a body, by the first of its forms; JSON and MessagePack have the same."""
    forms = holder["content"]
    return _kind(next(iter(forms.values()))["schema"]) + (", or rows of Arrow" if ARROW in forms else "")


def _type(name: str, schema: dict[str, Any]) -> str:
    about = f"<p>{_text(schema.get('description', ''))}</p>"
    if "enum" in schema:
        return f"<h4 id='type-{name}'>{name}</h4>{about}<p>{_kind(schema)}</p>"
    rows = [
        (f"<code>{field}</code>", _kind(of), "required" if field in schema["required"] else _default(of))
        for field, of in schema["properties"].items()
    ]
    return f"<h4 id='type-{name}'>{name}</h4>{about}{_table(('field', 'type', 'default'), rows)}"


def _kind(schema: dict[str, Any]) -> str:
    """A type in a word or two, with a link where it has a name."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"<a href='#type-{name}'>{name}</a>"
    if "enum" in schema:
        return escape(" | ".join(map(str, schema["enum"])))
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    kind = schema.get("type", "anything")
    if kind == "array":
        most = f", at most {schema['maxItems']}" if "maxItems" in schema else ""
        return f"list of {_kind(schema['items'])}{most}" if "items" in schema else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_kind(schema['additionalProperties'])}"
    bounds = [f"{sign} {schema[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in schema]
    kind = "bytes" if schema.get("contentEncoding") == "base64" else kind
    return escape(" ".join((str(kind), *bounds)))


def _default(schema: dict[str, Any]) -> str:
    return (
        f"<code>{escape(msgspec.json.encode(schema['default']).decode())}</code>"
        if "default" in schema
        else ""
    )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    heads = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{heads}</tr>{body}</table>"


def _text(plain: str) -> str:
    """Prose, with its backquotes as code."""
    parts = escape(plain).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))
