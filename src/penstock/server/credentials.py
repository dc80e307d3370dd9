"""The credentials file: API keys by their hash, AWS access keys, certificates, and what each may do.

It is read again when it changes. What cannot be used leaves the credentials as they were, and is told.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from penstock.clock import NS_PER_S, Clock
from penstock.errors import InvalidConfig
from penstock.reading import Reader, expanded, join, types_of
from penstock.server.access import PERMISSIONS, Permission, Principal

log = logging.getLogger("penstock.server")

#: What an API key begins with, so that scanners for leaked secrets can find it.
TOKEN_PREFIX = "psk_"
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]
_HASH = re.compile(r"[0-9a-f]{64}")


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One principal of the file. `expires_at` is in ISO 8601, with a time zone."""

    grants: dict[str, list[str]] = {}
    #: SHA-256 of the API key.
    token_sha256: str | None = None
    aws_access_key: str | None = None
    #: In clear, for signatures are made with it: here, as ${VARIABLE}, or in a file of its own.
    aws_secret: str | None = None
    aws_secret_file: str | None = None
    #: The common name of a client's certificate.
    certificate: str | None = None
    expires_at: str | None = None


def hash_of(token: str) -> str:
    """Of 256 random bits a plain hash is enough: there is nothing to guess, so nothing to slow down."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class NoCredentials:
    """Where everybody may do everything: on loopback."""

    required = False
    trouble: tuple[str, ...] = ()

    def by_token(self, token: str) -> Principal | None:
        return None

    def by_access_key(self, access_key: str) -> tuple[Principal, str] | None:
        return None

    def by_certificate(self, name: str) -> Principal | None:
        return None

    def is_good(self, who: Principal) -> bool:
        return True

    def refresh(self) -> list[str]:
        return []


class _Known:
    """What one reading of the file gave."""

    def __init__(self) -> None:
        self.tokens: dict[str, tuple[Principal, int]] = {}
        self.access_keys: dict[str, tuple[Principal, int, str]] = {}
        self.certificates: dict[str, tuple[Principal, int]] = {}
        self.principals: dict[str, tuple[Principal, int]] = {}
        self.entries: dict[str, KeyEntry] = {}
        #: By principal, whichever place it was read from.
        self.secrets: dict[str, str] = {}
        #: Besides the file itself, each as it was before it was read: what changes meanwhile is read again.
        self.files: dict[str, tuple[int, ...]] = {}

    def of(self, name: str) -> tuple[KeyEntry | None, str | None]:
        return self.entries.get(name), self.secrets.get(name)


class CredentialsFile:
    """What the file says, as of its last good reading."""

    required = True

    def __init__(self, path: str, clock: Clock, environ: Mapping[str, str] = os.environ) -> None:
        self._path = path
        self._clock = clock
        self._environ = environ
        self.trouble: list[str] = []
        before = _mark(path)
        self._known = _read(path, environ)
        self._seen = (before, *self._known.files.values())

    def refresh(self) -> list[str]:
        """Read it again if it changed; the names of principals that are new, gone or not what they were."""
        marks = tuple(map(_mark, (self._path, *self._known.files)))
        # While something is wrong it is read each time: it may be a file that those in use do not name.
        if marks == self._seen and not self.trouble:
            return []
        self._seen = marks
        try:
            known = _read(self._path, self._environ, self._known)
        except InvalidConfig as error:
            trouble = [f"{error}; the credentials before are still in use"]
            if trouble != self.trouble:
                log.error("%s", trouble[0])
            self.trouble = trouble
            return []
        before, self._known, self.trouble = self._known, known, []
        self._seen = (marks[0], *known.files.values())
        names = {*before.entries, *known.entries}
        changed = sorted(name for name in names if before.of(name) != known.of(name))
        log.info("credentials were read again; changed: %d", len(changed))
        return changed

    def by_token(self, token: str) -> Principal | None:
        # Found by its hash: what the time of a look-up tells of a hash tells nothing of a key.
        wanted = hash_of(token)
        found = self._known.tokens.get(wanted)
        return self._unexpired(found)

    def by_access_key(self, access_key: str) -> tuple[Principal, str] | None:
        found = self._known.access_keys.get(access_key)
        who = self._unexpired(found and found[:2])
        return None if found is None or who is None else (who, found[2])

    def by_certificate(self, name: str) -> Principal | None:
        return self._unexpired(self._known.certificates.get(name))

    def is_good(self, who: Principal) -> bool:
        return self._unexpired(self._known.principals.get(who.name)) is who

    def _unexpired(self, found: tuple[Principal, int] | None) -> Principal | None:
        return found[0] if found is not None and self._clock.now_ns() < found[1] else None


def _mark(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
        return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
    except (OSError, ValueError):
        return ()


def read_entries(path: str, environ: Mapping[str, str]) -> dict[str, KeyEntry]:
    """Every entry of the file by its name, each value checked."""
    return _read(path, environ).entries


def _read(path: str, environ: Mapping[str, str], before: _Known | None = None) -> _Known:
    """A principal of whom nothing has changed since `before` stays the same object."""
    _check_mode(path, "credentials file")
    reader = Reader(path, environ, Path(path).parent)
    tree = reader.document(Path(path), ("keys",))
    reader.check_keys("", tree, ("keys",))
    known = _Known()
    for name, value in reader.mapping("keys", tree.get("keys")).items():
        _add(reader, known, before or _Known(), name, value)
    return known


def _check_mode(path: str, what: str) -> None:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidConfig(f"{what} {path!r} cannot be read: {why}") from None
    if mode & 0o077:
        raise InvalidConfig(f"{what} {path} can be read by others; chmod 600 {path}")


def _add(reader: Reader, known: _Known, before: _Known, name: str, value: object) -> None:
    key = join("keys", name)
    _check_text(reader, key, name)
    types = types_of(KeyEntry)
    values: dict[str, Any] = reader.fields(key, types, reader.mapping(key, value, types))
    entry = msgspec.convert(values, KeyEntry)
    until_ns = _until_ns(reader, key, entry.expires_at)
    if entry.aws_access_key is not None:
        known.secrets[name] = _secret(reader, known, key, entry)
    known.entries[name] = entry
    who = Principal(name, _grants(reader, key, entry))
    if name in before.principals and before.of(name) == known.of(name):
        who, _ = before.principals[name]
    known.principals[name] = who, until_ns
    if entry.token_sha256 is not None:
        if not _HASH.fullmatch(entry.token_sha256):
            raise reader.refusal(f"{key}.token_sha256", "is not 64 hexadecimal digits")
        _put(reader, f"{key}.token_sha256", known.tokens, entry.token_sha256, (who, until_ns))
    if entry.aws_access_key is not None:
        found = (who, until_ns, known.secrets[name])
        _put(reader, f"{key}.aws_access_key", known.access_keys, entry.aws_access_key, found)
    if entry.certificate is not None:
        _put(reader, f"{key}.certificate", known.certificates, entry.certificate, (who, until_ns))


def _check_text(reader: Reader, key: str, name: str) -> None:
    """What cannot be written down in logs and the audit is nobody's name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise reader.refusal(ascii(key), "has a name that is no text; write it as UTF-8") from None


