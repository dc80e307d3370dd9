"""The `server` section of penstock.yaml, its environment variables, and the settings that come of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.reading import Reader, expanded, types_of

SECTION = "server"
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(rf"([0-9]{{1,15}}) ?({'|'.join(_UNITS)})")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the server takes on at most. Sizes may have a unit in the file: 16KiB, 100MiB."""

    #: Open connections; whoever comes then is answered 503.
    max_connections: int = 2000
    #: Of one request's line and headers: beyond it, 431.
    max_header_bytes: int = 32 * 2**10
    #: Of one request's body: beyond it, 413. The largest message fits, in base64 too.
    max_body_bytes: int = 100 * 2**20
    #: Of all bodies that are being read or answered: beyond it, 503.
    max_total_body_bytes: int = 512 * 2**20
    #: Of the messages in one answer: beyond it there are fewer of them than were asked for.
    max_answer_bytes: int = 64 * 2**20
    #: Calls of stores that run or wait for their turn: beyond it, 503.
    max_calls: int = 2000
    #: Threads that call stores.
    threads: int = 16
    #: Long-polls that wait: beyond it, 429.
    max_polls: int = 5000
    #: Bulk reads, and parts of bulk writes, that are under way: beyond it, 503.
    max_streams: int = 32
    #: How long a request may take to arrive, and how long a client may not read its answer.
    read_timeout_s: float = 30.0
    #: How long a connection may be open without a request.
    idle_timeout_s: float = 75.0
    #: How long a stop waits for answers that are under way.
    stop_timeout_s: float = 30.0


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Files in PEM form; read again when they change. `client_ca`: clients must show a certificate of it."""

    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None


class SqsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where queues are said to be: in their ARNs and URLs, and in what clients sign."""

    region: str = "us-east-1"
    account: str = "000000000000"


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock serve` runs with."""

    host: str = "127.0.0.1"
    port: int = 9324
    #: Who may come, and what they may do; without it everybody may do everything, on loopback alone.
    credentials: str | None = None
    #: Elsewhere than on loopback, without TLS: passwords and messages can be read on the way.
    allow_plaintext: bool = False
    #: Of requests: a file, `-` for standard error, or `off`.
    log: str = "-"
    tls: TlsSettings = TlsSettings()
    limits: Limits = Limits()
    sqs: SqsSettings = SqsSettings()


#: Numbers that make no sense outside of these.
_RANGES: dict[str, tuple[float, float]] = {
    "max_connections": (1, 1_000_000),
    "max_header_bytes": (1024, 2**20),
    "max_body_bytes": (1024, 2**31),
    "max_total_body_bytes": (1024, 2**40),
    "max_answer_bytes": (1024, 2**31),
    "max_calls": (1, 1_000_000),
    "threads": (1, 1000),
    "max_polls": (0, 1_000_000),
    "max_streams": (1, 10_000),
    "read_timeout_s": (0.1, 3600),
    "idle_timeout_s": (0.1, 86_400),
    "stop_timeout_s": (0, 3600),
}
_TOP = ("host", "port", "credentials", "allow_plaintext", "log")
_BLOCKS = {"tls": TlsSettings, "limits": Limits, "sqs": SqsSettings}
_KEYS = (*_TOP, *(f"{block}.{name}" for block, kind in _BLOCKS.items() for name in types_of(kind)))
_REGION = re.compile(r"[a-z0-9-]{1,64}")
_ACCOUNT = re.compile(r"[0-9]{12}")
_PATHS = ("credentials", "log", "tls.certificate", "tls.key", "tls.client_ca")


def variables() -> dict[str, str]:
    """Key below `server` -> the environment variable that wins over it."""
    return {key: f"PENSTOCK_SERVER_{key.upper().replace('.', '_')}" for key in _KEYS}


def server_settings(reader: Reader, value: object) -> ServerSettings:
    """The section of a file, with what the environment says instead."""
    types = types_of(ServerSettings)
    values = reader.mapping(SECTION, value, types)
    reader.check_keys(SECTION, values, tuple(types))
    for block in _BLOCKS:
        kinds = types_of(types[block])
        values[block] = inner = reader.mapping(f"{SECTION}.{block}", values.get(block), kinds)
        reader.check_keys(f"{SECTION}.{block}", inner, tuple(kinds))
    _take_environment(reader, values)
    return _checked(reader, values)


def with_flags(settings: ServerSettings, **flags: Any) -> ServerSettings:
    """The settings with what the command line says instead; None for what it does not say."""
    given = {name: value for name, value in flags.items() if value is not None}
    tls = {name: given.pop(name) for name in types_of(TlsSettings) if name in given}
    reader = Reader("the command line", {}, Path())
    reader.labels = {f"{SECTION}.{name}": f"--{name.replace('_', '-')}" for name in _TOP}
    reader.labels |= {f"{SECTION}.tls.{name}": f"--tls-{name.replace('_', '-')}" for name in tls}
    values = msgspec.to_builtins(settings)
    values.update(given)
    values["tls"].update(tls)
    return _checked(reader, values)


def _take_environment(reader: Reader, values: dict[str, Any]) -> None:
    kinds = {
        name: kind for block in (ServerSettings, *_BLOCKS.values()) for name, kind in types_of(block).items()
    }
    for key, variable in variables().items():
        text = reader.environ.get(variable)
        if not text:
            continue
        reader.labels[f"{SECTION}.{key}"] = variable
        block, _, leaf = key.rpartition(".")
        target = values[block] if block else values
        if key in _PATHS and not (key == "log" and text in ("-", "off")):
            # Like a path typed in a shell: relative to where the process runs, not to the file.
            target[leaf] = str(Path(expanded(text, reader.environ)).absolute())
        else:
            target[leaf] = _typed(text, kinds[leaf])


def _typed(text: str, kind: Any) -> object:
    """What a variable says, as the value that the file would have; what cannot be is refused later."""
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind is int and re.fullmatch("[0-9]{1,15}", text):
        return int(text)
    if kind is float and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return float(text)
    return text


def _checked(reader: Reader, values: dict[str, Any]) -> ServerSettings:
    limits = values["limits"]
    for name, (low, high) in _RANGES.items():
        if name not in limits:
            continue
        key = f"{SECTION}.limits.{name}"
        if name.endswith("_bytes"):
            limits[name] = _size(limits[name])
        limits[name] = number = reader.field(key, types_of(Limits)[name], limits[name])
        if not isinstance(number, int | float) or not low <= number <= high:
            raise reader.refusal(key, f"is out of range; accepted: {low:g} to {high:g}")
    settings = msgspec.convert(reader.fields(SECTION, types_of(ServerSettings), values), ServerSettings)
    if not 0 <= settings.port <= 65_535:
        raise reader.refusal(f"{SECTION}.port", "is out of range; accepted: 0 to 65535, 0 for a free one")
    if not settings.host or not settings.host.isprintable():
        raise reader.refusal(f"{SECTION}.host", "must be a name or an address to listen on")
    _check_sqs(reader, settings.sqs)
    tls = settings.tls
    if (tls.certificate is None) != (tls.key is None):
        missing = "key" if tls.key is None else "certificate"
        raise reader.refusal(f"{SECTION}.tls.{missing}", "is missing; a certificate and its key go together")
    if tls.client_ca is not None and tls.certificate is None:
        raise reader.refusal(f"{SECTION}.tls.client_ca", "needs tls.certificate and tls.key")
    paths = {
        name: _path(reader, f"{SECTION}.tls.{name}", getattr(tls, name)) for name in types_of(TlsSettings)
    }
    log = settings.log
    return msgspec.structs.replace(
        settings,
        tls=TlsSettings(**paths),
        credentials=_path(reader, f"{SECTION}.credentials", settings.credentials),
        log=log if log in ("-", "off") else _path(reader, f"{SECTION}.log", log) or "-",
    )


def _check_sqs(reader: Reader, sqs: SqsSettings) -> None:
    if not _REGION.fullmatch(sqs.region):
        raise reader.refusal(f"{SECTION}.sqs.region", "must be small letters, digits and hyphens")
    if not _ACCOUNT.fullmatch(sqs.account):
        raise reader.refusal(f"{SECTION}.sqs.account", "must be 12 digits, in quotes")


def _path(reader: Reader, key: str, path: str | None) -> str | None:
    if path is None:
        return None
    if not path or "\0" in path:
        raise reader.refusal(key, "must be a path that is not empty and has no NUL in it")
    return str(Path(reader.folder, expanded(path, reader.environ)).absolute())


def _size(value: object) -> object:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) * _UNITS[match[2] or ""] if match else value


def from_environment(environ: Mapping[str, str]) -> ServerSettings:
    """Where there is no file: the defaults, and the environment."""
    return server_settings(Reader("environment", environ, Path()), None)
