"""URLs and YAML blocks of the Redis family -> `RedisSettings`: each key counts, or is refused by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from penstock.reading import Reader, join
from penstock.redis_options import (
    ALIASES,
    BLOCK,
    GROUPS,
    OPTIONS,
    SECURITY,
    TUNING,
    URL,
    converted,
    node,
    plain,
)
from penstock.redis_settings import FLAVOURS, KINDS, RedisSettings, Secret

_SCHEME = re.compile(rf"({'|'.join(FLAVOURS)})(s?)(?:\+({'|'.join(KINDS)}))?")


def is_redis(url: str) -> bool:
    """Whether a URL's scheme is one of the family, with or without the kind of store."""
    return _SCHEME.fullmatch(url.partition(":")[0].lower()) is not None


def said_by(url: str) -> list[str]:
    """The keys that a URL says something about outside its options."""
    scheme, _, rest = url.partition("://")
    authority, _, database = rest.partition("?")[0].partition("/")
    user, at, _ = authority.rpartition("@")
    said = {
        "tls": scheme.partition("+")[0].lower() not in FLAVOURS,
        "username": at and not user.startswith(":"),
        "password": ":" in user,
        "database": database,
    }
    return [name for name, given in said.items() if given]


class _Collected:
    """Values by field, each with the key that gave it; the same thing said twice is refused."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._keys: dict[str, str] = {}
        self.values: dict[str, Any] = {}

    def key_of(self, field: str) -> str:
        return self._keys.get(field, field)

    def put(self, name: str, key: str, raw: object) -> None:
        option = OPTIONS[ALIASES.get(name, name)]
        self.set(option.field, key, converted(self._reader, key, option, raw))

    def set(self, field: str, key: str, value: object) -> None:
        if field in self._keys:
            raise self._reader.refusal(key, f"says again what {self._keys[field]} says; keep one of them")
        self._keys[field] = key
        self.values[field] = value

    def put_url(self, key: str, url: str) -> tuple[str, str | None]:
        """Take a URL apart. (flavour, kind or None)"""
        reader = self._reader
        scheme, _, rest = url.partition(":")
        match = _SCHEME.fullmatch(scheme.lower())
        assert match is not None
        rest, _, fragment = rest.partition("#")
        rest, _, query = rest.partition("?")
        authority, _, path = rest.removeprefix("//").partition("/")
        if not rest.startswith("//") or fragment or "@" in path:
            raise reader.refusal(
                key, f"must be {scheme}://user:password@host:port/database; in them, # / ? are %23 %2F %3F"
            )
        user, at, places = authority.rpartition("@")
        self.set("nodes", key, tuple(node(reader, key, place) for place in places.split(",")))
        if match[2]:
            self.set("tls", key, True)
        if path:
            self.put("database", f"{key}: database" if key else "database", path)
        if at:
            name, colon, password = user.partition(":")
            if name:
                self.set("username", key, unquote(name))
            if colon:
                self.set("password", key, Secret(unquote(password)))
        self._put_query(key, query)
        return match[1], match[3]

    def _put_query(self, key: str, query: str) -> None:
        given = parse_qsl(query, keep_blank_values=True)
        for name, text in given:
            label = f"{key}: {name}" if key else name
            if name not in URL:
                problem = f"has the option {name!r:.60}, which URLs do not take; accepted: {', '.join(URL)}"
                raise self._reader.refusal(key, problem)
            self.put(name, label, plain(OPTIONS[name], text))

    def settings(self, flavour: str, kind: str) -> RedisSettings:
        tree: dict[str, Any] = {}
        for field, value in self.values.items():
            group, _, leaf = field.rpartition(".")
            (tree.setdefault(group, {}) if group else tree)[leaf] = value
        base = RedisSettings(flavour=flavour, kind=kind)
        for group in ("retry", "streams", "health"):
            if group in tree:
                tree[group] = msgspec.structs.replace(getattr(base, group), **tree[group])
        settings = msgspec.structs.replace(base, **tree)
        self._check(settings)
        return settings

    def _check(self, settings: RedisSettings) -> None:
        """What contradicts, or would have no effect."""
        for field in self.values:
            if field.startswith("streams.") and settings.kind != "streams":
                raise self._refused(field, f"goes with streams; this backend keeps {settings.kind}")
        for field in ("ca_file", "cert_file", "key_file", "skip_verify"):
            if getattr(settings, field) and not settings.tls:
                raise self._refused(field, "goes with tls: true")
        if settings.key_file and not settings.cert_file:
            raise self._refused("key_file", "goes with cert_file")
        if settings.skip_verify and settings.ca_file:
            raise self._refused("skip_verify", "leaves ca_file without effect; keep one of them")
        if settings.cluster and settings.database:
            raise self._refused("database", "must be 0: a cluster has no other")
        if len(settings.nodes) > 1 and not settings.cluster:
            raise self._refused("nodes", "names several servers, which goes with cluster: true")

    def _refused(self, field: str, problem: str) -> Exception:
        return self._reader.refusal(self.key_of(field), problem)


def from_url(reader: Reader, url: str) -> RedisSettings:
    """The backend that a URL names by itself."""
    found = _Collected(reader)
    flavour, kind = found.put_url("", url)
    if kind is None:
        scheme = url.partition(":")[0].lower()
        problem = f"does not say how messages are kept: write {scheme}+lists or {scheme}+streams"
        raise reader.refusal("", problem)
    return found.settings(flavour, kind)


def from_block(
    reader: Reader, name: str, block: dict[str, object], tuning: Mapping[str, object], security: object
) -> RedisSettings:
    """The backend of that name: its block, without `encryption`, and what other sections say of it."""
    key = join("backends", name)
    found = _Collected(reader)
    reader.check_keys(key, block, BLOCK)
    flavour, kind = found.put_url(f"{key}.url", str(block.pop("url")))
    flavour, kind = _kind(reader, key, name, block, flavour, kind)
    for word, value in block.items():
        below = join(key, word)
        if word not in GROUPS:
            found.put(word, below, value)
            continue
        group = reader.mapping(below, value, GROUPS[word])
        reader.check_keys(below, group, GROUPS[word])
        for leaf, content in group.items():
            found.put(f"{word}.{leaf}" if word in ("retry", "health") else leaf, join(below, leaf), content)
    if security is not None:
        place = join("security", name)
        for leaf, content in checked_block(reader, place, security, SECURITY).items():
            _put_security(found, place, leaf, content)
    for leaf, content in tuning.items():
        option = OPTIONS[ALIASES.get(leaf, leaf)]
        # What a file says for all of its backends counts where one does not say otherwise, and can.
        fits = kind == "streams" or not option.field.startswith("streams.")
        if fits and option.field not in found.values:
            found.put(leaf, join("config", leaf), content)
    return found.settings(flavour, kind)


def _put_security(found: _Collected, place: str, leaf: str, content: object) -> None:
    if leaf == "tls" and content is True and found.values.get("tls") is True:
        return  # The URL says so too.
    found.put(leaf, join(place, leaf), content)


def _kind(
    reader: Reader, key: str, name: str, block: dict[str, object], flavour: str, kind: str | None
) -> tuple[str, str]:
    """Which server, and how it keeps messages: by the URL, by `kind`, by the backend's name; else lists."""
    driver = block.pop("driver", flavour)
    if driver not in FLAVOURS:
        shown = reader.shown(f"{key}.driver", driver)
        raise reader.refusal(f"{key}.driver", f"is {shown}; accepted: {', '.join(FLAVOURS)}")
    if driver != flavour:
        raise reader.refusal(f"{key}.driver", f"is {driver!r}, but the URL says {flavour!r}; make them one")
    given = block.pop("kind", kind)
    if given is not None and given not in KINDS:
        shown = reader.shown(f"{key}.kind", given)
        raise reader.refusal(f"{key}.kind", f"is {shown}; accepted: {', '.join(KINDS)}")
    if kind is not None and given != kind:
        raise reader.refusal(f"{key}.kind", f"is {given!r}, but the URL says {kind!r}; make them one")
    by_name = next((word for word in KINDS if name == word or name.endswith(f"-{word}")), "lists")
    return flavour, str(given or by_name)


def tuning_of(reader: Reader, section: object) -> dict[str, object]:
    """The section `config`, checked: what all backends of the family have unless they say otherwise."""
    found = checked_block(reader, "config", section, TUNING)
    collected = _Collected(reader)
    for leaf, content in found.items():
        collected.put(leaf, join("config", leaf), content)
    return found


def checked_block(reader: Reader, key: str, section: object, accepted: tuple[str, ...]) -> dict[str, object]:
    found = reader.mapping(key, section, accepted)
    reader.check_keys(key, found, accepted)
    return found
