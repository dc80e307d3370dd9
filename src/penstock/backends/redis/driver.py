"""The one place that imports the driver `redis`; without it, an error says what to install."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.errors import BackendNotInstalled

try:
    from redis.backoff import NoBackoff
    from redis.connection import Connection, SSLConnection
    from redis.crc import key_slot
    from redis.credentials import CredentialProvider
    from redis.exceptions import (
        AskError,
        AuthenticationError,
        ConnectionError,
        InvalidResponse,
        MovedError,
        RedisError,
        ResponseError,
        TimeoutError,
    )
    from redis.retry import Retry
except ModuleNotFoundError as error:
    if error.name != "redis":
        raise
    raise BackendNotInstalled("redis", "redis") from error


class TlsConnection(SSLConnection):
    """Over TLS by a context of ours: the driver's own trusts every authority of the machine beside the one
    that is named, and asks at the terminal for the password of a key.
    """

    def __init__(self, *, make_context: Callable[[], ssl.SSLContext], **options: Any) -> None:
        super().__init__(**options)
        self._make_context = make_context

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return self._make_context().wrap_socket(sock, server_hostname=self.host)


class AnyConnection(Protocol):
    """What is used of the driver's connections, which have no types of their own."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def can_read(self, timeout: float = 0) -> bool: ...
    def pack_commands(self, commands: Sequence[Sequence[Any]]) -> list[bytes]: ...
    def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...
    def send_command(self, *args: Any, **options: Any) -> None: ...
    def read_response(self, *, timeout: Any = None) -> Any: ...


def is_open(connection: AnyConnection) -> bool:
    return getattr(connection, "_sock", None) is not None


def socket_of(connection: AnyConnection) -> socket.socket:
    """To wait for it together with other things."""
    found: socket.socket | None = getattr(connection, "_sock", None)
    if found is None:
        raise ConnectionError("the connection is closed")
    return found


__all__ = [
    "AnyConnection",
    "AskError",
    "AuthenticationError",
    "Connection",
    "ConnectionError",
    "CredentialProvider",
    "InvalidResponse",
    "MovedError",
    "NoBackoff",
    "RedisError",
    "ResponseError",
    "Retry",
    "TimeoutError",
    "TlsConnection",
    "is_open",
    "key_slot",
    "socket_of",
]
