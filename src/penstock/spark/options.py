"""The options of `format("penstock")` for reading: their names, what they accept, and what they mean."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, NoReturn

import msgspec

from penstock.backends.bulk import Snapshot
from penstock.errors import InvalidConfig, InvalidMessage
from penstock.event import Kind
from penstock.message import MAX_COUNT, STORED_STATES, checked_name
from penstock.spark.write_options import shared_folder
from penstock.tables import TABLES, TableName, columns_of

#: Where to start or end, for all queues or by name: a seq is that of the last event which is not wanted
#: any more (to start), or of the last that is (to end).
Place = int | Literal["earliest", "latest"]
Places = Place | dict[str, Place]

MAX_PARTITIONS = 10_000
#: Smaller numbers were meant for seconds or milliseconds.
_MIN_NS = 10**15
_ENDS: tuple[Literal["earliest", "latest"], ...] = ("earliest", "latest")
#: What may be asked for by seq.
JOURNALS = ("events", "entries", "bodies")
_TIMED = ("messages", "events", "dead", "entries", "bodies")
#: Options that go with some tables only.
_TABLES_OF = {
    "state": ("messages",),
    "kind": ("events", "entries"),
    "startingOffsets": JOURNALS,
    "endingOffsets": JOURNALS,
    "startingTimestamp": _TIMED,
    "endingTimestamp": _TIMED,
}
STATES = tuple(str(state) for state in STORED_STATES)
KINDS = tuple(str(kind) for kind in Kind)


class Option(NamedTuple):
    """One option; `use` says whether batches, streams or both take it."""

    name: str
    use: Literal["both", "batch", "stream"]
    meaning: str


OPTIONS = (
    Option("url", "both", "the store: a folder, a URL or a penstock.yaml; `load(…)` takes it too"),
    Option("table", "both", "what to read; without, and always in a stream: events"),
    Option("queue", "both", "names, separated by commas, or as a JSON list; without: all"),
    Option("queuePattern", "both", "a regular expression that whole names match, instead of `queue`"),
    Option("world", "batch", "for entries, like `queue`"),
    Option("state", "batch", "of messages: states, separated by commas"),
    Option("kind", "both", "of events and entries: kinds, separated by commas, or as a JSON list"),
    Option("columns", "both", "names, separated by commas: others are neither read nor decoded"),
    Option("snapshot", "batch", "a moment that was taken before, instead of `url`"),
    Option("minPartitions", "both", "about so many tasks read; without: as many as the driver has cores"),
    Option("startingOffsets", "both", "`earliest`, `latest`, or JSON: queue to the seq after which to start"),
    Option("startingTimestamp", "both", "ISO 8601, UTC unless it says otherwise, or nanoseconds since 1970"),
    Option("endingTimestamp", "batch", "the same; what is of that time or later is left out"),
    Option("endingOffsets", "batch", "`latest`, or JSON: queue to the last seq"),
    Option("pushFilters", "batch", "`true`: the store keeps to filters, for a DataFrame that is used once"),
    Option("maxOffsetsPerTrigger", "stream", "so many events a batch at most, shared between the queues"),
    Option(
        "failOnDataLoss", "both", "`true`, or `false`: what retention has removed is passed over, and logged"
    ),
    Option(
        "cursor", "stream", "a required cursor that follows the stream, so that retention stays behind it"
    ),
    Option("rejectsPath", "both", "a folder: what is damaged is set aside there; without: it is an error"),
    Option("keyFile", "both", "of an encrypted store, as `key_file` in penstock.yaml"),
    Option("keyCommand", "both", "of an encrypted store, as `key_command` in penstock.yaml"),
)
_BY_LOWER = {option.name.lower(): option for option in OPTIONS}


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options, understood. It travels to the workers: nothing in it is secret."""

    url: str | None
    snapshot: Snapshot | None
    table: TableName
    names: tuple[str, ...] | None
    pattern: str | None
    states: tuple[str, ...] | None
    kinds: tuple[str, ...] | None
    columns: tuple[str, ...] | None
    partitions: int | None
    starting: Places | None
    starting_ns: int | None
    ending: Places
    ending_ns: int | None
    push_filters: bool
    max_offsets: int | None
    fail_on_data_loss: bool
    cursor: str | None
    rejects: str | None
    key_file: str | None
    key_command: str | None


def parsed(given: Mapping[str, str], use: Literal["batch", "stream"] | None = None) -> ReadOptions:
    """For a batch or a stream; for either, as long as nobody has said which it will be."""
    options = _named(given, use)
    table = _table(options.get("table", "events"), use)
    names_option = "world" if table == "entries" else "queue"
    for option in {"queue", "queuePattern", "world"} & set(options) - {names_option, "queuePattern"}:
        _refuse(option, f"does not go with table {table}", f"use {names_option}")
    _one_of(options, "url", "snapshot")
    _one_of(options, names_option, "queuePattern")
    _one_of(options, "startingOffsets", "startingTimestamp")
    if "url" not in options and "snapshot" not in options:
        raise InvalidConfig(
            'option url is missing: name the store, option("url", "./data") or load("./data")'
        )
    for option, tables in _TABLES_OF.items():
        if option in options and table not in tables:
            _refuse(option, f"does not go with table {table}", f"it goes with {', '.join(tables)}")
    columns = _names("columns", options.get("columns"))
    columns_of(table, columns)
    return ReadOptions(
        url=options.get("url"),
        snapshot=_snapshot(options.get("snapshot")),
        table=table,
        names=_names(names_option, options.get(names_option)),
        pattern=_pattern(options.get("queuePattern")),
        states=_among("state", _names("state", options.get("state")), STATES),
        kinds=_among("kind", _names("kind", options.get("kind")), KINDS if table == "events" else None),
        columns=columns,
        partitions=_number("minPartitions", options.get("minPartitions"), MAX_PARTITIONS),
        starting=_starting(options.get("startingOffsets"), use),
        starting_ns=_moment("startingTimestamp", options.get("startingTimestamp")),
        ending_ns=_moment("endingTimestamp", options.get("endingTimestamp")),
        push_filters=_flag("pushFilters", options.get("pushFilters", "false")),
        ending=_places("endingOffsets", options.get("endingOffsets", "latest"), ("latest",)),
        max_offsets=_number("maxOffsetsPerTrigger", options.get("maxOffsetsPerTrigger"), MAX_COUNT),
        fail_on_data_loss=_flag("failOnDataLoss", options.get("failOnDataLoss", "true")),
        cursor=_cursor(options.get("cursor")),
        rejects=shared_folder(options.get("rejectsPath")),
        key_file=options.get("keyFile"),
        key_command=options.get("keyCommand"),
    )


