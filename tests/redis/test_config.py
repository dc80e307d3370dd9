"""Configuration of the Redis family: the blocks that described it first load as written; each key counts."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock import config, effective
from penstock.backends.registry import check_config, check_keys, check_scripts
from penstock.config import Config, EncryptionSettings
from penstock.errors import InvalidConfig, KeyMissing
from penstock.redis_options import OPTIONS
from penstock.redis_settings import RedisQueueSettings, RedisSettings, Secret, StreamSettings, schemes
from tests.redis import origin
from tests.redis.conftest import Read


def of_url(url: str) -> RedisSettings:
    settings = config.from_url(url, {}).default
    assert isinstance(settings, RedisSettings)
    return settings


def backend(loaded: Config, name: str) -> RedisSettings:
    settings = loaded.backends[name]
    assert isinstance(settings, RedisSettings)
    return settings


# -- as written


def test_queues_and_backends_load_as_they_were_written(read: Read) -> None:
    loaded = read(origin.QUEUES)
    lists, streams, keydb = (backend(loaded, name) for name in ("redis-lists", "redis-streams", "keydb"))
    assert lists == RedisSettings(kind="lists", database=0)
    assert (streams.kind, streams.database) == ("streams", 1)
    assert streams.streams == StreamSettings(block_timeout_s=1.0, claim_min_idle_s=30.0, claim_count=100)
    assert (keydb.flavour, keydb.kind, keydb.nodes) == ("keydb", "lists", (("keydb-cluster", 6379),))
    assert (keydb.pipeline_size, keydb.read_timeout_s) == (100, 0.1)


def test_queues_have_the_database_prefix_and_server_that_they_name(read: Read) -> None:
    loaded = read(origin.QUEUES)
    homes = {name: queue.backend for name, queue in loaded.queues.items()}
    assert homes == {
        "high-priority": "redis-lists/high-priority",
        "analytics": "redis-streams",
        "bulk-processing": "keydb/bulk-processing",
    }
    high = backend(loaded, "redis-lists/high-priority")
    assert (high.database, high.key_prefix) == (0, "queue:high:")
    own = RedisQueueSettings(stream_name="analytics-stream", consumer_group="processors", max_length=10000)
    assert backend(loaded, "redis-streams").queues == {"analytics": own}
    bulk = backend(loaded, "keydb/bulk-processing")
    assert (bulk.nodes, bulk.pool_size, bulk.read_timeout_s, bulk.pipeline_size) == (
        (("keydb-cluster.internal", 6379),),
        20,
        0.5,
        100,
    )


def test_security_loads_as_it_was_written(read: Read) -> None:
    loaded = read(origin.QUEUES + origin.SECURITY, KEYDB_TOKEN="token789")
    lists, streams, keydb = (backend(loaded, name) for name in ("redis-lists", "redis-streams", "keydb"))
    assert (lists.password, lists.tls) == (Secret("password123"), False)
    assert (streams.password, streams.tls, streams.cert_file) == (
        Secret("streampass456"),
        True,
        "/certs/redis.crt",
    )
    assert (keydb.password, keydb.tls, keydb.skip_verify) == (
        Secret("token789", template="${KEYDB_TOKEN}"),
        True,
        False,
    )
    assert backend(loaded, "keydb/bulk-processing").tls
    assert backend(loaded, "redis-lists/high-priority").password == Secret("password123")


@pytest.mark.parametrize(
    ("block", "kind", "expected"),
    [
        (origin.LISTS_TUNING, "lists", {"pipeline_size": 100, "pool_size": 20, "lua_script_cache": True}),
        (origin.STREAMS_TUNING, "streams", {"streams": StreamSettings(max_length=100_000)}),
        (
            origin.KEYDB_TUNING,
            "lists",
            {"read_timeout_s": 0.1, "write_timeout_s": 0.2, "pipeline_size": 1000, "compression": True},
        ),
    ],
)
def test_tuning_loads_as_it_was_written_for_one_backend_and_for_all(
    read: Read, block: str, kind: str, expected: dict[str, Any]
) -> None:
    wanted = msgspec.structs.replace(RedisSettings(kind=kind), **expected)
    url = f"redis+{kind}://localhost"
    inside = textwrap.indent(block, "    ")
    assert backend(read(f"backends:\n  b:\n    url: {url}\n{inside}"), "b") == wanted
    assert backend(read(f"backends: {{b: {{url: '{url}'}}}}\n{block}"), "b") == wanted
    assert read(block).backends == {}


def test_what_a_backend_says_wins_over_what_is_said_for_all(read: Read) -> None:
    loaded = read(
        "config: {read_timeout: 1s, max_length: 5}\n"
        "backends:\n"
        "  a: {url: 'redis+lists://localhost', read_timeout: 2s}\n"
        "  b: {url: 'redis+streams://localhost'}\n"
    )
    assert backend(loaded, "a").read_timeout_s == 2
    assert (backend(loaded, "b").read_timeout_s, backend(loaded, "b").streams.max_length) == (1, 5)


# -- each key


#: A key with a value, and what it makes of the settings.
KEYS: dict[str, tuple[str, dict[str, Any]]] = {
    "database": ("3", {"database": 3}),
    "cluster": ("true", {"cluster": True}),
    "key_prefix": ("'a:'", {"key_prefix": "a:"}),
    "username": ("ann", {"username": "ann"}),
    "password": ("pw", {"password": Secret("pw")}),
    "password_file": ("/run/pw", {"password": Secret(file="/run/pw")}),
    "tls": ("true", {"tls": True}),
    "allow_plaintext": ("true", {"allow_plaintext": True}),
    "pool_size": ("7", {"pool_size": 7}),
    "connect_timeout": ("2m", {"connect_timeout_s": 120.0}),
    "read_timeout": ("1.5s", {"read_timeout_s": 1.5}),
    "write_timeout": ("250ms", {"write_timeout_s": 0.25}),
    "pipeline_size": ("9", {"pipeline_size": 9}),
    "compression": ("true", {"compression": True}),
    "lua_script_cache": ("false", {"lua_script_cache": False}),
    "min_replicas": ("2", {"min_replicas": 2}),
    "replica_timeout": ("250ms", {"replica_timeout_s": 0.25}),
    "durability": ("sync", {"durability": "sync"}),
    "block_timeout": ("1h", {"streams": StreamSettings(block_timeout_s=3600)}),
    "claim_min_idle": ("5", {"streams": StreamSettings(claim_min_idle_s=5)}),
    "claim_count": ("9", {"streams": StreamSettings(claim_count=9)}),
    "max_length": ("9", {"streams": StreamSettings(max_length=9)}),
    "trim_strategy": ("MINID", {"streams": StreamSettings(trim_strategy="MINID")}),
}
TLS_KEYS = {"ca_file": "/a.crt", "cert_file": "/b.crt"}


@pytest.mark.parametrize("key", KEYS)
def test_each_key_sets_what_it_says(read: Read, key: str) -> None:
    value, expected = KEYS[key]
    loaded = read(f"backends: {{b: {{url: 'redis+streams://localhost', {key}: {value}}}}}")
    wanted = msgspec.structs.replace(RedisSettings(kind="streams"), **expected)
    assert backend(loaded, "b") == wanted


@pytest.mark.parametrize("key", sorted(set(KEYS) - {"database", "username", "password", "tls"}))
def test_each_key_is_an_option_of_a_url_too(key: str) -> None:
    value, expected = KEYS[key]
    text = value.strip("'")
    wanted = msgspec.structs.replace(RedisSettings(kind="streams"), **expected)
    assert of_url(f"redis+streams://localhost?{key}={text}") == wanted


def test_every_key_is_tried_here() -> None:
    flat = {name for name in OPTIONS if "." not in name}
    assert flat == {*KEYS, *TLS_KEYS, "key_file", "skip_verify"}


def test_keys_of_tls(read: Read, tmp_path: Path) -> None:
    loaded = read(
        "backends:\n"
        "  a: {url: 'rediss+lists://h', ca_file: ca.crt, cert_file: ~/c.crt, key_file: /k.key}\n"
        "  b: {url: 'redis+lists://h', security: {tls: true, skip_verify: true}}\n",
        HOME="/home/ann",
    )
    a, b = backend(loaded, "a"), backend(loaded, "b")
    assert (a.ca_file, a.cert_file, a.key_file) == (str(tmp_path / "ca.crt"), "/home/ann/c.crt", "/k.key")
    assert (a.tls, a.skip_verify, b.tls, b.skip_verify) == (True, False, True, True)


def test_blocks_of_retries_and_health(read: Read) -> None:
    loaded = backend(
        read(
            "backends:\n"
            "  b:\n"
            "    url: redis+lists://localhost\n"
            "    retry:\n"
            "      {attempts: 2, first_delay: 10ms, max_delay: 1m, breaker_failures: 3, breaker_open: 2s}\n"
            "    health: {max_latency: 20ms, max_error_rate: 0.5, max_lag: 7, max_memory_ratio: 0.75}\n"
            "    encryption: {enabled: true, key_id: other}\n"
        ),
        "b",
    )
    retry, health = loaded.retry, loaded.health
    assert (retry.attempts, retry.first_delay_s, retry.max_delay_s) == (2, 0.01, 60)
    assert (retry.breaker_failures, retry.breaker_open_s) == (3, 2)
    assert (health.max_latency_s, health.max_error_rate, health.max_lag) == (0.02, 0.5, 7)
    assert health.max_memory_ratio == 0.75
    assert loaded.encryption == EncryptionSettings(enabled=True, key_id="other")


# -- URLs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis+lists://h", {"nodes": (("h", 6379),)}),
        ("REDIS+lists://h:7000/4", {"nodes": (("h", 7000),), "database": 4}),
        ("redis+streams://h/", {"nodes": (("h", 6379),), "kind": "streams"}),
        ("rediss+lists://h", {"nodes": (("h", 6379),), "tls": True}),
        (
            "valkeys+streams://h",
            {"nodes": (("h", 6379),), "tls": True, "kind": "streams", "flavour": "valkey"},
        ),
        ("keydb+lists://h", {"nodes": (("h", 6379),), "flavour": "keydb"}),
        ("dragonfly+lists://[::1]:7000", {"nodes": (("::1", 7000),), "flavour": "dragonfly"}),
        (
            "redis+lists://a:1,b:2,c?cluster=true",
            {"nodes": (("a", 1), ("b", 2), ("c", 6379)), "cluster": True},
        ),
        ("redis+lists://:p%40w@h", {"nodes": (("h", 6379),), "password": Secret("p@w")}),
        ("redis+lists://ann@h", {"nodes": (("h", 6379),), "username": "ann"}),
        (
            "redis+lists://a%2Fb:x@y@h",
            {"nodes": (("h", 6379),), "username": "a/b", "password": Secret("x@y")},
        ),
    ],
)
def test_a_url_says_where_how_and_who(url: str, expected: dict[str, Any]) -> None:
    assert of_url(url) == msgspec.structs.replace(RedisSettings(), **expected)


def test_every_scheme_is_known() -> None:
    assert len(schemes()) == 16
    for scheme in schemes():
        assert of_url(f"{scheme}://h").scheme == scheme


def test_queues_with_the_same_place_share_a_backend(read: Read) -> None:
    loaded = read(
        "backends: {b: {url: 'redis+lists://localhost'}}\n"
        "queues:\n"
        "  p: {backend: b, redis: {database: 2}}\n"
        "  q: {backend: b, redis: {database: 2}}\n"
        "  r: {backend: b, redis: {}}\n"
    )
    assert [queue.backend for queue in loaded.queues.values()] == ["b/p", "b/p", "b"]
    assert list(loaded.backends) == ["b", "b/p"]


# -- kinds by name, plain text, what is shown


@pytest.mark.parametrize(
    ("name", "block", "expected"),
    [
        ("redis-lists", "driver: redis, url: 'redis://h'", "redis+lists"),
        ("redis-streams", "driver: redis, url: 'redis://h'", "redis+streams"),
        ("streams", "url: 'valkeys://h'", "valkeys+streams"),
        ("keydb", "driver: keydb, url: 'keydb://h'", "keydb+lists"),
        ("orders", "driver: redis, kind: streams, url: 'redis://h'", "redis+streams"),
        ("orders-lists", "url: 'redis+streams://h'", "redis+streams"),
    ],
)
def test_the_kind_is_said_by_the_url_a_key_or_the_name(
    read: Read, name: str, block: str, expected: str
) -> None:
    assert backend(read(f"backends: {{{name}: {{{block}}}}}"), name).scheme == expected


def test_plain_text_to_another_machine_loads_but_is_not_used(read: Read) -> None:
    loaded = read(origin.QUEUES)
    with pytest.raises(InvalidConfig, match=r"backends\.keydb: .* unencrypted to keydb-cluster"):
        check_config(loaded)
    with pytest.raises(InvalidConfig, match="unencrypted"):
        penstock.open(loaded)
    check_config(read(origin.QUEUES + origin.SECURITY, KEYDB_TOKEN="t"))


def test_no_secret_is_shown_and_every_value_says_where_it_comes_from(read: Read, tmp_path: Path) -> None:
    environ = {"KEYDB_TOKEN": "hunter2"}
    text = re.sub("password123|streampass456", "hunter2", origin.QUEUES + origin.SECURITY)
    loaded = read(text + "config: {connection_pool: 3}\n", **environ)
    shown = effective.explain(tmp_path / "penstock.yaml", environ)
    assert "hunter2" not in f"{loaded} {loaded!r} {loaded.backends} {shown}"
    values = {setting.key: (setting.value, setting.origin) for setting in shown}
    assert values["backends.redis-lists.password"] == ("***", "file")
    assert values["backends.redis-lists.url"] == ("redis+lists://localhost:6379/0", "file")
    assert values["backends.redis-lists.pool_size"] == (3, "file")
    assert values["backends.redis-lists.ca_file"] == (None, "default")
    assert values["backends.redis-streams.block_timeout"] == (1.0, "file")
    assert values["backends.keydb.read_timeout"] == (0.1, "file")
    assert values["backends.keydb.tls"] == (True, "file")
    assert values["backends.redis-streams.retry.attempts"] == (5, "default")
    assert values["queues.high-priority.backend"][0] == "redis-lists/high-priority"
    assert values["backends.redis-lists/high-priority.key_prefix"] == ("queue:high:", "file")
    assert values["backends.redis-lists/high-priority.password"] == ("***", "file")
    assert values["backends.keydb/bulk-processing.read_timeout"] == (0.5, "file")
    assert values["backends.keydb/bulk-processing.write_timeout"] == (None, "default")


def test_the_environment_may_encrypt_a_store_that_a_url_opens() -> None:
    environ = {"PENSTOCK_STORAGE_ENCRYPTION_ENABLED": "true", "PENSTOCK_STORAGE_ENCRYPTION_KEY_ID": "k"}
    settings = config.from_url("redis+lists://localhost", environ).default
    assert isinstance(settings, RedisSettings)
    assert settings.encryption == EncryptionSettings(enabled=True, key_id="k")


def test_encryption_without_its_key_is_refused_before_anything_is_opened(read: Read) -> None:
    encryption = "{enabled: true, key_id: nobody-has}"
    loaded = read(f"backends: {{b: {{url: 'redis+lists://localhost', encryption: {encryption}}}}}")
    with pytest.raises(KeyMissing, match="nobody-has"):
        check_keys(loaded)


def test_scripts_of_queues_on_servers_are_checked_too(read: Read) -> None:
    loaded = read(
        "backends: {b: {url: 'redis+lists://localhost'}}\nqueues: {q: {backend: b, on_enqueue: 'not lua'}}"
    )
    with pytest.raises(InvalidConfig, match=r"queues\.q: .*on_enqueue"):
        check_scripts(loaded)
