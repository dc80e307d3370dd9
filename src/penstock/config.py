"""penstock.yaml, URLs and the environment -> frozen settings; whatever cannot be used is `InvalidConfig`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, unquote

import msgspec

from penstock import redis_config
from penstock.errors import InvalidConfig
from penstock.health_options import store_health
from penstock.keyring import ACCEPTED_IDS, is_key_id
from penstock.reading import MAX_FILE_BYTES as MAX_FILE_BYTES
from penstock.reading import Reader, expanded, join, types_of
from penstock.redis_placing import place_queue
from penstock.redis_settings import FLAVOURS, RedisSettings
from penstock.server_config import ServerSettings, server_settings
from penstock.settings import EncryptionSettings as EncryptionSettings
from penstock.settings import HealthSettings, QueueSettings, queue_settings
from penstock.settings import HookSettings as HookSettings

DEFAULT = "default"
MAX_INTERVAL_MS = 60_000
MIN_CACHE_BYTES, MAX_CACHE_BYTES = 1024, 2**40
MAX_HOOK_MS = 1000
MIN_HOOK_BYTES, MAX_HOOK_BYTES = 2**18, 2**26

_SECTIONS = ("storage", "backends", "queues", "security", "config", "server")
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(rf"([0-9]{{1,15}}) ?({'|'.join(_UNITS)})")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
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


#: A disk may take its time to sync, and whoever reads journals comes when it likes.
_EMBEDDED_HEALTH = HealthSettings(max_latency_s=1.0, max_lag=None)


class StorageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """An embedded store. `path` is absolute once it has been read; "" for the memory engine."""

    engine: Literal["rocksdb", "memory"] = "rocksdb"
    path: str = "penstock-data"
    durability: Literal["sync", "interval", "os"] = "sync"
    interval_ms: int = 50
    rocksdb: RocksDBSettings = RocksDBSettings()
    encryption: EncryptionSettings = EncryptionSettings()
    hooks: HookSettings = HookSettings()
    health: HealthSettings = _EMBEDDED_HEALTH


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A backend reached by URL; it checks `options` itself. No value of an option is ever shown."""

    url: str
    options: dict[str, str | int | float | bool] = {}

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", masked_url(self.url)), ("options", dict.fromkeys(self.options, "***"))]

    def __repr__(self) -> str:
        return f"BackendSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


AnySettings = StorageSettings | BackendSettings | RedisSettings


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that the file declares, and the name of its backend."""

    backend: str
    settings: QueueSettings


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock.open` needs: the default backend, further ones by name, and declared queues."""

    source: str
    default: AnySettings = StorageSettings()
    backends: dict[str, AnySettings] = {}
    queues: dict[str, QueueConfig] = {}
    #: What `penstock serve` runs with; no other command reads it.
    server: ServerSettings | None = None

    def all_backends(self) -> dict[str, AnySettings]:
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
    if redis_config.is_redis(url):
        reader = _Reader(masked_url(url), environ, Path())
        return Config(source=masked_url(url), default=reader.redis(redis_config.from_url(reader, url)))
    if _scheme(url) not in _URL_OPTIONS:
        return Config(source=masked_url(url), default=BackendSettings(url=url))
    name = url.partition("?")[0]
    environment = (*_TUNING, *_ENCRYPTION, *_HOOKS)
    return Config(source=name, default=_Reader(name, environ, Path()).embedded(url, environment))


