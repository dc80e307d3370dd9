"""Configuration of the Redis family: the blocks that described it first load as written; each key counts."""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import config, effective
from penstock.backends.registry import check_config
from penstock.config import Config, EncryptionSettings
from penstock.errors import InvalidConfig
from penstock.redis_options import BLOCK, GROUPS, OPTIONS, QUEUE, SECURITY
from penstock.redis_settings import RedisQueueSettings, RedisSettings, Secret, StreamSettings, schemes
from tests.redis import origin

Read = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str, **environ: str) -> Config:
        file = tmp_path / "penstock.yaml"
        file.write_text(text)
        return config.load(file, environ)

    return read


def refused(read: Read, text: str, **environ: str) -> str:
    with pytest.raises(InvalidConfig) as caught:
        read(text, **environ)
    message = str(caught.value)
    assert "\n" not in message
    return message.partition("penstock.yaml: ")[2]


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """What is refused is refused in one line."""
    try:
        yield
    except InvalidConfig as error:
        if len(str(error).splitlines()) != 1:
            raise AssertionError(f"not one line: {error}") from None
        raise


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


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://h", "does not say how messages are kept: write redis+lists or redis+streams"),
        ("rediss://h", "does not say how messages are kept: write rediss+lists or rediss+streams"),
        ("redis+lists:h", "must be redis+lists://user:password@host:port/database"),
        ("redis+lists:", "must be redis+lists://"),
        ("redis+lists://", "must name a server as host, host:port or [IPv6 address]:port"),
        ("redis+lists://h:0", "must name a server"),
        ("redis+lists://h:65536", "must name a server"),
        ("redis+lists://h:x", "must name a server"),
        ("redis+lists://a b", "must name a server"),
        ("redis+lists://[::1", "must name a server"),
        ("redis+lists://h,", "must name a server"),
        ("redis+lists://h/x", "database is 'x'; accepted: whole numbers 0 to 65535"),
        ("redis+lists://h/-1", "database is '-1'; accepted"),
        ("redis+lists://h/1/2", "database is '1/2'; accepted"),
        ("redis+lists://h#x", "must be redis+lists://"),
        ("redis+lists://u:hunter2/x@h", "must be redis+lists://"),
        ("redis+lists://u:hunter2?x@h", "must name a server"),
        ("redis+lists://h?password=hunter2", "has the option 'password', which URLs do not take; accepted"),
        ("redis+lists://h?nothing=1", "has the option 'nothing', which URLs do not take; accepted"),
        ("redis+lists://h?pool_size=0", "pool_size is '0'; accepted: whole numbers 1 to 10000"),
        ("redis+lists://h?pool_size=1&pool_size=2", "pool_size says again what pool_size says"),
        ("redis+lists://h?cluster=yes", "cluster is 'yes'; accepted: true, false"),
        ("redis+lists://h/1?cluster=true", "database must be 0: a cluster has no other"),
        ("redis+lists://a,b", "names several servers, which goes with cluster: true"),
        ("redis+lists://h?max_length=5", "max_length goes with streams; this backend keeps lists"),
        ("redis+lists://h?ca_file=/x", "ca_file goes with tls: true"),
        ("redis+lists://h?key_prefix=a{b", "key_prefix must not have { or } in it"),
        ("redis+lists://h?read_timeout=0", "read_timeout is '0'; accepted: 0.001 to 86400 seconds"),
        ("redis+lists://h?read_timeout=-1s", "read_timeout is '-1s'; accepted"),
        ("redis+lists://h?read_timeout=1d", "or a number with ms, s, m or h"),
    ],
)
def test_each_wrong_url_is_refused_on_one_line_without_its_secrets(url: str, problem: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        config.from_url(url, {})
    message = str(caught.value)
    assert problem in message
    assert "\n" not in message
    assert "hunter2" not in message


# -- refusals in files


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("driver: memcached", "backends.b.driver is 'memcached'; accepted: redis, valkey, keydb, dragonfly"),
        ("driver: keydb", "backends.b.driver is 'keydb', but the URL says 'redis'; make them one"),
        ("kind: sets", "backends.b.kind is 'sets'; accepted: lists, streams"),
        ("kind: streams", "backends.b.kind is 'streams', but the URL says 'lists'; make them one"),
        ("nothing: 1", "backends.b.nothing is not known; accepted: driver, url, kind, "),
        ("performance: 5", "backends.b.performance must be a mapping, not int; accepted keys: pool_size, "),
        ("performance: {auth: x}", "backends.b.performance.auth is not known; accepted: pool_size, "),
        ("stream_config: {block_timeout: 1s}", "backends.b.stream_config.block_timeout goes with streams"),
        ("pool_size: 5.5", "backends.b.pool_size is 5.5; accepted: whole numbers 1 to 10000"),
        ("pool_size: true", "backends.b.pool_size is True; accepted: whole numbers"),
        ("pool_size: 99999999999999999999", "backends.b.pool_size is 99999999999999999999; accepted"),
        ("pool_size: [1]", "backends.b.pool_size is [1]; accepted"),
        ("read_timeout: soon", "backends.b.read_timeout is 'soon'; accepted: 0.001 to 86400 seconds, or"),
        ("read_timeout: .nan", "backends.b.read_timeout is nan; accepted"),
        ("read_timeout: .inf", "backends.b.read_timeout is inf; accepted"),
        ("read_timeout: true", "backends.b.read_timeout is True; accepted"),
        ("read_timeout: 500 MS", "backends.b.read_timeout is '500 MS'; accepted"),
        ("tls: 'true'", "backends.b.tls is 'true'; accepted: true, false"),
        ("skip_verify: true", "backends.b.skip_verify goes with tls: true"),
        ("cert_file: /x", "backends.b.cert_file goes with tls: true"),
        ("tls: true, key_file: /x", "backends.b.key_file goes with cert_file"),
        ("tls: true, skip_verify: true, ca_file: /x", "backends.b.skip_verify leaves ca_file without effect"),
        ("password: 0123", "backends.b.password must be text that is not empty; put it in quotes"),
        ("password: ''", "backends.b.password must be text that is not empty"),
        ("password: [hunter2]", "backends.b.password must be text that is not empty"),
        ('password: "hunter2\\0"', "backends.b.password must be text that is not empty"),
        ("password: a, auth: hunter2", "backends.b.auth says again what backends.b.password says"),
        ("password: hunter2, password_file: /x", "backends.b.password_file says again what"),
        ("performance: {read_timeout: 1}, read_timeout: 1", "backends.b.read_timeout says again what"),
        ("config: {connection_pool: 1}, pool_size: 2", "backends.b.pool_size says again what"),
        ("durability: never", "backends.b.durability is 'never'; accepted: sync, interval, os"),
        ("health: {max_error_rate: 2}", "backends.b.health.max_error_rate is 2; accepted: 0 to 1"),
        ("retry: {attempts: 0}", "backends.b.retry.attempts is 0; accepted: whole numbers 1 to 100"),
        ("key_prefix: 'a}'", "backends.b.key_prefix must not have { or } in it"),
        (f"key_prefix: '{'x' * 300}'", "backends.b.key_prefix is too long; accepted: up to 256 bytes"),
        ("encryption: {key_id: ' '}", "backends.b.encryption.key_id is ' '; accepted"),
    ],
)
def test_each_wrong_key_is_refused_by_its_name_on_one_line(read: Read, block: str, problem: str) -> None:
    message = refused(read, f"backends: {{b: {{url: 'redis+lists://localhost', {block}}}}}")
    assert message.startswith(problem)
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("security: {x: {tls: true}}", "security.x is not known; accepted: b"),
        ("security: {b: {tls: 1}}", "security.b.tls is 1; accepted: true, false"),
        ("security: {b: {pool_size: 1}}", "security.b.pool_size is not known; accepted: username, "),
        ("security: {b: hunter2}", "security.b must be a mapping, not str; accepted keys: username"),
        ("security: [b]", "security must be a mapping, not list"),
        ("config: {pool: 1}", "config.pool is not known; accepted: pipeline_size, "),
        ("config: {pipeline_size: x}", "config.pipeline_size is 'x'; accepted"),
        ("config: {pipeline_size: 1, max_pipeline_size: 2}", "config.max_pipeline_size says again what"),
        ("queues: {q: {redis: {database: 1}}}", "queues.q.redis goes with a backend of redis; that of this"),
        ("queues: {q: {backend: b, keydb: {}}}", "queues.q.keydb goes with a backend of keydb; that of this"),
        ("queues: {q: {backend: b, redis: {db: 1}}}", "queues.q.redis.db is not known; accepted: database, "),
        ("queues: {q: {backend: b, redis: {database: x}}}", "queues.q.redis.database is 'x'; accepted"),
        ("queues: {q: {backend: b, redis: {stream_name: s}}}", "queues.q.redis.stream_name goes with"),
        ("queues: {q: {backend: b, redis: {endpoint: 'a b'}}}", "queues.q.redis.endpoint must name a server"),
        ("queues: {q: {backend: b, redis: {endpoint: 5}}}", "queues.q.redis.endpoint must name a server"),
        (
            "queues: {q: {backend: b, redis: {pool_size: 5}}}",
            "queues.q.redis differs from backend 'b', but has its server, database and key_prefix",
        ),
    ],
)
def test_other_sections_are_refused_by_name_too(read: Read, text: str, problem: str) -> None:
    message = refused(read, f"backends: {{b: {{url: 'redis+lists://localhost'}}}}\n{text}")
    assert message.startswith(problem)
    assert "hunter2" not in message


