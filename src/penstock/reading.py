"""Reads a document of plain values, and knows how errors name each of them; no value is trusted."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import yaml

from penstock.errors import InvalidConfig

MAX_FILE_BYTES = 256 * 1024

_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<open>\{)|(?P<home>HOME\b))")
_TAG = "tag:yaml.org,2002:"
_SCALARS = {_TAG + name for name in ("str", "int", "float", "bool", "null")}
_MAX_NUMBER_CHARS = 64


class Reader:
    """Reads one file or URL, and knows how errors name each of its values."""

    def __init__(self, name: str, environ: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.environ = environ
        self.folder = folder
        self.labels: dict[str, str] = {}  # dotted key -> how errors name it, if not by file and key
        self.written: dict[str, str] = {}  # dotted key -> its text before ${…}: errors show that

    def refusal(self, key: str, problem: str) -> InvalidConfig:
        label = self.labels.get(key) or (f"{self.name}: {key}" if key else self.name)
        return InvalidConfig(f"{label} {problem}")

    def document(self, file: Path, accepted: Iterable[str]) -> dict[str, object]:
        """The file's plain values with ${…} replaced. Aliases, which let a small file grow, are refused."""
        try:
            with open(file, "rb") as stream:
                raw = stream.read(MAX_FILE_BYTES + 1)
        except (OSError, ValueError) as error:
            raise self.refusal("", f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if len(raw) > MAX_FILE_BYTES:
            raise self.refusal("", f"is too large; accepted: up to {MAX_FILE_BYTES} bytes")
        try:
            loader = yaml.SafeLoader(raw.decode("utf-8-sig"))
            node = loader.get_single_node()
            tree = None if node is None else self._plain(loader, node, "", set())
        except UnicodeDecodeError as error:
            raise self.refusal("", f"is not UTF-8 at byte {error.start}; save it as UTF-8") from None
        except RecursionError:
            raise self.refusal("", "is nested too deeply: no key has more than four parts") from None
        except yaml.YAMLError as error:
            # PyYAML's own message quotes the line, which may hold a secret: only the place is passed on.
            mark = getattr(error, "problem_mark", None)
            place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            raise self.refusal("", f"is not one valid YAML document{place}") from None
        return self.mapping("", tree, accepted)

    def _plain(self, loader: Any, node: Any, key: str, seen: set[int]) -> object:
        if id(node) in seen:
            raise self.refusal(key, "uses a YAML alias, which is not accepted; write the value out")
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(loader, node, key)
        if node.tag not in (_TAG + "map", _TAG + "seq"):
            raise self.refusal(key, "has a YAML tag, which is not accepted; leave it out")
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(loader, item, f"{key}[{at}]", seen) for at, item in enumerate(node.value)]
        tree: dict[str, object] = {}
        for name, value in node.value:
            line = name.start_mark.line + 1
            if name.tag != _TAG + "str":
                raise self.refusal(key, f"has a key that is not text, in line {line}; put it in quotes")
            child = join(key, name.value)
            if name.value in tree:
                raise self.refusal(child, f"is there twice, again in line {line}; keep one")
            tree[name.value] = self._plain(loader, value, child, seen)
        return tree

    def _scalar(self, loader: Any, node: Any, key: str) -> object:
        if node.tag == _TAG + "str":
            return self.interpolated(key, node.value)
        try:
            if node.tag in _SCALARS and len(node.value) <= _MAX_NUMBER_CHARS:
                value: object = loader.construct_object(node)
                return value
        except (ValueError, LookupError):
            pass
        raise self.refusal(key, "is neither text, number, true, false nor null; put text in quotes")

    def interpolated(self, key: str, text: str) -> str:
        """`text` with ${NAME} from the environment and $$ as a dollar; in storage.path also $HOME."""

        def replacement(match: re.Match[str]) -> str:
            if match["open"]:
                raise self.refusal(key, "has a ${ that is not ${NAME}; for a dollar sign write $$")
            if match["home"] and key != "storage.path":
                return match[0]
            name = match["name"] or match["home"]
            if name and name not in self.environ:
                raise self.refusal(key, f"needs the environment variable {name}, which is not set")
            return self.environ[name] if name else "$"

        replaced = _VARIABLE.sub(replacement, text)
        if replaced != text:
            self.written[key] = text
        return replaced

    def fields(self, key: str, types: dict[str, Any], values: dict[str, object]) -> dict[str, object]:
        """`values`, each of the type that its key has in `types`."""
        self.check_keys(key, values, tuple(types))
        return {name: self.field(join(key, name), types[name], value) for name, value in values.items()}

    def field(self, key: str, kind: Any, value: object) -> object:
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise self.refusal(key, f"is {self.shown(key, value)}; accepted: {', '.join(get_args(kind))}")
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.fields(key, types_of(kind), self.mapping(key, value, types_of(kind)))
        try:
            converted: object = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            problem, _, at = str(error).partition(" - at `$")
            accepted = "; accepted: true, false" if bool in (kind, *get_args(kind)) else ""
            raise self.refusal(key + at.rstrip("`"), f"cannot be used: {problem}{accepted}") from None
        return converted

    def mapping(self, key: str, value: object, accepted: Iterable[str] = ()) -> dict[str, object]:
        """A copy of a mapping; one that was left empty in the file is {}."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            keys = f"; accepted keys: {', '.join(accepted)}" if accepted else ""
            raise self.refusal(key, f"must be a mapping, not {type(value).__name__}{keys}")
        return dict(value)

    def check_keys(self, key: str, values: Mapping[str, object], accepted: tuple[str, ...]) -> None:
        for name in values:
            if name not in accepted:
                raise self.refusal(join(key, name), f"is not known; accepted: {', '.join(accepted)}")

    def shown(self, key: str, value: object) -> str:
        return f"{self.written.get(key, value)!r:.60}"


@functools.cache
def types_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def join(key: str, name: str) -> str:
    part = name if re.fullmatch(r"[\w-]{1,100}", name) else f"{name!r:.60}"
    return f"{key}.{part}" if key else part


def expanded(path: str, environ: Mapping[str, str]) -> str:
    if path != "~" and not path.startswith("~/"):
        return path
    return (environ.get("HOME") or os.path.expanduser("~")) + path[1:]
