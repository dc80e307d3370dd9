"""AWS's query protocol: the action and its arguments as a form, answers as XML."""

from __future__ import annotations

import base64
import binascii
import re
from functools import lru_cache
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints
from xml.sax.saxutils import escape

import msgspec

from penstock.server.endpoint import Request, Response
from penstock.server.sqs import shapes
from penstock.server.sqs.errors import SqsError
from penstock.server.sqs.json_codec import refusal
from penstock.server.sqs.shapes import Shape

CONTENT_TYPE = "text/xml"
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
MOST_FIELDS = 2000
#: A percent sign that quotes nothing.
_BROKEN = re.compile(rb"%(?![0-9A-Fa-f]{2})")
#: How deep an argument's name may go: an attribute's value in a batch is at five.
DEEPEST = 6

#: Lists are flat in this protocol, one element or argument each, by these names. `{}` is the action.
_ITEMS = {
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "AttributeNames": "AttributeName",
    "Entries": "{}RequestEntry",
    "Failed": "BatchResultErrorEntry",
    "MessageAttributeNames": "MessageAttributeName",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "Results": "{}ResultEntry",
    "Successful": "{}ResultEntry",
    "TagKeys": "TagKey",
    "queueUrls": "QueueUrl",
}
#: So are mappings: the element, and the names of key and value in it.
_PAIRS = {
    "Attributes": ("Attribute", "Name", "Value"),
    "MessageAttributes": ("MessageAttribute", "Name", "Value"),
    "MessageSystemAttributes": ("MessageSystemAttribute", "Name", "Value"),
    "Tags": ("Tag", "Key", "Value"),
    "tags": ("Tag", "Key", "Value"),
}
#: Beyond what XML itself asks for: a parser makes a line feed of a carriage return that is not written so.
_ESCAPES = {"\r": "&#13;", '"': "&quot;"}

Tree = dict[str, Any]


class _Field(NamedTuple):
    name: str
    attribute: str
    #: list, dict, or None for a single value.
    container: type | None
    #: The struct that it or each of its items is, if it is one.
    inner: type[Shape] | None


@lru_cache
def _fields(kind: type[Shape]) -> tuple[_Field, ...]:
    hints = get_type_hints(kind, vars(shapes))
    found = []
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        container = get_origin(hint) if get_origin(hint) in (list, dict) else None
        item = get_args(hint)[-1] if container else hint
        inner = item if isinstance(item, type) and issubclass(item, Shape) else None
        found.append(_Field(field.encode_name, field.name, container, inner))
    return tuple(found)


def form(request: Request) -> dict[str, str]:
    """The arguments, of the URL and of the body; of several with a name the last counts."""
    raw = request.query.encode() + b"&" + request.body
    if raw.count(b"&") <= MOST_FIELDS and not _BROKEN.search(raw):
        pieces = (piece.partition(b"=") for piece in raw.split(b"&") if piece)
        try:
            return {_decoded(name): _decoded(value) for name, _, value in pieces}
        except UnicodeDecodeError:
            pass
    raise SqsError("MalformedInput", "The request is no form, or has too many fields.")


def _decoded(text: bytes) -> str:
    """Without plus signs and percent signs. In C: a megabyte of them must not hold up everybody else."""
    text = text.replace(b"+", b" ")
    if b"%" in text:
        # Quoted-printable is the same with another sign; what is no pair of digits has been refused.
        text = binascii.a2b_qp(text.replace(b"=", b"=3D").replace(b"%", b"="))
    return text.decode()


def arguments(fields: dict[str, str], action: str, kind: type[Shape], url: str) -> Shape:
    """`url` is the queue's that the request was sent to: it goes where no other is named."""
    tree: Tree = {}
    for name, value in fields.items():
        *above, last = name.split(".", DEEPEST)
        inside: Any = tree
        for part in above:
            inside = inside.setdefault(part, {}) if isinstance(inside, dict) else None
        if not isinstance(inside, dict) or isinstance(inside.get(last), dict):
            raise SqsError("MalformedInput", "An argument has a value and parts as well.")
        inside[last] = value
    if url:
        tree.setdefault("QueueUrl", url)
    try:
        return msgspec.convert(_shaped(tree, action, kind), kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise refusal(error) from None


def _shaped(tree: Tree, action: str, kind: type[Shape]) -> Tree:
    """The form's tree as JSON would have it."""
    found: Tree = {}
    for name, _, container, inner in _fields(kind):
        if container is None:
            if name in tree:
                found[name] = tree[name]
        elif container is list:
            items = _numbered(tree.get(_ITEMS[name].format(action)))
            found[name] = [_inner(item, action, inner) for item in items]
        else:
            element, key, value = _PAIRS[name]
            pairs = _numbered(tree.get(element))
            if not all(isinstance(pair, dict) and isinstance(pair.get(key), str) for pair in pairs):
                raise SqsError("MissingParameter", f"The request must contain {element}.N.{key}.")
            found[name] = {pair[key]: _inner(pair.get(value, ""), action, inner) for pair in pairs}
    return found


def _inner(item: Any, action: str, kind: type[Shape] | None) -> Any:
    return _shaped(item, action, kind) if kind is not None and isinstance(item, dict) else item


def _numbered(tree: Any) -> list[Any]:
    """Items in the order of their numbers. A single one may have none: `AttributeName`, `Attribute.Name`."""
    if tree is None:
        return []
    if not isinstance(tree, dict):
        return [tree]
    if all(re.fullmatch("[0-9]{1,6}", key) for key in tree):
        return [tree[key] for key in sorted(tree, key=int)]
    if any(key[:1].isdigit() for key in tree):
        raise SqsError("MalformedInput", "A list's items must be numbered: Name.1, Name.2.")
    return [tree]


def answered(request_id: str, action: str, answer: Shape | None) -> Response:
    result = "" if answer is None else f"<{action}Result>{_xml(answer, action)}</{action}Result>"
    text = (
        f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">{result}'
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>"
    )
    return Response(200, text.encode(), CONTENT_TYPE, [("x-amzn-requestid", request_id)])


def failed(request_id: str, status: int, kind: str, code: str, by_sender: bool, message: str) -> Response:
    fault = "Sender" if by_sender else "Receiver"
    text = (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{fault}</Type>'
        f"<Code>{_text(code)}</Code><Message>{_text(message)}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    )
    return Response(status, text.encode(), CONTENT_TYPE, [("x-amzn-requestid", request_id)])


def _xml(shape: Shape, action: str) -> str:
    parts = []
    for name, attribute, container, _ in _fields(type(shape)):
        value = getattr(shape, attribute)
        if container is list:
            item = _ITEMS[name].format(action)
            parts += [f"<{item}>{_value(one, action)}</{item}>" for one in value]
        elif container is dict:
            pair, key, inside = _PAIRS[name]
            parts += [
                f"<{pair}><{key}>{_text(k)}</{key}><{inside}>{_value(v, action)}</{inside}></{pair}>"
                for k, v in value.items()
            ]
        elif value is not None:
            parts.append(f"<{name}>{_value(value, action)}</{name}>")
    return "".join(parts)


def _value(value: object, action: str) -> str:
    if isinstance(value, Shape):
        return _xml(value, action)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return _text(str(value))


#: What XML cannot have: only in what a client sent wrongly, and is told so.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(text: str) -> str:
    return escape(_NOT_XML.sub("?", text), _ESCAPES)
