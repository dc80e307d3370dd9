"""What schemathesis is told of this interface: MessagePack, and not to wait for messages for an hour."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import schemathesis

MSGPACK = "application/msgpack"


@schemathesis.serializer(MSGPACK)
def write(ctx: Any, value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value, enc_hook=str)
    except OverflowError:  # It has no such numbers.
        return msgspec.msgpack.encode(_smaller(value), enc_hook=str)


def _smaller(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _smaller(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_smaller(one) for one in value]
    return max(-(2**63), min(value, 2**64 - 1)) if isinstance(value, int) else value


@schemathesis.deserializer(MSGPACK)
def read(ctx: Any, response: Any) -> Any:
    return _as_in_json(msgspec.msgpack.decode(response.content))


def _as_in_json(value: Any) -> Any:
    """Bytes are base64 there, which is what the description has."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _as_in_json(one) for name, one in value.items()}
    return [_as_in_json(one) for one in value] if isinstance(value, list) else value


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    wait_s = case.body.get("wait_s") if isinstance(case.body, dict) else None
    if isinstance(wait_s, int | float) and 0 < wait_s <= 3600:
        case.body["wait_s"] = 0.01
