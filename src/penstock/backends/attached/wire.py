"""What travels between an owner and those attached to it: frames, calls and answers.

A frame is its length in 8 bytes, then MessagePack. The one who attaches says hello first; then each call is
answered in turn: any number of progress reports, and an answer or an error.
"""

from __future__ import annotations

import enum
import socket
import struct
from typing import Any

import msgspec

from penstock.backends.base import BackendInfo
from penstock.backends.forwarding.methods import Unreadable
from penstock.capabilities import Capabilities
from penstock.codec.answer import decoder, encode_answer
from penstock.errors import PenstockError

PROTOCOL = 1

SOCKET_NAME = "penstock.sock"

_LENGTH = struct.Struct("<Q")
_ROOM_BYTES = 1 << 20


class Gone(Exception):
    """The other side is not there any more."""


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


encode = encode_answer
decode_request = decoder(Request).decode
decode_response = decoder(Response).decode
decode_hello = decoder(Hello).decode
decode_welcome = decoder(Welcome).decode
decode_progress = decoder(tuple[str, int, int]).decode


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
