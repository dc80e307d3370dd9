"""The server's certificate, and whose certificates it takes; read again when the files change."""

from __future__ import annotations

import logging
import os
import ssl

from penstock.errors import InvalidConfig
from penstock.server_config import TlsSettings

log = logging.getLogger("penstock.server")


class Tls:
    """The context of now, for every handshake: a new one knows no session of the one before.

    A session that is taken up again is let in by what was looked at when it began, whoever is out since.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self.trouble: list[str] = []
        self._files = [path for path in (settings.certificate, settings.key, settings.client_ca) if path]
        self._seen = self._marks()
        self._current = self._made()

    def context(self) -> ssl.SSLContext:
        return self._current

    def refresh(self) -> bool:
        """Read the files again if they changed; whether what they say is in use now."""
        marks = self._marks()
        if marks == self._seen:
            return False
        self._seen = marks
        try:
            self._current = self._made()
        except InvalidConfig as error:
            self.trouble = [f"{error}; the one before is still in use"]
            log.error("%s", self.trouble[0])
            return False
        self.trouble = []
        log.info("the certificate was read again")
        return True

    def _made(self) -> ssl.SSLContext:
        settings = self._settings
        assert settings.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        what = f"server.tls: {settings.certificate} with {settings.key}"
        try:
            context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
            if settings.client_ca is not None:
                what = f"server.tls.client_ca: {settings.client_ca}"
                context.load_verify_locations(settings.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise InvalidConfig(f"{what} cannot be used: {why}") from None
        return context

    def _marks(self) -> list[tuple[int, int, int]]:
        marks = []
        for path in self._files:
            try:
                found = os.stat(path)
                marks.append((found.st_ino, found.st_mtime_ns, found.st_size))
            except OSError:
                marks.append((0, 0, 0))
        return marks


def _no_password() -> str:
    raise ValueError("the key is encrypted, and there is nobody to ask for its password")
