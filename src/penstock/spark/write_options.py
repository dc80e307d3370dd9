"""The options of `format("penstock")` for writing: their names, what they accept, and what they mean."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from typing import Literal, NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.backends.bulk import UNNAMED, Txn
from penstock.errors import InvalidConfig, InvalidMessage
from penstock.message import MAX_COUNT, checked_name

Use = Literal["batch", "stream"]


class WriteOption(NamedTuple):
    """One option; `use` says whether batches, streams or both take it."""

    name: str
    use: Literal["both", "batch"]
    meaning: str


WRITE_OPTIONS = (
    WriteOption("url", "both", "the store: a folder, a URL or a penstock.yaml; `save(…)` takes it too"),
    WriteOption("queue", "both", "the queue that all rows go to; without: a column `queue` names each row's"),
    WriteOption(
        "txnAppId", "batch", "a name for what writes; with `txnVersion`, a job that is run again counts once"
    ),
    WriteOption(
        "txnVersion", "batch", "a number that goes up with each job of the same `txnAppId` for a queue"
    ),
    WriteOption(
        "rejectsPath", "both", "a folder: bad rows go there, each with its reason; without: an error"
    ),
    WriteOption("keyFile", "both", "of an encrypted store, as `key_file` in penstock.yaml"),
    WriteOption("keyCommand", "both", "of an encrypted store, as `key_command` in penstock.yaml"),
)
_BY_LOWER = {option.name.lower(): option for option in WRITE_OPTIONS}


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options, understood. It travels to the workers: nothing in it is secret.

    `txn` is None for a stream, whose query and batch say which job it is.
    """

    url: str
    queue: str | None
    txn: Txn | None
    rejects: str | None
    key_file: str | None
    key_command: str | None


def parsed(given: Mapping[str, str], use: Use) -> WriteOptions:
    options = _named(given, use)
    if "url" not in options:
        raise InvalidConfig(
            'option url is missing: name the store, option("url", "./data") or save("./data")'
        )
    if (queue := options.get("queue")) is not None:
        _check_name("queue", queue)
    return WriteOptions(
        url=options["url"],
        queue=queue,
        txn=_txn(options.get("txnAppId"), options.get("txnVersion")) if use == "batch" else None,
        rejects=shared_folder(options.get("rejectsPath")),
        key_file=options.get("keyFile"),
        key_command=options.get("keyCommand"),
    )


def _refuse(option: str, problem: str, accepted: str) -> NoReturn:
    raise InvalidConfig(f"option {option} {problem}; {accepted}")


def _named(given: Mapping[str, str], use: Use) -> dict[str, str]:
    """By their proper names: Spark hands all of them over in lower case."""
    taken = [option.name for option in WRITE_OPTIONS if option.use in ("both", use)]
    options: dict[str, str] = {}
    for key, value in given.items():
        if key.lower() == "checkpointlocation":
            continue  # Spark's own.
        option = _BY_LOWER.get("url" if key.lower() == "path" else key.lower())
        if option is None:
            _refuse(repr(key), "is not known", f"known: {', '.join(taken)}")
        if option.name not in taken:
            _refuse(option.name, "does not go with a stream", "its query and batch say which job it is")
        if option.name in options:
            _refuse(option.name, "and save(…) both name a store", "name it once")
        options[option.name] = value
    return options


def _check_name(option: str, name: str) -> None:
    try:
        checked_name(name, "a name")
    except InvalidMessage as error:
        raise InvalidConfig(f"option {option}: {error}") from None


def _txn(app: str | None, version: str | None) -> Txn:
    """The job's own; one without a name gets one, and cannot be recognized when it is run again."""
    if (app is None) != (version is None):
        _refuse("txnAppId" if version is None else "txnVersion", "is alone", "give both of them, or none")
    if app is None or version is None:
        return Txn(f"{UNNAMED}{uuid.uuid4()}", 0)
    _check_name("txnAppId", app)
    if app.startswith(UNNAMED):
        _refuse("txnAppId", f"is {app!r:.40}", f"accepted: names that do not start with {UNNAMED}")
    if not re.fullmatch("[0-9]{1,19}", version) or int(version) > MAX_COUNT:
        _refuse("txnVersion", f"is {version!r:.40}", f"accepted: 0 to {MAX_COUNT}")
    return Txn(app, int(version))


def shared_folder(text: str | None) -> str | None:
    """The folder of `rejectsPath`, as the driver understands it: tasks run in other folders."""
    if text is None:
        return None
    parts = urlsplit(text)
    if parts.scheme not in ("", "file") or parts.netloc:
        _refuse("rejectsPath", f"is {text!r:.80}", "accepted: a folder that driver and workers share")
    return os.path.abspath(unquote(parts.path) if parts.scheme else text)