def load(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> Config:
    """The settings of a YAML file; PENSTOCK_STORAGE_… variables win over its `storage` block."""
    name = os.fsdecode(path)
    file = Path(expanded(name, environ)).absolute()
    reader = _Reader(name, environ, file.parent)
    tree = reader.document(file, _SECTIONS)
    reader.check_keys("", tree, _SECTIONS)
    storage = reader.mapping("storage", tree.get("storage"), types_of(StorageSettings))
    reader.take_environment(storage, (*_STORE, *_TUNING, *_ENCRYPTION, *_HOOKS))
    backends = reader.backends(tree)
    named = (DEFAULT, *backends)
    queues = {
        queue: reader.queue(queue, value, named, backends)
        for queue, value in reader.mapping("queues", tree.get("queues")).items()
    }
    return Config(
        source=name,
        default=reader.storage(storage),
        backends=backends,
        queues=queues,
        server=server_settings(reader, tree.get("server")),
    )


def document(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """What a YAML file itself says, with ${NAME} replaced; of its keys, nothing is checked."""
    name = os.fsdecode(path)
    return _Reader(name, environ, Path()).document(Path(expanded(name, environ)).absolute(), _SECTIONS)


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


class _Reader(Reader):
    """Makes settings of what a file, a URL and the environment say."""

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
                text = str(Path(expanded(text, self.environ)).absolute())
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
        accepted = types_of(types_of(StorageSettings)[name])
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
        health = store_health(self, "storage.health", values.pop("health", None), _EMBEDDED_HEALTH)
        checked = self.fields("storage", types_of(StorageSettings), values)
        settings = msgspec.convert({**checked, "encryption": encryption, "health": health}, StorageSettings)
        if not 1 <= settings.interval_ms <= MAX_INTERVAL_MS:
            raise self.refusal("storage.interval_ms", f"is out of range; accepted: 1 to {MAX_INTERVAL_MS}")
        if not 1 <= settings.hooks.time_limit_ms <= MAX_HOOK_MS:
            problem = f"is out of range; accepted: 1 to {MAX_HOOK_MS}"
            raise self.refusal("storage.hooks.time_limit_ms", problem)
        if settings.engine == "memory":
            return msgspec.structs.replace(settings, path="")
        if not settings.path or "\0" in settings.path:
            raise self.refusal("storage.path", "must be a path that is not empty and has no NUL in it")
        path = Path(self.folder, expanded(settings.path, self.environ)).absolute()
        return msgspec.structs.replace(settings, path=str(path))

    def encryption(self, key: str, value: object) -> EncryptionSettings:
        types = types_of(EncryptionSettings)
        checked = self.fields(key, types, self.mapping(key, value, types))
        settings = msgspec.convert(checked, EncryptionSettings)
        if not is_key_id(settings.key_id):
            shown = self.shown(f"{key}.key_id", settings.key_id)
            raise self.refusal(f"{key}.key_id", f"is {shown}; accepted: {ACCEPTED_IDS}")
        file, command = settings.key_file, settings.key_command
        if file is not None:
            if not file or "\0" in file:
                raise self.refusal(f"{key}.key_file", "must be a path that is not empty and has no NUL in it")
            file = str(Path(self.folder, expanded(file, self.environ)).absolute())
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

    def backends(self, tree: Mapping[str, object]) -> dict[str, AnySettings]:
        """Those of the file; `security` and `config` concern the ones on servers of the Redis family."""
        tuning = redis_config.tuning_of(self, tree.get("config"))
        security = self.mapping("security", tree.get("security"))
        blocks = self.mapping("backends", tree.get("backends"))
        found = {
            name: self.backend(name, value, tuning, security.get(name)) for name, value in blocks.items()
        }
        servers = [name for name, settings in found.items() if isinstance(settings, RedisSettings)]
        self.check_keys("security", security, tuple(servers))
        return found

    def redis(self, settings: RedisSettings) -> RedisSettings:
        """With the encryption that the environment asks for."""
        storage: dict[str, object] = {}
        self.take_environment(storage, _ENCRYPTION)
        encryption = self.encryption("storage.encryption", storage.get("encryption"))
        return msgspec.structs.replace(settings, encryption=encryption)

    def backend(
        self, name: str, value: object, tuning: Mapping[str, object], security: object
    ) -> AnySettings:
        key = join("backends", name)
        if name == DEFAULT:
            raise self.refusal(key, "is taken: the storage block is the backend of that name; choose another")
        options = self.mapping(key, value)
        url = options.pop("url", None)
        if not isinstance(url, str) or not _SCHEME.match(url):
            raise self.refusal(f"{key}.url", "must be a URL, such as redis+lists://localhost:6379/0")
        if _scheme(url) in _URL_OPTIONS:
            encryption = self.encryption(f"{key}.encryption", options.pop("encryption", None))
            health = store_health(self, f"{key}.health", options.pop("health", None), _EMBEDDED_HEALTH)
            self.check_keys(key, options, ("url", "encryption", "health"))
            reader = _Reader(f"{self.name}: {key}.url", self.environ, self.folder)
            if f"{key}.url" in self.written:
                reader.written = dict.fromkeys((f"storage.{leaf}" for leaf in _TUNING), "${…}")
            return msgspec.structs.replace(reader.embedded(url, ()), encryption=encryption, health=health)
        if redis_config.is_redis(url):
            encryption = self.encryption(f"{key}.encryption", options.pop("encryption", None))
            settings = redis_config.from_block(self, name, {**options, "url": url}, tuning, security)
            return msgspec.structs.replace(settings, encryption=encryption)
        for option, content in options.items():
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", option):
                raise self.refusal(key, "has an option whose name is not made of letters, digits and _")
            # YAML reads the password 0123 as 83: only what is in quotes is sure to be what was meant.
            if "password" in option and not isinstance(content, str):
                raise self.refusal(f"{key}.{option}", "must be text; put it in quotes")
            if not isinstance(content, (str, int, float)):
                raise self.refusal(f"{key}.{option}", "must be text, a number, true or false")
        return msgspec.convert({"url": url, "options": options}, BackendSettings)

    def queue(
        self, name: str, value: object, named: tuple[str, ...], backends: dict[str, AnySettings]
    ) -> QueueConfig:
        key = join("queues", name)
        types = {"backend": str, **types_of(QueueSettings)}
        del types["name"]
        given = self.mapping(key, value, types)
        blocks = {word: given.pop(word) for word in FLAVOURS if word in given}
        values = self.fields(key, types, given)
        backend = str(values.pop("backend", DEFAULT))
        if backend not in named:
            shown = self.shown(f"{key}.backend", backend)
            raise self.refusal(f"{key}.backend", f"is {shown}; accepted: {', '.join(named)}")
        backend = place_queue(self, name, backend, blocks, backends)
        try:
            return QueueConfig(backend=backend, settings=queue_settings(name, values))
        except InvalidConfig as error:
            problem = str(error)
            setting = problem.removeprefix(f"queue {name!r}: ")
            where = f"{self.name}: {key}" + (": " if setting == problem else ".")
            raise InvalidConfig(where + setting) from None


def _variable(key: str) -> str:
    return f"PENSTOCK_STORAGE_{key.upper().replace('.', '_')}"


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()
