"""penstock.yaml, URLs and the environment -> frozen settings; whatever cannot be used is `InvalidConfig`."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from urllib.parse import parse_qsl, unquote

import msgspec
import yaml

from penstock.errors import InvalidConfig
from penstock.keyring import ACCEPTED_IDS, is_key_id
from penstock.settings import QueueSettings, queue_settings

DEFAULT = "default"
MAX_FILE_BYTES = 256 * 1024
MAX_INTERVAL_MS = 60_000
MIN_CACHE_BYTES, MAX_CACHE_BYTES = 1024, 2**40
MAX_HOOK_MS = 1000
MIN_HOOK_BYTES, MAX_HOOK_BYTES = 2**18, 2**26

_SECTIONS = ("storage", "backends", "queues")
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(rf"([0-9]{{1,15}}) ?({'|'.join(_UNITS)})")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<open>\{)|(?P<home>HOME\b))")
_TAG = "tag:yaml.org,2002:"
_SCALARS = {_TAG + name for name in ("str", "int", "float", "bool", "null")}
_MAX_NUMBER_CHARS = 64
#: Keys below `storage` that PENSTOCK_STORAGE_… variables set; URL options go by their last part.
_STORE = ("engine", "path")
_TUNING = ("durability", "interval_ms", "rocksdb.cache_capacity", "rocksdb.mode")
_URL_OPTIONS = {"rocksdb": _TUNING, "memory": _TUNING[:2]}
_HOOKS = ("hooks.time_limit_ms", "hooks.memory_limit")
_ENCRYPTION = tuple(f"encryption.{name}" for name in ("enabled", "key_id", "key_file", "key_command"))


class RocksDBSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`low_space` makes smaller files and slower writes."""

    cache_capacity: int = 256 * 2**20
    mode: Literal["low_space", "high_throughput"] = "high_throughput"


class EncryptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`key_id` names the key that new records are sealed with. `enabled` None: as the store was, so far.

    Keys come from the environment, `key_file` (absolute once read) or `key_command` (its words).
    """

    enabled: bool | None = None
    key_id: str = "main"
    key_file: str | None = None
    key_command: str | tuple[str, ...] | None = None


class HookSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of a queue's script may take: processor time, and memory in bytes."""

    time_limit_ms: int = 10
    memory_limit: int = 2**20


class StorageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An embedded store. `path` is absolute once it has been read; "" for the memory engine."""

    engine: Literal["rocksdb", "memory"] = "rocksdb"
    path: str = "penstock-data"
    durability: Literal["sync", "interval", "os"] = "sync"
    interval_ms: int = 50
    rocksdb: RocksDBSettings = RocksDBSettings()
    encryption: EncryptionSettings = EncryptionSettings()
    hooks: HookSettings = HookSettings()


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A backend reached by URL; it checks `options` itself. No value of an option is ever shown."""

    url: str
    options: dict[str, str | int | float | bool] = {}

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", masked_url(self.url)), ("options", dict.fromkeys(self.options, "***"))]

    def __repr__(self) -> str:
        return f"BackendSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that the file declares, and the name of its backend."""

    backend: str
    settings: QueueSettings


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock.open` needs: the default backend, further ones by name, and declared queues."""

    source: str
    default: StorageSettings | BackendSettings = StorageSettings()
    backends: dict[str, StorageSettings | BackendSettings] = {}
    queues: dict[str, QueueConfig] = {}

    def all_backends(self) -> dict[str, StorageSettings | BackendSettings]:
        """The default one among them, under its name."""
        return {DEFAULT: self.default, **self.backends}


def resolve(target: str | os.PathLike[str] | Config, environ: Mapping[str, str] = os.environ) -> Config:
    """A Config as it is; a URL, a .yaml file or a folder read."""
    if isinstance(target, Config):
        return target
    if not isinstance(target, (str, os.PathLike)):
        raise InvalidConfig(f"a store is a folder, a .yaml file or a URL, not {type(target).__name__}")
    if isinstance(target, str) and is_url(target):
        return from_url(target, environ)
    if is_file(target):
        return load(target, environ)
    return from_folder(target, environ)


def from_folder(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> Config:
    """The RocksDB store in that folder; the environment may set everything but engine and path."""
    text = os.fsdecode(path)
    reader = _Reader(f"folder {text!r}", environ, Path())
    values: dict[str, object] = {"path": text}
    reader.take_environment(values, (*_TUNING, *_ENCRYPTION, *_HOOKS))
    return Config(source=text, default=reader.storage(values))


def from_url(url: str, environ: Mapping[str, str] = os.environ) -> Config:
    """A store by its URL. Options in the URL win over the environment."""
    if not _SCHEME.match(url):
        raise InvalidConfig(f"{masked_url(url)!r} is not a URL, such as rocksdb:./data or memory:")
    if _scheme(url) not in _URL_OPTIONS:
        return Config(source=masked_url(url), default=BackendSettings(url=url))
    name = url.partition("?")[0]
    environment = (*_TUNING, *_ENCRYPTION, *_HOOKS)
    return Config(source=name, default=_Reader(name, environ, Path()).embedded(url, environment))


def load(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> Config:
    """The settings of a YAML file; PENSTOCK_STORAGE_… variables win over its `storage` block."""
    name = os.fsdecode(path)
    file = Path(_expanded(name, environ)).absolute()
    reader = _Reader(name, environ, file.parent)
    tree = reader.document(file)
    reader.check_keys("", tree, _SECTIONS)
    storage = reader.mapping("storage", tree.get("storage"), _types(StorageSettings))
    reader.take_environment(storage, (*_STORE, *_TUNING, *_ENCRYPTION, *_HOOKS))
    backends = {
        backend: reader.backend(backend, value)
        for backend, value in reader.mapping("backends", tree.get("backends")).items()
    }
    queues = {
        queue: reader.queue(queue, value, (DEFAULT, *backends))
        for queue, value in reader.mapping("queues", tree.get("queues")).items()
    }
    return Config(source=name, default=reader.storage(storage), backends=backends, queues=queues)


def document(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """What a YAML file itself says, with ${NAME} replaced; of its keys, nothing is checked."""
    name = os.fsdecode(path)
    return _Reader(name, environ, Path()).document(Path(_expanded(name, environ)).absolute())


def variables() -> dict[str, str]:
    """Key below `storage` -> the environment variable that wins over it."""
    return {key: _variable(key) for key in (*_STORE, *_TUNING, *_ENCRYPTION, *_HOOKS)}


def is_url(target: str | os.PathLike[str]) -> bool:
    return isinstance(target, str) and _SCHEME.match(target) is not None


def is_file(target: str | os.PathLike[str]) -> bool:
    return os.fsdecode(target).lower().endswith((".yaml", ".yml"))


def masked_url(url: str) -> str:
    """The URL without what may be secret: its user part and the values of its options."""
    without_user = re.sub(r"^([^:/]*:(?://)?).*@", r"\1***@", url, flags=re.DOTALL)
    return re.sub(r"([?&#][^=&]*=)[^&]*", r"\1***", without_user)


class _Reader:
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

    def document(self, file: Path) -> dict[str, object]:
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
        return self.mapping("", tree, _SECTIONS)

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
            child = _join(key, name.value)
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

    def take_environment(self, storage: dict[str, object], keys: tuple[str, ...]) -> None:
        for key in keys:
            variable = _variable(key)
            text = self.environ.get(variable)
            if not text:
                continue
            self.labels[f"storage.{key}"] = variable
            self.written.pop(f"storage.{key}", None)
            if key in ("path", "encryption.key_file"):
                # Like a path typed in a shell: relative to where the process runs, not to the file.
                text = self.interpolated(f"storage.{key}", text)
                text = str(Path(_expanded(text, self.environ)).absolute())
            self.put(storage, key, text)

    def put(self, storage: dict[str, object], key: str, text: str) -> None:
        """Set a key below `storage` to what a variable or a URL gave as text."""
        section, _, leaf = key.rpartition(".")
        target = storage
        if section:
            storage[section] = target = self.section(storage, section)
        if leaf in ("interval_ms", "time_limit_ms") and re.fullmatch("[0-9]{1,9}", text):
            target[leaf] = int(text)
        elif leaf == "enabled":
            target[leaf] = {"true": True, "false": False}.get(text.lower(), text)
        else:
            target[leaf] = text

    def section(self, storage: dict[str, object], name: str) -> dict[str, object]:
        accepted = _types(_types(StorageSettings)[name])
        return self.mapping(f"storage.{name}", storage.get(name), accepted)

    def embedded(self, url: str, environment: tuple[str, ...]) -> StorageSettings:
        """The store that a rocksdb: or memory: URL names."""
        location, _, query = url.partition(":")[2].partition("?")
        engine = _scheme(url)
        options = {key.rpartition(".")[2]: key for key in _URL_OPTIONS[engine]}
        self.labels = {f"storage.{key}": f"{self.name}: {option}" for option, key in options.items()}
        self.labels["storage.path"] = self.name
        if engine == "memory" and location not in ("", "//"):
            raise self.refusal("", "has a path, which memory: does not take")
        if engine == "rocksdb" and re.match("//(?!/)", location):
            raise self.refusal("", "has a host; accepted: rocksdb:relative/path, rocksdb:/absolute/path")
        path = unquote(location.removeprefix("//"), errors="surrogateescape")
        storage: dict[str, object] = {"engine": engine, "path": path}
        self.take_environment(storage, environment)
        given = parse_qsl(query, keep_blank_values=True)
        self.check_keys("", dict(given), tuple(options))
        if len(dict(given)) < len(given):
            raise self.refusal("", f"has an option twice; accepted once each: {', '.join(options)}")
        for option, text in given:
            self.labels[f"storage.{options[option]}"] = f"{self.name}: {option}"
            self.put(storage, options[option], text)
        return self.storage(storage)

    def storage(self, values: dict[str, object]) -> StorageSettings:
        values["rocksdb"] = rocksdb = self.section(values, "rocksdb")
        self.take_size(rocksdb, "rocksdb.cache_capacity", MIN_CACHE_BYTES, MAX_CACHE_BYTES, "1KiB to 1024GiB")
        values["hooks"] = hooks = self.section(values, "hooks")
        self.take_size(hooks, "hooks.memory_limit", MIN_HOOK_BYTES, MAX_HOOK_BYTES, "256KiB to 64MiB")
        encryption = self.encryption("storage.encryption", values.pop("encryption", None))
        checked = self.fields("storage", _types(StorageSettings), values)
        settings = msgspec.convert({**checked, "encryption": encryption}, StorageSettings)
        if not 1 <= settings.interval_ms <= MAX_INTERVAL_MS:
            raise self.refusal("storage.interval_ms", f"is out of range; accepted: 1 to {MAX_INTERVAL_MS}")
        if not 1 <= settings.hooks.time_limit_ms <= MAX_HOOK_MS:
            problem = f"is out of range; accepted: 1 to {MAX_HOOK_MS}"
            raise self.refusal("storage.hooks.time_limit_ms", problem)
        if settings.engine == "memory":
            return msgspec.structs.replace(settings, path="")
        if not settings.path or "\0" in settings.path:
            raise self.refusal("storage.path", "must be a path that is not empty and has no NUL in it")
        path = Path(self.folder, _expanded(settings.path, self.environ)).absolute()
        return msgspec.structs.replace(settings, path=str(path))

    def encryption(self, key: str, value: object) -> EncryptionSettings:
        types = _types(EncryptionSettings)
        checked = self.fields(key, types, self.mapping(key, value, types))
        settings = msgspec.convert(checked, EncryptionSettings)
        if not is_key_id(settings.key_id):
            shown = self.shown(f"{key}.key_id", settings.key_id)
            raise self.refusal(f"{key}.key_id", f"is {shown}; accepted: {ACCEPTED_IDS}")
        file, command = settings.key_file, settings.key_command
        if file is not None:
            if not file or "\0" in file:
                raise self.refusal(f"{key}.key_file", "must be a path that is not empty and has no NUL in it")
            file = str(Path(self.folder, _expanded(file, self.environ)).absolute())
        if isinstance(command, str):
            try:
                command = tuple(shlex.split(command))
            except ValueError as error:
                raise self.refusal(f"{key}.key_command", f"has unbalanced quotes: {error}") from None
        if command is not None and not (command and command[0]):
            raise self.refusal(f"{key}.key_command", "must be a command and its arguments")
        return msgspec.structs.replace(settings, key_file=file, key_command=command)

    def take_size(self, section: dict[str, object], key: str, low: int, high: int, accepted: str) -> None:
        """Make a number of bytes of a size that the section may have."""
        leaf = key.rpartition(".")[2]
        value = section.get(leaf, low)
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        size = int(match[1]) * _UNITS[match[2] or ""] if match else value
        if type(size) is not int or not low <= size <= high:
            units = ", ".join(filter(None, _UNITS))
            problem = f"must be {accepted}, as bytes or with a unit; accepted: {units}"
            raise self.refusal(f"storage.{key}", problem)
        if leaf in section:
            section[leaf] = size

    def backend(self, name: str, value: object) -> StorageSettings | BackendSettings:
        key = _join("backends", name)
        if name == DEFAULT:
            raise self.refusal(key, "is taken: the storage block is the backend of that name; choose another")
        options = self.mapping(key, value)
        url = options.pop("url", None)
        if not isinstance(url, str) or not _SCHEME.match(url):
            raise self.refusal(f"{key}.url", "must be a URL, such as redis+lists://localhost:6379/0")
        if _scheme(url) in _URL_OPTIONS:
            encryption = self.encryption(f"{key}.encryption", options.pop("encryption", None))
            self.check_keys(key, options, ("url", "encryption"))
            reader = _Reader(f"{self.name}: {key}.url", self.environ, self.folder)
            if f"{key}.url" in self.written:
                reader.written = dict.fromkeys((f"storage.{leaf}" for leaf in _TUNING), "${…}")
            return msgspec.structs.replace(reader.embedded(url, ()), encryption=encryption)
        for option, content in options.items():
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", option):
                raise self.refusal(key, "has an option whose name is not made of letters, digits and _")
            # YAML reads the password 0123 as 83: only what is in quotes is sure to be what was meant.
            if "password" in option and not isinstance(content, str):
                raise self.refusal(f"{key}.{option}", "must be text; put it in quotes")
            if not isinstance(content, (str, int, float)):
                raise self.refusal(f"{key}.{option}", "must be text, a number, true or false")
        return msgspec.convert({"url": url, "options": options}, BackendSettings)

    def queue(self, name: str, value: object, backends: tuple[str, ...]) -> QueueConfig:
        key = _join("queues", name)
        types = {"backend": str, **_types(QueueSettings)}
        del types["name"]
        values = self.fields(key, types, self.mapping(key, value, types))
        backend = str(values.pop("backend", DEFAULT))
        if backend not in backends:
            shown = self.shown(f"{key}.backend", backend)
            raise self.refusal(f"{key}.backend", f"is {shown}; accepted: {', '.join(backends)}")
        try:
            return QueueConfig(backend=backend, settings=queue_settings(name, values))
        except InvalidConfig as error:
            problem = str(error)
            setting = problem.removeprefix(f"queue {name!r}: ")
            where = f"{self.name}: {key}" + (": " if setting == problem else ".")
            raise InvalidConfig(where + setting) from None

    def fields(self, key: str, types: dict[str, Any], values: dict[str, object]) -> dict[str, object]:
        """`values`, each of the type that its key has in `types`."""
        self.check_keys(key, values, tuple(types))
        return {name: self.field(_join(key, name), types[name], value) for name, value in values.items()}

    def field(self, key: str, kind: Any, value: object) -> object:
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise self.refusal(key, f"is {self.shown(key, value)}; accepted: {', '.join(get_args(kind))}")
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.fields(key, _types(kind), self.mapping(key, value, _types(kind)))
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
                raise self.refusal(_join(key, name), f"is not known; accepted: {', '.join(accepted)}")

    def shown(self, key: str, value: object) -> str:
        return f"{self.written.get(key, value)!r:.60}"


@functools.cache
def _types(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def _join(key: str, name: str) -> str:
    part = name if re.fullmatch(r"[\w-]{1,100}", name) else f"{name!r:.60}"
    return f"{key}.{part}" if key else part


def _variable(key: str) -> str:
    return f"PENSTOCK_STORAGE_{key.upper().replace('.', '_')}"


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()


def _expanded(path: str, environ: Mapping[str, str]) -> str:
    if path != "~" and not path.startswith("~/"):
        return path
    return (environ.get("HOME") or os.path.expanduser("~")) + path[1:]
