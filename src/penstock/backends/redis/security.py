"""How connections are made: addresses, time limits, TLS and the credentials of the moment."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.backends.redis import driver
from penstock.errors import InvalidConfig
from penstock.redis_settings import RedisSettings, check_plaintext, is_loopback

Make = Callable[[str, int], driver.AnyConnection]


class Credentials(driver.CredentialProvider):
    """Read for each connection, so that a new password is used without a restart."""

    def __init__(self, settings: RedisSettings) -> None:
        self._username = settings.username
        self._password = settings.password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            password = self._password.read() if self._password is not None else ""
        except InvalidConfig as error:
            error.retryable = True  # Somebody is writing the file.
            raise
        return (password,) if self._username is None else (self._username, password)


def connection_maker(settings: RedisSettings) -> Make:
    """Makes connections, not yet open, to a host and port. Plain text to other machines is refused."""
    options: dict[str, Any] = {
        "db": settings.database,
        "socket_connect_timeout": settings.connect_timeout_s,
        "socket_timeout": settings.write_timeout_s,
        "socket_keepalive": True,
        "protocol": 2,  # Replies of one shape, whatever the server's version.
        "driver_info": None,  # One round trip less for each connection.
        "retry": driver.Retry(driver.NoBackoff(), 0),  # Whether to try again is decided in `calling`.
    }
    if settings.password is not None or settings.username is not None:
        options["credential_provider"] = Credentials(settings)
    kind: type[driver.Connection] = driver.Connection
    if settings.tls:
        kind = driver.SSLConnection
        options |= _tls(settings)

    def make(host: str, port: int) -> driver.AnyConnection:
        check_plaintext(settings, host)
        return kind(host=host, port=port, **options)

    return make


def _tls(settings: RedisSettings) -> dict[str, Any]:
    """What the driver makes each connection's context of: files that are renewed count from then on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.ca_file is not None:
        with _naming("ca_file", settings.ca_file):
            context.load_verify_locations(settings.ca_file)
    if settings.cert_file is not None:
        with _naming("cert_file", settings.cert_file):
            context.load_cert_chain(settings.cert_file, settings.key_file)
    return {
        "ssl_cert_reqs": "none" if settings.skip_verify else "required",
        "ssl_check_hostname": not settings.skip_verify,
        "ssl_ca_certs": settings.ca_file,
        "ssl_certfile": settings.cert_file,
        "ssl_keyfile": settings.key_file,
    }


@contextmanager
def _naming(key: str, path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # Those of the module `ssl` among them.
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or "not in PEM"
        raise InvalidConfig(f"{key} {path!r} cannot be used: {reason}") from None


def warnings(settings: RedisSettings) -> list[str]:
    """What health says about how the server is reached."""
    found = []
    if settings.tls and settings.skip_verify:
        found.append("skip_verify is set: anyone can pose as the server; give it ca_file instead")
    if not settings.tls and not all(is_loopback(host) for host, _ in settings.nodes):
        found.append("allow_plaintext is set: passwords and payloads cross the network unencrypted")
    return found
