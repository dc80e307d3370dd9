"""The sections of backends and queues: what is read, and what every refusal says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from penstock.config import BackendSettings, StorageSettings
from penstock.settings import QueueSettings, Retry
from tests.unit.config.reading import Read, Refuse, storage_of

# --- backends -------------------------------------------------------------------------------------


def test_a_backend_keeps_the_options_that_its_driver_checks(read: Read) -> None:
    loaded = read("backends: {r: {url: 'other+x://h/0', password: a, db: 3, timeout_s: 1.5, cluster: true}}")
    assert loaded.backends["r"] == BackendSettings(
        url="other+x://h/0", options={"password": "a", "db": 3, "timeout_s": 1.5, "cluster": True}
    )


def test_a_further_embedded_store_is_a_backend_like_any_other(read: Read, tmp_path: Path) -> None:
    loaded = read("backends: {scratch: {url: 'rocksdb:x?durability=os'}, m: {url: 'memory:'}}")
    assert loaded.backends == {
        "scratch": StorageSettings(path=str(tmp_path / "x"), durability="os"),
        "m": StorageSettings(engine="memory", path=""),
    }


def test_variables_for_the_storage_block_leave_further_stores_alone(read: Read) -> None:
    loaded = read("backends: {m: {url: 'memory:'}}", PENSTOCK_STORAGE_DURABILITY="os")
    assert (storage_of(loaded).durability, loaded.backends["m"]) == (
        "os",
        StorageSettings(engine="memory", path=""),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]", "backends must be a mapping, not list"),
        ("{b: 'redis://:pw@h'}", "backends.b must be a mapping, not str"),
        ("{b: }", "backends.b.url must be a URL, such as redis+lists://localhost:6379/0"),
        ("{b: {password: pw}}", "backends.b.url must be a URL, such as redis+lists://localhost:6379/0"),
        ("{b: {url: 5}}", "backends.b.url must be a URL, such as redis+lists://localhost:6379/0"),
        ("{b: {url: ./data}}", "backends.b.url must be a URL, such as redis+lists://localhost:6379/0"),
        (
            "{default: {url: 'http://h'}}",
            "backends.default is taken: the storage block is the backend of that name; choose another",
        ),
        ("{b: {url: 'http://h', x: [pw]}}", "backends.b.x must be text, a number, true or false"),
        ("{b: {url: 'http://h', x: {pw: pw}}}", "backends.b.x must be text, a number, true or false"),
        ("{b: {url: 'http://h', x: }}", "backends.b.x must be text, a number, true or false"),
        ("{b: {url: 'http://h', password: 0123}}", "backends.b.password must be text; put it in quotes"),
        (
            "{b: {url: 'http://h', password=pw}}",
            "backends.b has an option whose name is not made of letters, digits and _",
        ),
        (
            "{b: {url: 'rocksdb:x', mode: low_space}}",
            "backends.b.mode is not known; accepted: url, encryption, health",
        ),
        ("{b: {url: 'rocksdb:'}}", "backends.b.url must be a path that is not empty and has no NUL in it"),
        (
            "{b: {url: 'rocksdb:x?durability=no'}}",
            "backends.b.url: durability is 'no'; accepted: sync, interval, os",
        ),
        (
            "{b: {url: 'memory:?mode=x'}}",
            "backends.b.url: mode is not known; accepted: durability, interval_ms",
        ),
    ],
)
def test_each_wrong_backend_is_refused_by_its_key(refusal: Refuse, text: str, message: str) -> None:
    assert refusal(f"backends: {text}") == message


# --- queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lease_s: 1.5", {"lease_s": 1.5}),
        ("max_attempts: 3", {"max_attempts": 3}),
        ("dead_letter: other", {"dead_letter": "other"}),
        ("dead_letter: null", {"dead_letter": None}),
        ("fifo: true", {"fifo": True}),
        ("fifo: true\n    delay_s: 5", {"fifo": True, "delay_s": 5.0}),
        ("retention_s: 60", {"retention_s": 60.0}),
        ("dead_retention_s: 60", {"dead_retention_s": 60.0}),
        ("dedup_window_s: 0", {"dedup_window_s": 0.0}),
        ("journal_retention_s: null", {"journal_retention_s": None}),
        ("journal_max_bytes: 1000", {"journal_max_bytes": 1000}),
        ("retry: {policy: exponential, delay_s: 2, max_delay_s: 9, jitter: false}",
         {"retry": Retry(policy="exponential", delay_s=2.0, max_delay_s=9.0, jitter=False)}),
        ("retry: {policy: list, delays_s: [1, 2.5]}", {"retry": Retry(policy="list", delays_s=(1.0, 2.5))}),
        ("retry:", {}),
        ("max_leased: 10", {"max_leased": 10}),
        ("max_leased_per_key: 2", {"max_leased_per_key": 2}),
        ("compress_over_bytes: 4096", {"compress_over_bytes": 4096}),
        ("on_enqueue: return true", {"on_enqueue": "return true"}),
        ("on_failure: return true", {"on_failure": "return true"}),
    ],
)  # fmt: skip
def test_each_queue_key_is_read(read: Read, text: str, expected: dict[str, object]) -> None:
    queue = read(f"queues:\n  q:\n    {text}").queues["q"]
    assert queue.backend == "default"
    assert queue.settings == msgspec.structs.replace(QueueSettings(name="q"), **expected)


def test_a_queue_without_settings_has_the_defaults(read: Read) -> None:
    assert read("queues:\n  q:\n").queues["q"].settings == QueueSettings(name="q")


@pytest.mark.parametrize("name", ["a.b", "a b", "a/b", "ü", "$x", "${X}", "x" * 1024])
def test_a_queue_may_have_any_name(read: Read, name: str) -> None:
    assert list(read(yaml.safe_dump({"queues": {name: {}}})).queues) == [name]


WRONG_QUEUE_VALUES = {
    "annotations": ["5", "[a]", "true"],
    "backend": ["5", "[a]", "true"],
    "lease_s": ["x", "true", "null", "[1]", "0", "-1", ".nan", ".inf", "1.0e+300"],
    "max_attempts": ["x", "1.5", "true", "null", "0", "99999999999999999999"],
    "dead_letter": ["5", "true", "[a]", "{a: b}"],
    "fifo": ["1", "x", "null", "[]"],
    "delay_s": ["x", "-1", "null", ".nan", "1"],
    "retention_s": ["x", "-1", "null", ".nan"],
    "dead_retention_s": ["x", "0", "false"],
    "dedup_window_s": ["x", "-0.1", "null"],
    "journal_retention_s": ["x", "0", "7 days"],
    "journal_max_bytes": ["x", "0", "1MiB"],
    "retry": ["x", "5", "[1]"],
    "max_leased": ["x", "0", "2.0"],
    "max_leased_per_key": ["x", "0", "{}"],
    "compress_over_bytes": ["x", "-1", "1KiB"],
    "on_enqueue": ["5", "[a]", "true"],
    "on_failure": ["5", "[a]", "true"],
}


def test_wrong_values_are_listed_for_every_queue_key() -> None:
    assert ["name", *sorted(WRONG_QUEUE_VALUES)] == [
        "name",
        *sorted({*QueueSettings.__struct_fields__[1:], "backend"}),
    ]


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key in WRONG_QUEUE_VALUES for value in WRONG_QUEUE_VALUES[key]]
)
def test_each_wrong_queue_value_is_refused_by_its_key(refusal: Refuse, key: str, value: str) -> None:
    assert refusal(f"queues: {{q: {{{key}: {value}}}}}").startswith(f"queues.q.{key} ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{q: {lease_s: 0}}", "queues.q.lease_s is 0.0; accepted: 0.001 to "),
        ("{q: {backend: fast}}", "queues.q.backend is 'fast'; accepted: default, slow"),
        ("{q: {lease: 5}}", "queues.q.lease is not known; accepted: backend, lease_s, max_attempts, "),
        ("{q: {name: z}}", "queues.q.name is not known; accepted: backend, lease_s, max_attempts, "),
        ("{q: {dead_letter: q}}", "queues.q.dead_letter is the queue itself"),
        (
            "{q: {fifo: 'yes'}}",
            "queues.q.fifo cannot be used: Expected `bool`, got `str`; accepted: true, false",
        ),
        (
            "{q: {retry: {policy: never}}}",
            "queues.q.retry.policy is 'never'; accepted: fixed, exponential, list",
        ),
        (
            "{q: {retry: {delay: 1}}}",
            "queues.q.retry.delay is not known; accepted: policy, delay_s, max_delay_s, ",
        ),
        (
            "{q: {retry: {policy: list, delays_s: [1, x]}}}",
            "queues.q.retry.delays_s[1] cannot be used: Expected `float`",
        ),
        ("{q: {retry: {policy: list}}}", "queues.q.retry.delays_s is needed by policy 'list'"),
        ("{q: {retry: {delay_s: -1}}}", "queues.q.retry"),
        ("{'': {}}", "queues.'': queue name has 0 bytes"),
        ('{"a\\0b": {}}', "queues.'a\\x00b': queue name 'a\\x00b' has a NUL"),
        (f"\n  ? {'x' * 1025}\n  : {{}}", "queues.'xxx"),
        ("{q: 5}", "queues.q must be a mapping, not int; accepted keys: backend, lease_s, max_attempts, "),
        ("[q]", "queues must be a mapping, not list"),
    ],
)
def test_queue_refusals_say_what_is_accepted(refusal: Refuse, text: str, message: str) -> None:
    assert refusal(f"backends: {{slow: {{url: 'http://h'}}}}\nqueues: {text}").startswith(message)
