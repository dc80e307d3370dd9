"""Arrow columns as messages: which ones a bulk write takes, of which types, and the rows in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import BackendNotInstalled, InvalidMessage
from penstock.message import DEFAULT_PRIORITY, MAX_PRIORITY, MAX_WEIGHT

if TYPE_CHECKING:
    import pyarrow

PAYLOAD, QUEUE = "payload", "queue"


def arrow() -> Any:
    """The library, which only those who stage rows need."""
    try:
        import pyarrow
    except ImportError as error:
        raise BackendNotInstalled("pyarrow", "spark") from error
    return pyarrow


def arrow_compute() -> Any:
    import pyarrow.compute

    return pyarrow.compute


def _is_text(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    types = arrow().types
    binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(binary or types.is_fixed_size_binary(kind) or _is_text(kind))


def _is_int(kind: Any) -> bool:
    return bool(arrow().types.is_integer(kind))


def _is_number(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _is_text_list(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind)) and _is_text(kind.value_type)


def _is_text_map(kind: Any) -> bool:
    return bool(arrow().types.is_map(kind)) and _is_text(kind.key_type) and _is_text(kind.item_type)


class Accepted(NamedTuple):
    """What a column may be, for Arrow and for people."""

    is_one: Callable[[Any], bool]
    what: str


ACCEPTED: dict[str, Accepted] = {
    PAYLOAD: Accepted(_is_bytes, "binary or string"),
    QUEUE: Accepted(_is_text, "string"),
    "headers": Accepted(_is_text_map, "map of string to string"),
    "fairness_key": Accepted(_is_text, "string"),
    "weight": Accepted(_is_int, "an integer type"),
    "throttle_keys": Accepted(_is_text_list, "array of string"),
    "priority": Accepted(_is_int, "an integer type"),
    "delay_s": Accepted(_is_number, "a number type, in seconds"),
    "ttl_s": Accepted(_is_number, "a number type, in seconds"),
    "dedup_id": Accepted(_is_text, "string"),
    "id": Accepted(_is_text, "string, a UUID"),
}

#: fairness key, priority, weight
Shape = tuple[str, int, int]

#: In place of a text with bytes that are none; this very object.
NOT_TEXT: Any = b"not UTF-8"

#: What a message may have and still be one of many that differ by payload alone.
_SIMPLE = {PAYLOAD, QUEUE, "fairness_key", "weight", "priority"}


def check_schema(schema: pyarrow.Schema, *, one_queue: bool) -> None:
    """Refuse columns that no message has, or of another type, before any row is looked at."""
    for field in schema:
        accepted = ACCEPTED.get(field.name)
        if accepted is None:
            raise InvalidMessage(
                f"column {field.name!r:.60} is not one of a message; accepted: {', '.join(ACCEPTED)}: "
                "leave it out, or put it into payload or headers"
            )
        if not accepted.is_one(field.type) and not arrow().types.is_null(field.type):
            raise InvalidMessage(f"column {field.name!r} is {field.type}; accepted: {accepted.what}")
        if len(schema.get_all_field_indices(field.name)) > 1:
            raise InvalidMessage(f"column {field.name!r} is there twice; leave one out")
    if PAYLOAD not in schema.names:
        raise InvalidMessage(f"column {PAYLOAD!r} is missing; it holds what the messages carry")
    if one_queue and QUEUE in schema.names:
        raise InvalidMessage("both a queue and a column 'queue' are given; leave one out")
    if not one_queue and QUEUE not in schema.names:
        raise InvalidMessage("no queue is given, and no column 'queue'; name the queue, or add the column")


class Columns:
    """One batch, its schema checked. A column without a value in it is as one that is not there."""

    def __init__(self, batch: pyarrow.RecordBatch) -> None:
        self.rows: int = batch.num_rows
        self._columns: dict[str, Any] = {
            name: batch.column(at)
            for at, name in enumerate(batch.schema.names)
            if batch.column(at).null_count < batch.num_rows
        }
        self._lists: dict[str, list[Any]] = {}
        #: Nothing to its rows but payload, and where they belong; no number among them that is refused.
        self.simple = (
            self._columns.keys() <= _SIMPLE
            and self._in_range("priority", 0, MAX_PRIORITY)
            and self._in_range("weight", 1, MAX_WEIGHT)
        )

    def payload(self) -> Any:
        """As Arrow has it, in bytes; None if all are null."""
        pa, column = arrow(), self._columns.get(PAYLOAD)
        return None if column is None else column.cast(pa.large_binary())

    def values(self, name: str) -> list[Any] | None:
        column = self._columns.get(name)
        if column is None:
            return None
        if name not in self._lists:
            self._lists[name] = _listed(name, column)
        return self._lists[name]

    def rows_of(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """The values of these columns, row by row; None where there is none."""
        return zip(*(self.values(name) or repeat(None, self.rows) for name in names), strict=True)

    def shapes(self) -> tuple[list[Shape], Any]:
        """The fairness keys, priorities and weights that there are, and which of them each row has."""
        import numpy as np

        keys, at = self._fairness_keys()
        if "priority" not in self._columns and "weight" not in self._columns:
            return [(key, DEFAULT_PRIORITY, 1) for key in keys], at
        # Each row's three as one number, for they are small.
        codes = (at.astype(np.int64) << 16) | (self._numbers("priority", DEFAULT_PRIORITY) << 12)
        found = arrow().array(codes | self._numbers("weight", 1)).dictionary_encode()
        shapes = [(keys[code >> 16], code >> 12 & 15, code & 4095) for code in found.dictionary.to_pylist()]
        return shapes, found.indices.to_numpy()

    def _numbers(self, name: str, default: int) -> Any:
        import numpy as np

        column = self._columns.get(name)
        if column is None:
            return np.full(self.rows, default, np.int64)
        return column.cast(arrow().int64()).fill_null(default).to_numpy(zero_copy_only=False)

    def _in_range(self, name: str, low: int, high: int) -> bool:
        column = self._columns.get(name)
        if column is None:
            return True
        ends = arrow_compute().min_max(column).as_py()
        return bool(low <= ends["min"] <= ends["max"] <= high)

    def _fairness_keys(self) -> tuple[list[Any], Any]:
        import numpy as np

        column = self._columns.get("fairness_key")
        if column is None:
            return [""], np.zeros(self.rows, np.int64)
        encoded = column.dictionary_encode()
        keys = _read(encoded.dictionary)
        if "" not in keys:  # None is as none.
            keys.append("")
        return keys, encoded.indices.fill_null(keys.index("")).to_numpy(zero_copy_only=False)


def _listed(name: str, column: Any) -> list[Any]:
    pa = arrow()
    if name == PAYLOAD and _is_text(column.type):
        column = column.cast(pa.large_binary())
    elif name in ("delay_s", "ttl_s"):
        column = column.cast(pa.float64(), safe=False)
    elif name == "headers":
        return _read_maps(column)
    return _read(column)


def _read_maps(column: Any) -> list[Any]:
    """As dicts: column by column, for map by map costs several times as much."""
    ends = column.offsets.to_pylist()
    start = ends[0]
    keys = _read(column.keys.slice(start, ends[-1] - start))
    items = _read(column.items.slice(start, ends[-1] - start))
    return [
        dict(zip(keys[at - start : end - start], items[at - start : end - start], strict=True))
        if there
        else None
        for at, end, there in zip(ends, ends[1:], column.is_valid().to_pylist(), strict=False)
    ]


def _read(column: Any) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return [_read_one(value) for value in column]
    return values


def _read_one(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return NOT_TEXT
