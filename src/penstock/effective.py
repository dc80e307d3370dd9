"""The configuration that counts, key by key, and where each value comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from penstock.config import (
    AnySettings,
    BackendSettings,
    Config,
    document,
    is_file,
    is_url,
    masked_url,
    resolve,
    variables,
)
from penstock.health_options import KEYS, field_of
from penstock.redis_config import is_redis, said_by
from penstock.redis_options import OPTIONS, option_of
from penstock.redis_settings import FLAVOURS, RedisSettings, Secret

SECRET = "***"

Path = tuple[str, ...]


class Setting(msgspec.Struct, frozen=True):
    """One key. `origin` is file, environment, URL, folder or default; `detail` names which."""

    key: str
    value: Any
    origin: str
    detail: str


def explain(target: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> list[Setting]:
    """Every setting that opening `target` would use; what cannot be used is `InvalidConfig`."""
    config = resolve(target, environ)
    name = os.fsdecode(target)
    if is_url(target):
        origins = _Origins("URL", masked_url(name), _url_keys(name), environ, engine_and_path=False)
    elif is_file(target):
        tree = document(target, environ)
        meant = set(_meant(tree))
        given = {*_paths(tree), *meant, *_meant_for_queues(tree, meant)}
        origins = _Origins("file", name, given, environ, engine_and_path=True)
    else:
        origins = _Origins("folder", name, {("storage", "path")}, environ, engine_and_path=False)
    return [_setting(path, value, origins) for path, value in _values(config)]


class _Origins:
    """Which keys were given, where, and which of them the environment overrides."""

    def __init__(
        self, kind: str, name: str, given: set[Path], environ: Mapping[str, str], *, engine_and_path: bool
    ) -> None:
        self._kind = kind
        self._name = name
        self._given = given
        self._variables = {
            ("storage", *key.split(".")): variable
            for key, variable in variables().items()
            if environ.get(variable) and (engine_and_path or key not in ("engine", "path"))
        }

    def of(self, path: Path) -> tuple[str, str]:
        """(origin, detail)"""
        is_given = any(path[: len(given)] == given for given in self._given)
        # Options of a URL win over the environment, which wins over a file.
        if path in self._variables and not (is_given and self._kind == "URL"):
            return "environment", self._variables[path]
        return (self._kind, self._name) if is_given else ("default", "")


def _setting(path: Path, value: Any, origins: _Origins) -> Setting:
    return Setting(".".join(path), value, *origins.of(path))


def _values(config: Config) -> Iterator[tuple[Path, Any]]:
    """Each key of the effective configuration with its value, secrets masked."""
    yield from _backend(("storage",), config.default)
    for name, backend in config.backends.items():
        yield from _backend(("backends", name), backend)
    for name, queue in config.queues.items():
        yield ("queues", name, "backend"), queue.backend
        settings = msgspec.to_builtins(queue.settings)
        del settings["name"]
        yield from _leaves(settings, ("queues", name))


def _backend(path: Path, settings: AnySettings) -> Iterator[tuple[Path, Any]]:
    if isinstance(settings, RedisSettings):
        yield from _redis(path, settings)
    elif isinstance(settings, BackendSettings):
        yield (*path, "url"), masked_url(settings.url)
        for option in settings.options:
            yield (*path, option), SECRET
    else:
        values = msgspec.to_builtins(settings)
        values["health"] = {leaf: values["health"][field_of(leaf)] for leaf in KEYS}
        yield from _leaves(values, path)


def _redis(path: Path, settings: RedisSettings) -> Iterator[tuple[Path, Any]]:
    """By the names that its keys have in a file. A secret is shown as one, a file that holds it by name."""
    yield (*path, "url"), settings.url
    for name, option in OPTIONS.items():
        value: Any = settings
        for part in option.field.split("."):
            value = getattr(value, part)
        if option.kind == "secret_file":
            value = value.file if isinstance(value, Secret) else None
        elif isinstance(value, Secret):
            value = SECRET
        yield (*path, *name.split(".")), value
    yield from _leaves(msgspec.to_builtins(settings.encryption), (*path, "encryption"))
    for queue, own in settings.queues.items():
        yield from _leaves(msgspec.to_builtins(own), (*path, "queues", queue))


def _leaves(values: Mapping[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _paths(tree: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    """Every key that a file has a value for; the URL of a further store gives several."""
    for name, value in tree.items():
        here = (*path, name)
        if isinstance(value, Mapping):
            yield from _paths(value, here)
        elif len(here) == 3 and here[0] == "backends" and name == "url":
            yield from _url_keys(str(value), here[:2])
        else:
            yield here


def _meant(tree: Mapping[str, Any]) -> Iterator[Path]:
    """The keys of servers as they are shown, whichever block or section of the file has them."""
    for path in _paths(tree):
        if path[0] == "backends" and len(path) > 2:
            yield (*path[:2], *option_of(path[2:]))
        elif path[0] == "security" and len(path) == 3:
            yield ("backends", path[1], *option_of(path[2:]))
        elif path[0] == "config":
            yield from (("backends", name, *option_of(path[1:])) for name in tree.get("backends") or ())


def _meant_for_queues(tree: Mapping[str, Any], meant: set[Path]) -> Iterator[Path]:
    """The keys of backends that queues have for themselves: those of the named one, and their own."""
    for queue, settings in (tree.get("queues") or {}).items():
        for block in (settings or {}).keys() & set(FLAVOURS):
            base = settings.get("backend")
            own = ("backends", f"{base}/{queue}")
            yield from ((*own, *path[2:]) for path in meant if path[:2] == ("backends", base))
            yield from ((*own, *option_of((leaf,))) for leaf in settings[block] or ())


def _url_keys(url: str, path: Path = ("storage",)) -> set[Path]:
    """The keys that a URL says something about, below the place of its store."""
    options = {name for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)}
    if is_redis(url):
        return {(*path, name) for name in (*options, *said_by(url), "url")}
    named = (key.split(".") for key in variables() if key.rpartition(".")[2] in options)
    return {(*path, *key) for key in (*named, ["engine"], ["path"], ["url"])}