def _put(reader: Reader, key: str, into: dict[str, Any], name: str, value: object) -> None:
    if name in into:
        raise reader.refusal(key, "is another principal's too; each needs its own")
    into[name] = value


def _grants(reader: Reader, key: str, entry: KeyEntry) -> dict[str, frozenset[Permission]]:
    grants = {}
    for pattern, given in entry.grants.items():
        wrong = [one for one in given if one not in PERMISSIONS]
        if wrong or not pattern:
            accepted = ", ".join(PERMISSIONS)
            raise reader.refusal(
                join(f"{key}.grants", pattern), f"is not a list of permissions; accepted: {accepted}"
            )
        _check_text(reader, f"{key}.grants", pattern)
        grants[pattern] = frozenset(one for one in PERMISSIONS if one in given)
    return grants


def _until_ns(reader: Reader, key: str, text: str | None) -> int:
    if text is None:
        return 2**63
    try:
        moment: datetime = msgspec.convert(text, _Moment)
    except msgspec.ValidationError:
        problem = "must be like 2027-01-31T00:00:00Z, in quotes"
        raise reader.refusal(f"{key}.expires_at", problem) from None
    return int(moment.timestamp()) * NS_PER_S


def _secret(reader: Reader, known: _Known, key: str, entry: KeyEntry) -> str:
    if (entry.aws_secret is None) == (entry.aws_secret_file is None):
        raise reader.refusal(f"{key}.aws_access_key", "needs one of aws_secret and aws_secret_file")
    if entry.aws_secret is not None:
        secret = entry.aws_secret
    else:
        path = str(Path(reader.folder, expanded(str(entry.aws_secret_file), reader.environ)))
        known.files[path] = _mark(path)
        _check_mode(path, f"{key}.aws_secret_file:")
        try:
            secret = Path(path).read_text().strip()
        except (OSError, ValueError):
            raise reader.refusal(f"{key}.aws_secret_file", "cannot be read") from None
    if len(secret) < 16:
        raise reader.refusal(f"{key}.aws_secret", "is too short; accepted: 16 characters or more")
    return secret
