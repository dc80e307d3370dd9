"""What travels between an owner and those attached to it: frames, calls and answers.

A frame is its length in 8 bytes, then MessagePack. The one who attaches says hello first; then each call is
answered in turn: any number of progress reports, and an answer or an error.
"""

from __future__ import annotations

import enum
import inspect
import socket
import struct
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from penstock.backends.base import BackendInfo, QueueBackend
from penstock.backends.bulk import BulkBackend
from penstock.capabilities import Capabilities
from penstock.codec.answer import decoder, encode_answer
from penstock.errors import InvalidMessage, PenstockError

PROTOCOL = 1

SOCKET_NAME = "penstock.sock"

_LENGTH = struct.Struct("<Q")
_ROOM_BYTES = 1 << 20

#: What may be asked again without a record of the first answer: it changes nothing, or twice is as once.
REPEATABLE = frozenset(
    {
        "queues",
        "queue",
        "get_many",
        "peek",
        "page",
        "stats",
        "key_stats",
        "due",
        "events",
        "read_cursor",
        "cursors",
        "scan_entries",
        "get_entries",
        "world_stats",
        "get_state",
        "get_throttle",
        "throttles",
        "info",
        "health",
        "check",
        "reindex",
        "quarantine",
        "quarantine_get",
        "metrics",
        "rekey",
        "sweep",
        "take_snapshot",
        "begin_write",
        "commit_write",
        "abort_write",
    }
)

#: Not forwarded: each process closes its own.
_OWN = {"close"}


class Gone(Exception):
    """The other side is not there any more."""


class Unreadable(InvalidMessage):
    """The other side did not find in the arguments what the call takes."""


class Hello(msgspec.Struct, array_like=True):
    """Who attaches. `caller` is the same when it comes again after its owner has gone."""

    protocol: int
    caller: bytes
    pid: int


class Welcome(msgspec.Struct, array_like=True):
    """What it attaches to."""

    protocol: int
    version: str
    pid: int
    name: str
    capabilities: Capabilities
    info: BackendInfo


class Request(msgspec.Struct, array_like=True):
    """The `number`th call of a caller; with `progress`, reports are wanted on the way."""

    number: int
    method: str
    args: msgspec.Raw
    kwargs: dict[str, Any]
    progress: bool


class Reply(enum.IntEnum):
    """What a reply is."""

    ANSWER = 0
    ERROR = 1
    PROGRESS = 2
    #: The arguments are not what the call takes: nothing was done, and one that has them can say why.
    UNREADABLE = 3


class Response(msgspec.Struct, array_like=True):
    """One reply to a request."""

    what: Reply
    value: msgspec.Raw


def _holds_struct(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return True
    return any(_holds_struct(part) for part in getattr(hint, "__args__", ()))


class Method:
    """How the arguments and the answer of one of the backend's calls are read again."""

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        # Structures become what they were. Anything else is taken as it comes: judging it is the backend's.
        kinds = tuple(
            hints[p.name] if _holds_struct(hints[p.name]) else Any
            for p in parameters
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "progress"
        )
        self.arguments = decoder(tuple[kinds] if kinds else tuple[()])  # type: ignore[valid-type]
        self.answer = decoder(hints["return"])

    def decode_arguments(self, raw: msgspec.Raw) -> tuple[Any, ...]:
        try:
            arguments: tuple[Any, ...] = self.arguments.decode(raw)
        except msgspec.ValidationError as error:
            raise Unreadable(f"arguments of another kind than the call takes: {error}") from error
        return arguments


METHODS = {
    name: Method(function)
    for name, function in {**vars(QueueBackend), **vars(BulkBackend)}.items()
    if inspect.isfunction(function) and not name.startswith("_") and name not in _OWN
}

encode = encode_answer
decode_request = decoder(Request).decode
decode_response = decoder(Response).decode
decode_hello = decoder(Hello).decode
decode_welcome = decoder(Welcome).decode
decode_error = decoder(tuple[str, Any, dict[str, Any]]).decode
decode_progress = decoder(tuple[str, int, int]).decode
decode_receipts = decoder(list[str]).decode


def send(peer: socket.socket, raw: bytes) -> None:
    head = _LENGTH.pack(len(raw))
    try:
        if len(raw) < 65_536:
            peer.sendall(head + raw)
        else:
            peer.sendall(head)
            peer.sendall(raw)
    except OSError as error:
        raise Gone from error


def receive(peer: socket.socket) -> bytearray:
    """The next frame, or `Gone`."""
    (length,) = _LENGTH.unpack(_exactly(peer, _LENGTH.size))
    return _exactly(peer, length)


def _exactly(peer: socket.socket, length: int) -> bytearray:
    """So many bytes. Room for them is made as they come: a length alone costs nothing."""
    buffer, at = bytearray(min(length, _ROOM_BYTES)), 0
    while at < length:
        if at == len(buffer):
            buffer += bytes(min(length - at, len(buffer)))
        try:
            with memoryview(buffer)[at:] as room:
                got = peer.recv_into(room)
        except OSError as error:
            raise Gone from error
        if not got:
            raise Gone
        at += got
    return buffer


def answer_frame(answer: object) -> bytes:
    return encode((Reply.ANSWER, answer))


def error_frame(error: BaseException) -> bytes:
    """One that says less where all of it cannot be sent: without any answer, its caller would ask again."""
    what = Reply.UNREADABLE if isinstance(error, Unreadable) else Reply.ERROR
    try:
        return encode((what, error))
    except Exception:  # noqa: BLE001 (whatever is in it)
        return encode((what, PenstockError(f"{type(error).__name__}, which cannot be sent")))


def progress_frame(what: str, done: int, total: int) -> bytes:
    return encode((Reply.PROGRESS, (what, done, total)))
