"""Secrets: no representation and no error shows one."""

from __future__ import annotations

import re

import pytest
import yaml

from penstock import config
from penstock.config import BackendSettings
from tests.unit.config.reading import Read, Refuse

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        "other+x://:hunter2@host/0",
        "other+x://user:hunter2@host/0",
        "other+x://hunter2@host/0",
        "other+x://u:a/hunter2@host/0",
        "other+x://u:a@hunter2@host/0",
        "other+x://u:a?hunter2@host/0",
        "other+x://host/0?password=hunter2",
        "other+x://host/0?a=b&password=hunter2&c=d",
        "postgres:u:hunter2@host",
    ],
)
def test_no_secret_of_a_url_is_shown(read: Read, url: str) -> None:
    opened = config.from_url(url, {})
    loaded = read(yaml.safe_dump({"backends": {"b": {"url": url}}}))
    for shown in (repr(opened), str(opened), opened.source, repr(loaded), repr(loaded.backends)):
        assert SECRET not in shown
        assert "host" in shown or shown == repr(loaded)
    assert isinstance(opened.default, BackendSettings)
    assert opened.default.url == url


def test_no_option_of_a_backend_is_shown(read: Read) -> None:
    loaded = read("backends: {b: {url: 'http://h', password: '${PW}', pin: 1234, other: hunter2}}", PW=SECRET)
    backend = loaded.backends["b"]
    assert isinstance(backend, BackendSettings)
    assert repr(backend) == (
        "BackendSettings(url='http://h', options={'password': '***', 'pin': '***', 'other': '***'})"
    )
    assert not re.search("hunter2|1234", f"{loaded} {loaded!r} {backend} {backend.__rich_repr__()}")
    assert backend.options == {"password": SECRET, "pin": 1234, "other": SECRET}


@pytest.mark.parametrize(
    "text",
    [
        "storage: {engine: '${PW}'}",
        'storage: {path: "${PW}\\0"}',
        "storage: {interval_ms: '${PW}'}",
        "storage: {rocksdb: {mode: '${PW}'}}",
        "storage: {rocksdb: {cache_capacity: '${PW}'}}",
        "storage: {rocksdb: '${PW}'}",
        "storage: '${PW}'",
        "backends: {b: '${PW}'}",
        "backends: {b: {url: '${PW}'}}",
        "backends: {b: {url: 'rocksdb:x?mode=${PW}'}}",
        "backends: {b: {url: 'rocksdb:x?durability=${PW}'}}",
        "backends: {b: {url: http://h, password: [hunter2]}}",
        "backends: {b: {url: http://h, password: *hunter2}}",
        "backends: {b: {url: http://h, password: !hunter2 }}",
        "backends: {b: {url: http://h, password: !hunter2!x }}",
        "backends: {b: {url: http://h, password: !!int hunter2 }}",
        "backends: {b: {url: http://h, password: hunter2: }}",
        "backends: {b: {url: http://h, password: 'hunter2}}",
        "backends: {b: {url: http://h, password: hunter2, password: hunter2}}",
        "backends: {b: {url: http://h, 'password: hunter2': }}",
        "backends: {b: {url: http://h, password: '${hunter2'}}",
        "queues: {q: {backend: '${PW}'}}",
        "queues: {q: {lease_s: '${PW}'}}",
        "queues: {q: {retry: {policy: '${PW}'}}}",
        "queues: {q: {retry: '${PW}'}}",
    ],
)
def test_no_secret_is_shown_by_an_error(refusal: Refuse, text: str) -> None:
    assert SECRET not in refusal(text, PW=SECRET)


def test_an_error_shows_a_variable_as_it_is_written(refusal: Refuse) -> None:
    assert (
        refusal("storage: {engine: '${E}'}", E="x") == "storage.engine is '${E}'; accepted: rocksdb, memory"
    )
