"""Places: what names a store on a server to processes elsewhere, and how these open it.

A snapshot, a ticket and whatever Spark sends around has the place in it, and nothing secret: of a password
only where it stands, a file or variables of the environment. One that was written out is known to the process
that it was given to; others look for it in `PENSTOCK_REDIS_PASSWORD`.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from penstock.errors import InvalidConfig
from penstock.redis_settings import RedisQueueSettings, RedisSettings, Secret
from penstock.settings import EncryptionSettings

PASSWORD_VARIABLE = "PENSTOCK_REDIS_PASSWORD"

#: Passwords that this process was given in words, by place.
_given: dict[str, Secret] = {}


def place_of(settings: RedisSettings) -> str:
    """The place of a store, from its settings."""
    streams = {
        name: RedisQueueSettings(stream_name=own.stream_name)
        for name, own in settings.queues.items()
        if own.stream_name
    }
    plain = msgspec.structs.replace(settings, password=None, encryption=EncryptionSettings(), queues=streams)
    fields = _differences(msgspec.to_builtins(plain), msgspec.to_builtins(RedisSettings()))
    secret = settings.password
    if secret is not None:
        fields["password"] = {"file": secret.file, "template": secret.template}
    place = msgspec.json.encode(fields, order="sorted").decode()
    if secret is not None and not secret.can_change:
        _given[place] = secret
    return place


def _differences(given: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value != usual[name]}


def settings_at(place: str) -> RedisSettings:
    """What to open a place with."""
    try:
        fields = msgspec.json.decode(place, type=dict[str, Any])
        secret = fields.pop("password", None)
        if unknown := sorted(set(fields) - set(RedisSettings.__struct_fields__)):
            raise TypeError(f"{unknown[0]} is not known")
        settings = msgspec.convert(fields, RedisSettings, strict=False, dec_hook=_refuse)
        return with_password(settings if secret is None else _with(settings, _secret(place, **secret)))
    except (msgspec.DecodeError, msgspec.ValidationError, TypeError) as error:
        raise InvalidConfig(f"{place!r:.120} is no place of a store on Redis: {error}") from None


def _refuse(kind: type, value: object) -> object:
    raise msgspec.ValidationError(f"{kind.__name__} does not travel")


def _secret(place: str, file: str | None, template: str | None) -> Secret | None:
    if file is not None or template is not None:
        return Secret(file=file, template=template)
    return _given.get(place)


def _with(settings: RedisSettings, password: Secret | None) -> RedisSettings:
    return msgspec.structs.replace(settings, password=password)


def with_password(settings: RedisSettings) -> RedisSettings:
    """Settings that name no password have that of the environment, if there is one."""
    if settings.password is not None or PASSWORD_VARIABLE not in os.environ:
        return settings
    template = f"${{{PASSWORD_VARIABLE}}}"
    return _with(settings, Secret(os.environ[PASSWORD_VARIABLE], template=template))


def shown(place: str) -> str:
    """For people."""
    return settings_at(place).url
