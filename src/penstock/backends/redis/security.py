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
        kind = driver.TlsConnection
        options["make_context"] = _context_maker(settings)

    def make(host: str, port: int) -> driver.AnyConnection:
        check_plaintext(settings, host)
        return kind(host=host, port=port, **options)

    return make


def _context_maker(settings: RedisSettings) -> Callable[[], ssl.SSLContext]:
    """Makes a context for each connection: files that are renewed count from then on."""
    _context(settings)  # What is wrong with them now is said at once.

    def make() -> ssl.SSLContext:
        try:
            return _context(settings)
        except InvalidConfig as error:
            raise driver.ConnectionError(str(error)) from None  # Somebody is writing them.

    return make


def _context(settings: RedisSettings) -> ssl.SSLContext:
    """Trusts `ca_file` alone; without it, the authorities of the machine."""
    with _naming("ca_file", settings.ca_file or ""):
        context = ssl.create_default_context(cafile=settings.ca_file)
    if settings.skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_file is not None:
        with _naming("cert_file", settings.cert_file):
            context.load_cert_chain(settings.cert_file, settings.key_file, _no_password)
    return context


def _no_password() -> str:
    raise ValueError("its key is encrypted, and there is nobody to ask for its password")


@contextmanager
def _naming(key: str, path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # Those of the module `ssl` among them.
        own = str(error) if type(error) is ValueError else "not in PEM"
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or own
        raise InvalidConfig(f"{key} {path!r} cannot be used: {reason}") from None


def warnings(settings: RedisSettings) -> list[str]:
    """What health says about how the server is reached."""
    found = []
    if settings.tls and settings.skip_verify:
        found.append("skip_verify is set: anyone can pose as the server; give it ca_file instead")
    if not settings.tls and not all(is_loopback(host) for host, _ in settings.nodes):
        found.append("allow_plaintext is set: passwords and payloads cross the network unencrypted")
    return found