def _refuse(option: str, problem: str, accepted: str) -> NoReturn:
    raise InvalidConfig(f"option {option} {problem}; {accepted}")


def _named(given: Mapping[str, str], use: str | None) -> dict[str, str]:
    """By their proper names: Spark hands all of them over in lower case."""
    taken = [option.name for option in OPTIONS if use is None or option.use in ("both", use)]
    options = {}
    for key, value in given.items():
        option = _BY_LOWER.get("url" if key.lower() == "path" else key.lower())
        if option is None:
            _refuse(repr(key), "is not known", f"known: {', '.join(taken)}")
        if option.name not in taken:
            _refuse(option.name, f"goes with a {option.use} only", f"a {use} takes: {', '.join(taken)}")
        if option.name in options:
            _refuse(option.name, "and load(…) both name a store", "name it once")
        options[option.name] = value
    return options


def _table(text: str, use: str | None) -> TableName:
    for table in TABLES:
        if text.lower() == table and (use != "stream" or table == "events"):
            return table
    accepted = "a stream reads events" if use == "stream" else f"accepted: {', '.join(TABLES)}"
    _refuse("table", f"is {text!r:.60}", accepted)


def _one_of(options: Mapping[str, str], one: str, other: str) -> None:
    if one in options and other in options:
        _refuse(one, f"and {other} exclude each other", "leave one out")


def _names(option: str, text: str | None) -> tuple[str, ...] | None:
    """A comma may be in a name: a JSON list says which are."""
    if text is None:
        return None
    if text.lstrip().startswith("["):
        try:
            names = msgspec.json.decode(text, type=list[str])
        except (msgspec.DecodeError, msgspec.ValidationError):
            _refuse(option, "is not a JSON list of names", 'accepted: ["one", "other"], or one,other')
    else:
        names = [name for part in text.split(",") if (name := part.strip())]
    if not names:
        _refuse(option, "names nothing", "leave it out for all")
    for name in names:
        _check_name(option, name)
    return tuple(dict.fromkeys(names))


def _among(
    option: str, names: tuple[str, ...] | None, known: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    for name in names or ():
        if known is not None and name not in known:
            _refuse(option, f"has {name!r:.40}", f"accepted: {', '.join(known)}")
    return names


def _check_name(option: str, name: str) -> None:
    try:
        checked_name(name, "a name")
    except InvalidMessage as error:
        raise InvalidConfig(f"option {option}: {error}") from None


def _cursor(text: str | None) -> str | None:
    if text is not None:
        _check_name("cursor", text)
    return text


def _pattern(text: str | None) -> str | None:
    if text is not None:
        try:
            re.compile(text)
        except re.error as error:
            _refuse("queuePattern", f"is not a regular expression: {error}", "accepted: such as orders-.*")
    return text


def _snapshot(text: str | None) -> Snapshot | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Snapshot)
    except (msgspec.DecodeError, msgspec.ValidationError):
        _refuse("snapshot", "is none", "accepted: what penstock.spark.snapshot(url) gives")


def _number(option: str, text: str | None, most: int) -> int | None:
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,19}", text) or not 1 <= int(text) <= most:
        _refuse(option, f"is {text!r:.40}", f"accepted: 1 to {most}")
    return int(text)


def _flag(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        _refuse(option, f"is {text!r:.40}", "accepted: true, false")
    return text.lower() == "true"


def _starting(text: str | None, use: str | None) -> Places | None:
    if text is None:
        return None
    return _places("startingOffsets", text, ("earliest",) if use == "batch" else _ENDS)


def _places(option: str, text: str, words: Iterable[str]) -> Places:
    for word in _ENDS:
        if text.strip().lower() == word and word in words:
            return word
    try:
        places: object = json.loads(text)
    except ValueError:
        places = None
    if not isinstance(places, dict) or not all(_is_place(place, words) for place in places.values()):
        shown = ", ".join(words)
        _refuse(option, f"is {text!r:.80}", f'accepted: {shown}, or JSON such as {{"orders": 120}}')
    return places


def _is_place(place: object, words: Iterable[str]) -> bool:
    if isinstance(place, int) and not isinstance(place, bool):
        return 0 <= place <= MAX_COUNT
    return isinstance(place, str) and place in words


def _moment(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if re.fullmatch("[0-9]{1,19}", text.strip()) and _MIN_NS <= int(text) <= MAX_COUNT:
        return int(text)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        at = None
    if at is None or re.fullmatch("[0-9]+", text.strip()):
        _refuse(
            option, f"is {text!r:.40}", "accepted: such as 2026-11-16T08:30:00Z, or nanoseconds since 1970"
        )
    at = at.replace(tzinfo=at.tzinfo or UTC)
    return max(0, (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000)
