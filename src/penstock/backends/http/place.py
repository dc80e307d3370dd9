"""Where a server is, and what is shown to it: read from a URL, its options and the environment."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from penstock.config import BackendSettings, masked_url
from penstock.errors import InvalidConfig

VARIABLE = "PENSTOCK_TOKEN"
MSGPACK = "application/msgpack"
#: The authority to trust, and what is shown to a server that wants a certificate of its clients.
_FILES = ("ca_file", "cert_file", "key_file")
_OPTIONS = ("token", *_FILES, "allow_plaintext")
_TOKEN = re.compile(r"[!-~]+")


class Place(NamedTuple):
    """A server. Its `repr` has no secret in it: the token is not a part of the URL that is shown."""

    url: str
    host: str
    port: int
    prefix: str
    headers: Mapping[str, str]
    #: None: in plain text.
    tls: ssl.SSLContext | None
    #: What a process elsewhere needs to come here, besides the key.
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Place({self.url!r})"

    def shared(self) -> str:
        """The URL for processes elsewhere, without the key: they find it in the environment."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        asked = f"?{urlencode(self.options)}" if self.options else ""
        url = f"{'http' if self.tls is None else 'https'}://{host}:{self.port}{self.prefix}{asked}"
        if "authorization" in self.headers:
            _given[url] = self.headers["authorization"].removeprefix("Bearer ")
        return url


#: Keys that this process was given in words, by shared URL.
_given: dict[str, str] = {}


def at(shared: str) -> Place:
    """The place of a shared URL."""
    settings = BackendSettings(url=shared)
    if shared in _given:
        settings.options["token"] = _given[shared]
    return read(settings)


def read(settings: BackendSettings, environ: Mapping[str, str] = os.environ) -> Place:
    """Refuses what cannot be used, and what would show a key to whoever listens."""
    shown = masked_url(settings.url)
    try:
        parts = urlsplit(settings.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host, user, password = parts.hostname, parts.username, parts.password
    except ValueError:
        raise InvalidConfig(f"{shown} is not a URL, such as http://localhost:9324") from None
    if not host or parts.fragment:
        raise InvalidConfig(f"{shown} is not a URL, such as http://localhost:9324")
    asked = parse_qsl(parts.query, keep_blank_values=True)
    if any(name == "token" for name, _ in asked):
        raise InvalidConfig(
            f"{shown}: a key does not belong behind `?`, where logs keep it; set {VARIABLE}, or put it "
            "before the host: https://KEY@host"
        )
    options = {**settings.options, **dict(asked)}
    # Processes elsewhere are started in other folders.
    options |= {name: os.path.abspath(str(options[name])) for name in _FILES if options.get(name)}
    unknown = options.keys() - set(_OPTIONS)
    if unknown:
        raise InvalidConfig(f"{shown}: unknown option {min(unknown)!r}; accepted: {', '.join(_OPTIONS)}")
    token = unquote(password or user or "") or str(options.get("token", "")) or environ.get(VARIABLE, "")
    if token and not _TOKEN.fullmatch(token):
        raise InvalidConfig(f"{shown}: the key has characters that no key has")
    is_plain = parts.scheme != "https"
    allowed = str(options.get("allow_plaintext", "false")).lower() == "true"
    if token and is_plain and not allowed and not _is_loopback(host):
        raise InvalidConfig(
            f"{shown}: the key would be sent in plain text; use https, or the option allow_plaintext=true "
            "where something else does the encryption"
        )
    headers = {"accept": MSGPACK}
    if token:
        headers["authorization"] = f"Bearer {token}"
    if is_plain and (options.get("cert_file") or options.get("key_file")):
        raise InvalidConfig(f"{shown}: cert_file and key_file go with https")
    tls = None if is_plain else _context(options, shown)
    more = {name: str(value) for name, value in options.items() if name != "token"}
    return Place(shown, host, port, parts.path.rstrip("/"), headers, tls, more)


def _context(options: Mapping[str, Any], shown: str) -> ssl.SSLContext:
    authority, certificate, key = (options.get(name) or None for name in _FILES)
    if key is not None and certificate is None:
        raise InvalidConfig(f"{shown}: key_file goes with cert_file")
    what = f"ca_file {authority!r}"
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate is not None:
            what = f"cert_file {certificate!r} with key_file {key or certificate!r}"
            context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise InvalidConfig(f"{shown}: {what} cannot be used: {why}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted, and there is nobody to ask for its password")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
