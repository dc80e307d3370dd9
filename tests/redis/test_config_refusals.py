"""What configuration of the Redis family is refused: by its name, on one line, without its secrets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import config
from penstock.errors import InvalidConfig
from penstock.redis_options import BLOCK, GROUPS, OPTIONS, QUEUE, SECURITY
from penstock.redis_settings import RedisSettings
from tests.redis.conftest import Read


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


@pytest.mark.parametrize("backends", ["{}", "{e: {url: 'memory:'}}"])
def test_security_of_backends_where_none_is_on_a_server_says_what_is_missing(
    read: Read, backends: str
) -> None:
    message = refused(read, f"backends: {backends}\nsecurity: {{b: {{password: hunter2}}}}")
    assert message.startswith("security.b is about no backend: the file has none on a Redis server")
    assert "hunter2" not in message
    assert "accepted" not in message


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
