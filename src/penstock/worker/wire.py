"""What a worker and its handler processes say to each other: frames of a length and a msgpack body."""

from __future__ import annotations

import msgspec

from penstock.message import Delivery
from penstock.worker.verdict import Verdict

#: A batch of the largest payloads is longer than four bytes can say.
_LENGTH_BYTES = 8


class Begin(msgspec.Struct, tag="begin", frozen=True):
    """The first frame to a new process: import this handler."""

    reference: str
    batch: bool


class Work(msgspec.Struct, tag="work", frozen=True):
    """Call the handler with these."""

    deliveries: list[Delivery]


class Lost(msgspec.Struct, tag="lost", frozen=True):
    """A lease of the running call is over."""

    message_id: str


class Stopping(msgspec.Struct, tag="stopping", frozen=True):
    """The worker has been told to stop."""


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The handler is imported."""


class Broken(msgspec.Struct, tag="broken", frozen=True):
    """The handler cannot be imported; another process could not either."""

    reason: str


class Finished(msgspec.Struct, tag="finished", frozen=True):
    """What became of the deliveries, in their order."""

    verdicts: list[Verdict]


ToChild = Begin | Work | Lost | Stopping
FromChild = Ready | Broken | Finished

_encoder = msgspec.msgpack.Encoder()
_to_child = msgspec.msgpack.Decoder(ToChild)
_from_child = msgspec.msgpack.Decoder(FromChild)


def encode(frame: ToChild | FromChild) -> bytes:
    body = _encoder.encode(frame)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, received: bytes) -> list[bytes]:
        """The bodies that are complete now."""
        self._bytes += received
        bodies = []
        while (end := self._end()) <= len(self._bytes):
            bodies.append(bytes(self._bytes[_LENGTH_BYTES:end]))
            del self._bytes[:end]
        return bodies

    def _end(self) -> int:
        if len(self._bytes) < _LENGTH_BYTES:
            return _LENGTH_BYTES
        return _LENGTH_BYTES + int.from_bytes(self._bytes[:_LENGTH_BYTES], "big")


def to_child(body: bytes) -> ToChild:
    frame: ToChild = _to_child.decode(body)
    return frame


def from_child(body: bytes) -> FromChild:
    frame: FromChild = _from_child.decode(body)
    return frame
