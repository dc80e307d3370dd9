"""What the driver's errors mean: which calls may be sent again, and which error of Penstock users see."""

from __future__ import annotations

import re
import ssl

from penstock.backends.redis import driver
from penstock.errors import (
    BackendUnavailable,
    PenstockError,
    StorageError,
    StorageFull,
    Unauthorized,
)

_MAX_CHARS = 300
#: Scripts of old servers wrap the reason of what they called: `ERR Error running script (…): -OOM …`.
_WRAPPED = re.compile(
    r"[:.] @user_script:\s?\d+: -?(OOM|READONLY|NOPERM|MISCONF|NOREPLICAS|LOADING|MASTERDOWN) "
)
#: Nothing was done, and the server may do it soon.
_FOR_NOW = frozenset(("LOADING", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "BUSY", "NOREPLICAS"))
_DENIED = frozenset(("NOAUTH", "WRONGPASS", "NOPERM"))


def code_of(error: BaseException) -> str:
    """The word that the server's answer began with, "" for a failure of the connection."""
    if not isinstance(error, driver.RedisError):
        return ""
    text = str(error)
    if "used memory > 'maxmemory'" in text:  # Valkey's scripts leave the word out.
        return "OOM"
    wrapped = _WRAPPED.search(text)
    if wrapped:
        return wrapped[1]
    code = error.status_code if error.status_code and error.status_code.isupper() else ""
    if not code and isinstance(error, driver.ResponseError):
        word = text.partition(" ")[0]
        code = word if word.isupper() else "ERR"
    return code


def is_trouble(error: BaseException) -> bool:
    """Whether the connection failed, so that nobody knows what the server did."""
    return (
        isinstance(error, (driver.ConnectionError, driver.TimeoutError))
        and not is_denied(error)
        and code_of(error) not in _FOR_NOW
    )


def is_for_now(error: BaseException) -> bool:
    """Whether the server answered that it cannot do it now."""
    return code_of(error) in _FOR_NOW


def is_denied(error: BaseException) -> bool:
    return isinstance(error, driver.AuthenticationError) or code_of(error) in _DENIED


def is_bad_certificate(error: BaseException) -> bool:
    """Whether TLS failed in a way that trying again does not change."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def translated(error: BaseException, where: str) -> PenstockError:
    """The error that users see. What the server said is kept short, and on one line."""
    if isinstance(error, PenstockError):
        return error
    code, said = code_of(error), _one_line(error)
    if is_bad_certificate(error):
        made: PenstockError = BackendUnavailable(
            f"{where}: the server's certificate cannot be trusted ({said}); check ca_file and the host's name"
        )
    elif is_denied(error):
        made = Unauthorized(f"{where}: {code or 'refused'}: {said}; check username, password and ACL")
    elif code == "OOM":
        made = StorageFull(f"{where}: the server is out of memory: {said}; raise maxmemory or drain queues")
    elif code in _FOR_NOW or isinstance(error, (driver.ConnectionError, driver.TimeoutError)):
        made = BackendUnavailable(f"{where} does not answer: {f'{code} {said}'.strip()}; try again later")
    elif isinstance(error, driver.InvalidResponse):
        made = StorageError(f"{where} does not speak as Redis does: {said}; check host and port")
    elif code == "MISCONF":
        made = StorageFull(f"{where}: the server cannot save its data: {said}; look at its disk")
    else:
        made = StorageError(f"{where}: {code} {said}")
    made.__cause__ = error
    return made


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return (text if len(text) <= _MAX_CHARS else text[:_MAX_CHARS] + "…").rstrip(".") or type(error).__name__
