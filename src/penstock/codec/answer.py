"""Arguments and answers of backend calls as bytes: what crosses from one process to another.

MessagePack by way of msgspec; errors travel as their class, text and attributes, and are raised again as
what they were.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from penstock import errors
from penstock.errors import PenstockError, StorageCorrupt

T = TypeVar("T")


def _encode_other(value: object) -> object:
    if isinstance(value, BaseException):
        return (type(value).__name__, escaped(str(value)), escaped(vars(value)))
    if isinstance(value, str):  # A kind of str travels as the text that it is.
        return str.__str__(value)
    # What no backend takes is refused there, by the name of its type.
    return {"": type(value).__name__}


def _decode_other(kind: type, value: Any) -> Any:
    if issubclass(kind, PenstockError):
        return to_error(value)
    raise NotImplementedError


def to_error(value: tuple[str, str, dict[str, Any]]) -> PenstockError:
    """The error again, whatever its class wants to be constructed from."""
    name, text, attributes = value
    kind = getattr(errors, name, PenstockError)
    error: PenstockError = kind.__new__(kind, text)
    vars(error).update(attributes)
    return error


encode_answer = msgspec.msgpack.Encoder(enc_hook=_encode_other).encode

_TEXT, _NUMBER = 1, 2


def escaped(value: Any) -> Any:
    """What MessagePack has no room for, in a form that it has: texts that are no UTF-8, great numbers."""
    if isinstance(value, str):
        return (
            value if _is_utf8(value) else msgspec.msgpack.Ext(_TEXT, value.encode("utf-8", "surrogatepass"))
        )
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return msgspec.msgpack.Ext(_NUMBER, b"%d" % value)
    if isinstance(value, list | tuple):
        return [escaped(item) for item in value]
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    return value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unescape(code: int, data: memoryview) -> Any:
    text = bytes(data).decode("utf-8", "surrogatepass")
    return int(text) if code == _NUMBER else text


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Decodes answers of this type."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_other, ext_hook=_unescape)


def decode_answer(raw: bytes, of: msgspec.msgpack.Decoder[T]) -> T:
    try:
        return of.decode(raw)
    except msgspec.DecodeError as error:
        raise StorageCorrupt(f"an answer of {len(raw)} bytes does not decode: {error}") from error