def test_a_backend_of_a_queue_does_not_take_the_name_of_another(read: Read) -> None:
    text = (
        "backends: {b: {url: 'redis+lists://localhost'}, b/q: {url: 'redis+lists://localhost/1'}}\n"
        "queues: {q: {backend: b, redis: {database: 2}}}\n"
    )
    assert refused(read, text).startswith("queues.q.redis needs a backend of its own, 'b/q', but")


NONSENSE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(alphabet="ab0:/{}$\0 é1smh.-[]@", max_size=12),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(sorted(BLOCK)), inner, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    block=st.dictionaries(st.sampled_from(sorted(set(BLOCK) - {"url"})), NONSENSE, max_size=3),
    group=st.sampled_from(sorted(GROUPS)),
    within=st.dictionaries(st.sampled_from(sorted({*OPTIONS, *SECURITY})), NONSENSE, max_size=2),
    queue=st.dictionaries(st.sampled_from(sorted(QUEUE)), NONSENSE, max_size=2),
)
def test_whatever_stands_in_a_block_loads_or_is_refused_on_one_line(
    read: Read, block: dict[str, Any], group: str, within: dict[str, Any], queue: dict[str, Any]
) -> None:
    tree = {
        "backends": {"b": {"url": "redis+streams://localhost", group: within, **block}},
        "queues": {"q": {"backend": "b", "redis": queue}},
    }
    with contextlib.suppress(InvalidConfig), one_line():
        assert isinstance(read(yaml.safe_dump(tree)).backends["b"], RedisSettings)


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
