"""Where encryption keys come from: the contract of a key provider, and those that ship.

A key is 32 bytes, written as 64 hexadecimal digits. Its value is never shown, logged or stored.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.errors import InvalidConfig, KeyMissing

KEY_BYTES = 32
MAX_FILE_BYTES = 64 * 1024
COMMAND_TIMEOUT_S = 30.0

ACCEPTED_IDS = "1 to 64 letters, digits, dots, underscores and hyphens"

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LINE = re.compile(r"\s*(\S+?)\s*=\s*(\S+)\s*")
_MAKE = "make one with: python -c 'import secrets; print(secrets.token_hex(32))'"


class KeyProvider(Protocol):
    """Anything that knows keys by their ids: a store asks it when it is opened."""

    def key(self, key_id: str, /) -> bytes | None:
        """The 32 bytes of a key; None if this provider does not have it."""
        ...


def is_key_id(text: str) -> bool:
    """Whether records, variables and files can all name it: see `ACCEPTED_IDS`."""
    return _ID.fullmatch(text) is not None


def variable(key_id: str) -> str:
    """The environment variable of a key."""
    return "PENSTOCK_KEY_" + re.sub("[^A-Z0-9]", "_", key_id.upper())


def _parsed(text: str, source: str) -> bytes:
    if not re.fullmatch("[0-9A-Fa-f]{64}", text):
        raise InvalidConfig(
            f"{source} must hold 64 hexadecimal digits, not {len(text)} other characters; {_MAKE}"
        )
    return bytes.fromhex(text)


class EnvironmentKeys:
    """Keys in `PENSTOCK_KEY_<ID>`; an empty variable counts as not set."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    def key(self, key_id: str, /) -> bytes | None:
        name = variable(key_id)
        text = self._environ.get(name, "").strip()
        return _parsed(text, name) if text else None


class FileKeys:
    """Keys in a file that only its owner may read: a line `id = digits` each; # starts a comment."""

    def __init__(self, path: str) -> None:
        self._path = path

    def key(self, key_id: str, /) -> bytes | None:
        text = self._keys().get(key_id)
        return None if text is None else _parsed(text, f"key {key_id!r} in key_file {self._path}")

    def _keys(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for number, line in enumerate(self._text().splitlines(), start=1):
            line = line.partition("#")[0].strip()
            if not line:
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                raise InvalidConfig(f"key_file {self._path}, line {number}: accepted: id = 64 hex digits")
            if match[1] in found:
                raise InvalidConfig(f"key_file {self._path}, line {number}: {match[1]!r:.80} is there twice")
            found[match[1]] = match[2]
        return found

    def _text(self) -> str:
        try:
            # Not blocking: a named pipe would wait for a writer.
            with open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                if not stat.S_ISREG(mode):
                    raise InvalidConfig(f"key_file {self._path} is not a file")
                if mode & (stat.S_IRWXG | stat.S_IRWXO):
                    raise InvalidConfig(
                        f"key_file {self._path} is open to others than its owner; chmod 600 {self._path}"
                    )
                raw = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise KeyMissing(f"key_file {self._path} cannot be read: {error.strerror}") from error
        if len(raw) > MAX_FILE_BYTES:
            raise InvalidConfig(f"key_file {self._path} is too large; accepted: up to {MAX_FILE_BYTES} bytes")
        return raw.decode(errors="replace")


class CommandKeys:
    """Keys that a program prints when it is called with a key's id; it prints nothing for one it lacks.

    Its standard error is this process's own: what it says goes to whoever runs the store.
    """

    def __init__(self, command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        self._command = list(command)
        self._timeout_s = timeout_s

    def key(self, key_id: str, /) -> bytes | None:
        name = self._command[0]
        try:
            done = subprocess.run(
                [*self._command, key_id],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=self._timeout_s,
                check=False,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise KeyMissing(f"key_command {name!r} for key {key_id!r} cannot be run: {reason}") from error
        except subprocess.TimeoutExpired:
            # Not from it: the error has what the command printed.
            raise KeyMissing(
                f"key_command {name!r} for key {key_id!r} has not ended after {self._timeout_s:g} s"
            ) from None
        if done.returncode != 0:
            raise KeyMissing(f"key_command {name!r} for key {key_id!r} ended with status {done.returncode}")
        text = done.stdout.decode(errors="replace").strip()
        return _parsed(text, f"what key_command {name!r} printed for key {key_id!r}") if text else None


class FirstOf:
    """Several providers: the first that has a key gives it."""

    def __init__(self, *providers: KeyProvider) -> None:
        self._providers = providers

    def key(self, key_id: str, /) -> bytes | None:
        for provider in self._providers:
            found = provider.key(key_id)
            if found is not None:
                return found
        return None


def configured_keys(key_file: str | None, key_command: str | Sequence[str] | None) -> KeyProvider:
    """What settings name: the environment, then the file, then the command, one text or its words."""
    providers: list[KeyProvider] = [EnvironmentKeys()]
    if key_file is not None:
        providers.append(FileKeys(key_file))
    if key_command is not None:
        words = shlex.split(key_command) if isinstance(key_command, str) else key_command
        providers.append(CommandKeys(words))
    return FirstOf(*providers)
