"""penstock.yaml, URLs and the environment: what is read, and what every refusal says."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import config
from penstock.config import BackendSettings, Config, RocksDBSettings, StorageSettings
from penstock.errors import InvalidConfig
from penstock.settings import QueueSettings, Retry

SAMPLE = """\
storage:                     # the backend named "default"
  engine: rocksdb            # rocksdb | memory
  path: ~/penstock-data
  durability: sync           # sync | interval | os
  interval_ms: 50
  rocksdb: {cache_capacity: 256MiB, mode: high_throughput}     # or low_space: smaller files, slower writes; both measured
  encryption: {enabled: false, key_id: main}                   # PENSTOCK_KEY_MAIN: upper case, other characters become _
backends:                    # further ones, by name
  fast: {url: "redis+lists://localhost:6379/0", password: "${REDIS_PASSWORD}"}
queues:
  emails: {backend: default, lease_s: 30, dead_letter: emails-dead}
  clicks: {backend: fast, max_attempts: 3}
"""  # noqa: E501  # as it stands in the specification
DOCS = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
STORAGE_KEYS = ("engine", "path", "durability", "interval_ms", "rocksdb", "encryption")
HOME = {"HOME": "/home/ann"}

Read = Callable[..., Config]
Refuse = Callable[..., str]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str | bytes, **environ: str) -> Config:
        file = tmp_path / "penstock.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return config.load(file, HOME | environ)

    return read


@pytest.fixture
def refusal(read: Read, tmp_path: Path) -> Refuse:
    """The message of a refusal, without the name of the file that every one of them starts with."""

    def refusal(text: str | bytes, **environ: str) -> str:
        with pytest.raises(InvalidConfig) as caught:
            read(text, **environ)
        return str(caught.value).removeprefix(str(tmp_path / "penstock.yaml")).removeprefix(": ").strip()

    return refusal


def storage_of(loaded: Config) -> StorageSettings:
    assert isinstance(loaded.default, StorageSettings)
    return loaded.default


def url_storage(url: str, **environ: str) -> StorageSettings:
    return storage_of(config.from_url(url, HOME | environ))


def url_refusal(url: str, **environ: str) -> str:
    with pytest.raises(InvalidConfig) as caught:
        config.from_url(url, HOME | environ)
    return str(caught.value)


# --- the whole file ---------------------------------------------------------------------------------


def test_the_documented_sample_loads_as_written(read: Read) -> None:
    loaded = read(SAMPLE, REDIS_PASSWORD="hunter2")
    assert loaded.default == StorageSettings(path="/home/ann/penstock-data")
    assert loaded.backends == {
        "fast": BackendSettings(url="redis+lists://localhost:6379/0", options={"password": "hunter2"})
    }
    assert {name: queue.backend for name, queue in loaded.queues.items()} == {
        "emails": "default",
        "clicks": "fast",
    }
    assert loaded.queues["emails"].settings == QueueSettings(
        name="emails", lease_s=30.0, dead_letter="emails-dead"
    )
    assert loaded.queues["clicks"].settings == QueueSettings(name="clicks", max_attempts=3)
    assert loaded.source.endswith("penstock.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}", "storage:\nbackends:\nqueues:\n"])
def test_what_is_left_out_or_left_empty_has_its_default(read: Read, tmp_path: Path, text: str) -> None:
    loaded = read(text)
    assert loaded.default == StorageSettings(path=str(tmp_path / "penstock-data"))
    assert (loaded.backends, loaded.queues) == ({}, {})


def test_a_byte_order_mark_is_skipped(read: Read) -> None:
    assert storage_of(read(b"\xef\xbb\xbfstorage: {durability: os}")).durability == "os"


def test_settings_are_frozen(read: Read) -> None:
    with pytest.raises(AttributeError):
        read("").source = "other"  # type: ignore[misc]  # that is what is tested


@pytest.mark.parametrize("text", ["- a", "text", "42", "[storage]", "null and void"])
def test_a_document_that_is_not_a_mapping_is_refused(refusal: Refuse, text: str) -> None:
    assert re.fullmatch(
        r"must be a mapping, not \w+; accepted keys: storage, backends, queues", refusal(text)
    )


def test_an_unknown_section_is_refused_with_the_known_ones(refusal: Refuse) -> None:
    assert refusal("storrage: {}") == "storrage is not known; accepted: storage, backends, queues"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("storage: {}\nstorage: {}", "storage"),
        ("storage:\n  path: a\n  path: b", "storage.path"),
        ("queues:\n  a: {}\n  a: {}", "queues.a"),
        ("queues:\n  a: {}\n  'a': {}", "queues.a"),
        ("backends:\n  b: {url: 'http://h', x: 1, x: 2}", "backends.b.x"),
    ],
)
def test_a_key_that_is_there_twice_is_refused_with_its_line(refusal: Refuse, text: str, key: str) -> None:
    assert re.match(rf"{key} is there twice, again in line \d;", refusal(text))


def test_yaml_syntax_errors_give_the_place(refusal: Refuse) -> None:
    assert refusal("storage:\n  path: [a") == "is not one valid YAML document, line 2, column 11"
    assert "is not one valid YAML document" in refusal("storage: {}\n---\nqueues: {}")
    assert "is not one valid YAML document" in refusal("storage: \0")


def test_a_file_that_is_not_utf8_is_refused(refusal: Refuse) -> None:
    assert refusal(b"storage: {path: \xff}") == "is not UTF-8 at byte 16; save it as UTF-8"
    assert "is not UTF-8" in refusal("storage: {}".encode("utf-16"))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"none\.yaml cannot be read: No such file or directory"):
        config.load(tmp_path / "none.yaml")
    with pytest.raises(InvalidConfig, match="cannot be read: Is a directory"):
        config.load(tmp_path)
    with pytest.raises(InvalidConfig, match="cannot be read: embedded null"):
        config.load("a\0.yaml")


@pytest.mark.parametrize("key", ["1", "no", "2024-01-01", "~", "[a, b]", "{a: b}", "<<", "=", "!x y"])
def test_a_key_that_yaml_does_not_read_as_text_is_refused(refusal: Refuse, key: str) -> None:
    message = refusal(f"queues:\n  ? {key}\n  : {{}}")
    assert message == "queues has a key that is not text, in line 2; put it in quotes"


# --- storage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("engine: rocksdb", {"engine": "rocksdb"}),
        ("path: /var/lib/p", {"path": "/var/lib/p"}),
        ("durability: sync", {"durability": "sync"}),
        ("durability: interval", {"durability": "interval"}),
        ("durability: os", {"durability": "os"}),
        ("interval_ms: 1", {"interval_ms": 1}),
        ("interval_ms: 60000", {"interval_ms": 60_000}),
        ("rocksdb: {mode: low_space}", {"rocksdb": RocksDBSettings(mode="low_space")}),
        ("rocksdb: {cache_capacity: 64MiB}", {"rocksdb": RocksDBSettings(cache_capacity=64 * 2**20)}),
        (
            "encryption: {enabled: false, key_id: other}",
            {"encryption": config.EncryptionSettings(key_id="other")},
        ),
        ("encryption:", {}),
    ],
)
def test_each_storage_key_is_read(read: Read, tmp_path: Path, line: str, expected: dict[str, object]) -> None:
    usual = StorageSettings(path=str(tmp_path / "penstock-data"))
    assert read(f"storage:\n  {line}").default == msgspec.structs.replace(usual, **expected)


def test_the_memory_engine_has_no_path(read: Read) -> None:
    assert read("storage: {engine: memory, path: x}").default == StorageSettings(engine="memory", path="")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("~", "/home/ann"),
        ("~/data", "/home/ann/data"),
        ("$HOME/data", "/home/ann/data"),
        ("${HOME}/data", "/home/ann/data"),
        ("/srv/${HOST}", "/srv/alpha"),
        ("/srv/$$HOME", "/srv/$HOME"),
        ("/srv/$HOMER", "/srv/$HOMER"),
        ("/srv/~", "/srv/~"),
        ("data", "{folder}/data"),
        ("./a/../data", "{folder}/a/../data"),
        ("~ann", "{folder}/~ann"),
        ("a?b#c%20d", "{folder}/a?b#c%20d"),
        ("día ☃", "{folder}/día ☃"),
    ],
)
def test_paths_are_expanded_and_relative_to_the_file(
    read: Read, tmp_path: Path, path: str, expected: str
) -> None:
    loaded = read(f"storage: {{path: '{path}'}}", HOST="alpha")
    assert storage_of(loaded).path == expected.replace("{folder}", str(tmp_path))


def test_a_file_named_relatively_still_gives_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "penstock.yml").write_text("storage: {path: data}")
    monkeypatch.chdir(tmp_path)
    loaded = config.resolve("conf/penstock.yml", {})
    assert (storage_of(loaded).path, loaded.source) == (str(tmp_path / "conf" / "data"), "conf/penstock.yml")


def test_home_is_found_without_its_variable(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("storage: {path: ~/data}")
    assert storage_of(config.load(tmp_path / "p.yaml", {})).path == os.path.expanduser("~/data")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("1024", 1024),
        ("'1024'", 1024),
        ("64KiB", 64 * 1024),
        ("64 KiB", 64 * 1024),
        ("256MiB", 256 * 1024**2),
        ("2GiB", 2 * 1024**3),
        ("1024GiB", 1024**4),
        ("64KB", 64_000),
        ("256MB", 256_000_000),
        ("2GB", 2_000_000_000),
    ],
)
def test_sizes_are_bytes_or_have_a_unit(read: Read, size: str, expected: int) -> None:
    loaded = read(f"storage: {{rocksdb: {{cache_capacity: {size}}}}}")
    assert storage_of(loaded).rocksdb.cache_capacity == expected


@pytest.mark.parametrize(
    "size",
    [
        "0",
        "1023",
        "-5",
        "1.5GiB",
        "MiB",
        "''",
        "256mib",
        "256 TiB",
        "true",
        "null",
        "[1]",
        "1025GiB",
        "'٣MiB'",
        "1e9",
    ],
)
def test_other_sizes_are_refused_with_the_units(refusal: Refuse, size: str) -> None:
    assert refusal(f"storage: {{rocksdb: {{cache_capacity: {size}}}}}") == (
        "storage.rocksdb.cache_capacity must be 1KiB to 1024GiB, as bytes or with a unit; "
        "accepted: KiB, MiB, GiB, KB, MB, GB"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{engine: lmdb}", "storage.engine is 'lmdb'; accepted: rocksdb, memory"),
        ("{engine: RocksDB}", "storage.engine is 'RocksDB'; accepted: rocksdb, memory"),
        ("{engine: [rocksdb]}", "storage.engine is ['rocksdb']; accepted: rocksdb, memory"),
        ("{engine: }", "storage.engine is None; accepted: rocksdb, memory"),
        ("{durability: on}", "storage.durability is True; accepted: sync, interval, os"),
        ("{durability: {a: b}}", "storage.durability is {'a': 'b'}; accepted: sync, interval, os"),
        ("{path: 5}", "storage.path cannot be used: Expected `str`, got `int`"),
        ("{path: }", "storage.path cannot be used: Expected `str`, got `null`"),
        ("{path: ''}", "storage.path must be a path that is not empty and has no NUL in it"),
        ('{path: "a\\0b"}', "storage.path must be a path that is not empty and has no NUL in it"),
        ("{interval_ms: 0}", "storage.interval_ms is out of range; accepted: 1 to 60000"),
        ("{interval_ms: -1}", "storage.interval_ms is out of range; accepted: 1 to 60000"),
        ("{interval_ms: 60001}", "storage.interval_ms is out of range; accepted: 1 to 60000"),
        ("{interval_ms: '50'}", "storage.interval_ms cannot be used: Expected `int`, got `str`"),
        ("{interval_ms: 50.0}", "storage.interval_ms cannot be used: Expected `int`, got `float`"),
        ("{interval_ms: true}", "storage.interval_ms cannot be used: Expected `int`, got `bool`"),
        (
            "{rocksdb: fast}",
            "storage.rocksdb must be a mapping, not str; accepted keys: cache_capacity, mode",
        ),
        (
            "{rocksdb: [mode]}",
            "storage.rocksdb must be a mapping, not list; accepted keys: cache_capacity, mode",
        ),
        ("{rocksdb: {mode: 1}}", "storage.rocksdb.mode is 1; accepted: low_space, high_throughput"),
        ("{rocksdb: {mod: x}}", "storage.rocksdb.mod is not known; accepted: cache_capacity, mode"),
        (
            "{encryption: yes}",
            "storage.encryption must be a mapping, not bool; accepted keys: enabled, key_id",
        ),
        ("{encryption: {key: k}}", "storage.encryption.key is not known; accepted: enabled, key_id"),
        (
            "{encryption: {enabled: 'no'}}",
            "storage.encryption.enabled cannot be used: Expected `bool`, got `str`; accepted: true, false",
        ),
        ("{encryption: {key_id: 7}}", "storage.encryption.key_id cannot be used: Expected `str`, got `int`"),
        (
            "{encryption: {enabled: true}}",
            (
                "storage.encryption.enabled is true, but this version has no encryption at rest yet; "
                "accepted: false"
            ),
        ),
        ("{engines: rocksdb}", f"storage.engines is not known; accepted: {', '.join(STORAGE_KEYS)}"),
        ("./data", f"storage must be a mapping, not str; accepted keys: {', '.join(STORAGE_KEYS)}"),
    ],
)
def test_each_wrong_storage_value_is_refused_by_its_key(refusal: Refuse, text: str, message: str) -> None:
    assert refusal(f"storage: {text}") == message


# --- backends ---------------------------------------------------------------------------------------


def test_a_backend_keeps_the_options_that_its_driver_checks(read: Read) -> None:
    loaded = read(
        "backends: {r: {url: 'redis+lists://h/0', password: a, db: 3, timeout_s: 1.5, cluster: true}}"
    )
    assert loaded.backends["r"] == BackendSettings(
        url="redis+lists://h/0", options={"password": "a", "db": 3, "timeout_s": 1.5, "cluster": True}
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
        ("{b: {url: 'rocksdb:x', mode: low_space}}", "backends.b.mode is not known; accepted: url"),
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


# --- queues -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lease_s: 1.5", {"lease_s": 1.5}),
        ("max_attempts: 3", {"max_attempts": 3}),
        ("dead_letter: other", {"dead_letter": "other"}),
        ("dead_letter: null", {"dead_letter": None}),
        ("fifo: true", {"fifo": True}),
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
    "backend": ["5", "[a]", "true"],
    "lease_s": ["x", "true", "null", "[1]", "0", "-1", ".nan", ".inf", "1.0e+300"],
    "max_attempts": ["x", "1.5", "true", "null", "0", "99999999999999999999"],
    "dead_letter": ["5", "true", "[a]", "{a: b}"],
    "fifo": ["1", "x", "null", "[]"],
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


# --- variables in values ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("${PW}", "s3cret"),
        ("a${PW}b${PW}", "as3cretbs3cret"),
        ("$${PW}", "${PW}"),
        ("$$$$", "$$"),
        ("$PW", "$PW"),
        ("pa$word$", "pa$word$"),
        ("$HOME", "$HOME"),
        ("${EMPTY}", ""),
        ("${NESTED}", "${PW}"),
    ],
)
def test_variables_are_replaced_in_text(read: Read, written: str, expected: str) -> None:
    loaded = read(
        f"backends: {{b: {{url: 'http://h', x: '{written}'}}}}", PW="s3cret", EMPTY="", NESTED="${PW}"
    ).backends["b"]
    assert isinstance(loaded, BackendSettings)
    assert loaded.options["x"] == expected


def test_variables_are_replaced_wherever_text_may_stand(read: Read) -> None:
    loaded = read(
        "storage: {engine: '${E}'}\n"
        "backends: {b: {url: '${U}'}}\n"
        "queues: {q: {backend: '${B}', dead_letter: '${D}'}}\n",
        E="memory",
        U="http://h",
        B="b",
        D="dead",
    )
    assert storage_of(loaded).engine == "memory"
    assert loaded.backends["b"] == BackendSettings(url="http://h")
    assert (loaded.queues["q"].backend, loaded.queues["q"].settings.dead_letter) == ("b", "dead")


def test_a_missing_variable_is_named_with_its_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(SAMPLE)
    with pytest.raises(InvalidConfig) as caught:
        config.load(file, HOME)
    assert str(caught.value) == (
        f"{file}: backends.fast.password needs the environment variable REDIS_PASSWORD, which is not set"
    )


def test_home_in_a_path_must_be_set_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("storage: {path: $HOME/x}")
    with pytest.raises(InvalidConfig, match=r"storage\.path needs the environment variable HOME"):
        config.load(tmp_path / "p.yaml", {})


@pytest.mark.parametrize("written", ["${", "${}", "${A-B}", "${A:-b}", "${1A}", "a${PW", "${ PW }"])
def test_a_malformed_variable_is_refused(refusal: Refuse, written: str) -> None:
    message = refusal(f"backends: {{b: {{url: 'http://h', x: '{written}'}}}}", PW="x")
    assert message == "backends.b.x has a ${ that is not ${NAME}; for a dollar sign write $$"


# --- variables that override the file ---------------------------------------------------------------

#: variable -> (a value, what it makes of the settings, a wrong value, what its error says is accepted)
OVERRIDES: dict[str, tuple[str, dict[str, object], str, str]] = {
    "PENSTOCK_STORAGE_ENGINE": ("memory", {"engine": "memory", "path": ""}, "disk", "rocksdb, memory"),
    "PENSTOCK_STORAGE_PATH": (
        "/srv/p",
        {"path": "/srv/p"},
        "a\0b",
        "a path that is not empty and has no NUL",
    ),
    "PENSTOCK_STORAGE_DURABILITY": ("os", {"durability": "os"}, "x", "sync, interval, os"),
    "PENSTOCK_STORAGE_INTERVAL_MS": ("7", {"interval_ms": 7}, "0", "1 to 60000"),
    "PENSTOCK_STORAGE_ROCKSDB_CACHE_CAPACITY": (
        "1MiB",
        {"rocksdb": RocksDBSettings(cache_capacity=2**20)},
        "lots",
        "KiB, MiB, GiB, KB, MB, GB",
    ),
    "PENSTOCK_STORAGE_ROCKSDB_MODE": (
        "low_space",
        {"rocksdb": RocksDBSettings(mode="low_space")},
        "x",
        "low_space, high_throughput",
    ),
}
FULL = """
storage:
  engine: rocksdb
  path: ${HOME}/f
  durability: interval
  interval_ms: 9
  rocksdb: {mode: high_throughput}
"""


@pytest.mark.parametrize("variable", OVERRIDES)
@pytest.mark.parametrize("text", ["", "storage: {rocksdb: }", FULL])
def test_each_variable_overrides_the_file(read: Read, variable: str, text: str) -> None:
    value, changes, _, _ = OVERRIDES[variable]
    overridden = read(text, **{variable: value}).default
    assert overridden == msgspec.structs.replace(storage_of(read(text)), **changes)
    assert overridden != read(text).default


@pytest.mark.parametrize("variable", OVERRIDES)
def test_an_empty_variable_counts_as_not_set(read: Read, variable: str) -> None:
    assert read(FULL, **{variable: ""}) == read(FULL)


@pytest.mark.parametrize("variable", OVERRIDES)
@pytest.mark.parametrize("text", ["", FULL, "storage: {engine: '${E}', durability: '${E}'}"])
def test_an_error_in_a_variable_names_it(refusal: Refuse, variable: str, text: str) -> None:
    _, _, wrong, accepted = OVERRIDES[variable]
    environ = {"E": "rocksdb", "PENSTOCK_STORAGE_DURABILITY": "sync"} | {variable: wrong}
    message = refusal(text, **environ)
    assert message.startswith(f"{variable} ")
    assert accepted in message
    assert "${E}" not in message


@pytest.mark.parametrize("wrong", ["x", "-1", "1.5", " 5", "0x10", "9" * 10_000, "٣"])
def test_a_variable_that_is_not_a_number_is_refused(refusal: Refuse, wrong: str) -> None:
    assert refusal("", PENSTOCK_STORAGE_INTERVAL_MS=wrong).startswith("PENSTOCK_STORAGE_INTERVAL_MS ")


def test_a_path_in_a_variable_is_relative_to_the_working_folder(read: Read) -> None:
    assert storage_of(read("", PENSTOCK_STORAGE_PATH="x")).path == str(Path.cwd() / "x")
    assert storage_of(read("", PENSTOCK_STORAGE_PATH="~/x")).path == "/home/ann/x"
    assert storage_of(read("", PENSTOCK_STORAGE_PATH="$HOME/x")).path == "/home/ann/x"
    assert storage_of(read("", PENSTOCK_STORAGE_PATH="/a/${B}", B="b")).path == "/a/b"


def test_a_missing_variable_inside_a_variable_is_refused_by_both_names(refusal: Refuse) -> None:
    message = refusal("", PENSTOCK_STORAGE_PATH="/a/${B}")
    assert message == "PENSTOCK_STORAGE_PATH needs the environment variable B, which is not set"


# --- URLs, folders, and the choice between them -----------------------------------------------------


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("rocksdb:./data", "{here}/data"),
        ("rocksdb:data", "{here}/data"),
        ("rocksdb:/abs/path", "/abs/path"),
        ("rocksdb:///abs/path", "/abs/path"),
        ("ROCKSDB:/abs", "/abs"),
        ("rocksdb:~/data", "/home/ann/data"),
        ("rocksdb:/with%20space%3Fand%25", "/with space?and%"),
        ("rocksdb:/caf%C3%A9", "/café"),
        ("rocksdb:/raw%FF", "/raw\udcff"),
        ("rocksdb:/a+b#c:d@e", "/a+b#c:d@e"),
        ("rocksdb:/100%", "/100%"),
        ("rocksdb:/a?", "/a"),
    ],
)
def test_a_rocksdb_url_names_a_folder(url: str, path: str) -> None:
    assert url_storage(url) == StorageSettings(path=path.replace("{here}", str(Path.cwd())))


def test_url_options_are_read() -> None:
    url = "rocksdb:/abs/path?durability=os&interval_ms=20&mode=low_space&cache_capacity=64MiB"
    assert url_storage(url) == StorageSettings(
        path="/abs/path",
        durability="os",
        interval_ms=20,
        rocksdb=RocksDBSettings(cache_capacity=64 * 2**20, mode="low_space"),
    )


@pytest.mark.parametrize("url", ["memory:", "memory://", "memory:?"])
def test_a_memory_url_has_no_path(url: str) -> None:
    assert url_storage(url) == StorageSettings(engine="memory", path="")
    assert url_storage("memory:?durability=os&interval_ms=5") == StorageSettings(
        engine="memory", path="", durability="os", interval_ms=5
    )


def test_the_source_of_a_url_is_the_url_without_options() -> None:
    assert config.from_url("rocksdb:./d?durability=os", {}).source == "rocksdb:./d"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("rocksdb:", "rocksdb: must be a path that is not empty and has no NUL in it"),
        ("rocksdb:?durability=os", "rocksdb: must be a path that is not empty and has no NUL in it"),
        ("rocksdb:a%00b", "rocksdb:a%00b must be a path that is not empty and has no NUL in it"),
        (
            "rocksdb://host/a",
            "rocksdb://host/a has a host; accepted: rocksdb:relative/path, rocksdb:/absolute/path",
        ),
        ("memory:data", "memory:data has a path, which memory: does not take"),
        (
            "rocksdb:d?sync=1",
            "rocksdb:d: sync is not known; accepted: durability, interval_ms, cache_capacity, mode",
        ),
        (
            "rocksdb:d?path=/x",
            "rocksdb:d: path is not known; accepted: durability, interval_ms, cache_capacity, mode",
        ),
        (
            "rocksdb:d?os",
            "rocksdb:d: os is not known; accepted: durability, interval_ms, cache_capacity, mode",
        ),
        ("memory:?mode=low_space", "memory:: mode is not known; accepted: durability, interval_ms"),
        ("rocksdb:d?durability=fast", "rocksdb:d: durability is 'fast'; accepted: sync, interval, os"),
        ("rocksdb:d?durability=", "rocksdb:d: durability is ''; accepted: sync, interval, os"),
        ("rocksdb:d?mode=x", "rocksdb:d: mode is 'x'; accepted: low_space, high_throughput"),
        ("rocksdb:d?interval_ms=0", "rocksdb:d: interval_ms is out of range; accepted: 1 to 60000"),
        ("rocksdb:d?interval_ms=x", "rocksdb:d: interval_ms cannot be used: Expected `int`, got `str`"),
        (
            "rocksdb:d?mode=x&mode=low_space",
            (
                "rocksdb:d has an option twice; "
                "accepted once each: durability, interval_ms, cache_capacity, mode"
            ),
        ),
        ("./data", "'./data' is not a URL, such as rocksdb:./data or memory:"),
    ],
)
def test_a_wrong_url_is_refused_with_what_is_accepted(url: str, message: str) -> None:
    assert url_refusal(url) == message


def test_a_wrong_size_in_a_url_is_refused_with_the_units() -> None:
    assert url_refusal("rocksdb:d?cache_capacity=big").startswith(
        "rocksdb:d: cache_capacity must be 1KiB to 1024GiB"
    )


@pytest.mark.parametrize(
    "url",
    [
        "redis+lists://host:6379/0",
        "rediss+streams://host/0?cluster=true",
        "http://host:9324",
        "postgres://db",
        "unheard-of:x",
    ],
)
def test_any_other_scheme_is_left_to_its_backend(url: str) -> None:
    assert config.from_url(url, {}).default == BackendSettings(url=url)


def test_the_environment_sets_what_a_url_or_folder_does_not() -> None:
    environ = {
        "PENSTOCK_STORAGE_ENGINE": "memory",
        "PENSTOCK_STORAGE_PATH": "/elsewhere",
        "PENSTOCK_STORAGE_DURABILITY": "os",
        "PENSTOCK_STORAGE_INTERVAL_MS": "7",
    }
    assert url_storage("rocksdb:/a?interval_ms=9", **environ) == StorageSettings(
        path="/a", durability="os", interval_ms=9
    )
    assert config.from_folder("/a", environ).default == StorageSettings(
        path="/a", durability="os", interval_ms=7
    )


def test_an_error_in_a_variable_is_named_for_urls_and_folders_too() -> None:
    assert url_refusal("memory:", PENSTOCK_STORAGE_DURABILITY="x").startswith(
        "PENSTOCK_STORAGE_DURABILITY is 'x'"
    )
    with pytest.raises(InvalidConfig, match="PENSTOCK_STORAGE_ROCKSDB_MODE is 'x'"):
        config.from_folder("a", {"PENSTOCK_STORAGE_ROCKSDB_MODE": "x"})


def test_an_option_of_the_url_repairs_what_the_environment_has_wrong() -> None:
    assert url_storage("memory:?durability=os", PENSTOCK_STORAGE_DURABILITY="x").durability == "os"


def test_resolve_tells_configs_urls_files_and_folders_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("storage: {engine: memory}")
    (tmp_path / "B.YML").write_text("storage: {durability: os}")
    given = config.from_url("memory:", {})
    assert config.resolve(given) is given
    assert storage_of(config.resolve("memory:", {})).engine == "memory"
    assert storage_of(config.resolve("a.yaml", {})).engine == "memory"
    assert storage_of(config.resolve(Path("a.yaml"), {})).engine == "memory"
    assert storage_of(config.resolve("B.YML", {})).durability == "os"
    assert config.resolve("redis+lists://h", {}).default == BackendSettings(url="redis+lists://h")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("data", "{here}/data"),
        ("./a:b", "{here}/a:b"),
        ("~/data", "/home/ann/data"),
        ("C:data", "{here}/C:data"),
        (Path("a?durability=os"), "{here}/a?durability=os"),
        (Path("memory:"), "{here}/memory:"),
        (Path("/abs/%20"), "/abs/%20"),
        ("/abs/%20", "/abs/%20"),
        (".", "{here}"),
    ],
)
def test_everything_else_is_a_folder(target: str | Path, path: str) -> None:
    expected = StorageSettings(path=path.replace("{here}", str(Path.cwd())))
    assert config.resolve(target, HOME).default == expected


def test_a_path_object_of_bytes_is_a_folder() -> None:
    class Raw:
        def __fspath__(self) -> bytes:
            return b"/raw/\xff"

    assert config.resolve(Raw(), {}).default == StorageSettings(path="/raw/\udcff")  # type: ignore[arg-type]  # os.PathLike allows it


@pytest.mark.parametrize("target", [None, 5, b"data", ["data"], {"storage": {}}])
def test_what_is_no_store_is_refused(target: object) -> None:
    with pytest.raises(InvalidConfig, match=r"a store is a folder, a \.yaml file or a URL, not "):
        config.resolve(target)  # type: ignore[arg-type]  # that is what is tested


@pytest.mark.parametrize("target", ["", "a\0b"])
def test_a_folder_needs_a_usable_path(target: str) -> None:
    with pytest.raises(InvalidConfig, match="must be a path that is not empty and has no NUL in it"):
        config.resolve(target, {})


# --- secrets ----------------------------------------------------------------------------------------

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        "redis+lists://:hunter2@host/0",
        "redis+lists://user:hunter2@host/0",
        "redis+lists://hunter2@host/0",
        "redis+lists://u:a/hunter2@host/0",
        "redis+lists://u:a@hunter2@host/0",
        "redis+lists://u:a?hunter2@host/0",
        "redis+lists://host/0?password=hunter2",
        "redis+lists://host/0?a=b&password=hunter2&c=d",
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


# --- hostile files ----------------------------------------------------------------------------------


def bomb(first: str, more: str) -> str:
    """Lines that each mean several times what the line before means."""
    lines = [f"a: &a {first.format()}"]
    lines += [f"{b}: &{b} {more.format(a)}" for a, b in itertools.pairwise("abcdefghijklmnopqrstuvwxyz")]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        "queues: {a: &x {lease_s: 1}, b: *x}",
        "queues: {a: &x {lease_s: 1}, b: {<<: {lease_s: 1}}}",
        "storage: &x {rocksdb: *x}",
        "queues: &x {a: *x}",
        "queues: {a: &x [*x]}",
        bomb("[x, x]", "[*{0}, *{0}, *{0}]"),
        bomb("{{x: 1}}", "{{l: *{0}, r: *{0}}}"),
    ],
)
def test_aliases_and_merges_are_refused(refusal: Refuse, text: str) -> None:
    assert re.search("uses a YAML alias|has a key that is not text", refusal(text))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[\n"])
def test_deep_nesting_is_refused(refusal: Refuse, opening: str) -> None:
    assert re.match("is nested too deeply|is not one valid YAML document", refusal(opening * 2000))


def test_nesting_that_yaml_can_read_is_refused_by_its_key(refusal: Refuse) -> None:
    assert refusal("storage: {engine: " + "[" * 40 + "]" * 40 + "}").startswith("storage.engine is [[")
    assert refusal("queues: {q: {retry: {delays_s: [[[1]]]}}}").startswith("queues.q.retry.delays_s[0] ")


def test_a_file_beyond_the_limit_is_refused_without_reading_it_all(refusal: Refuse, read: Read) -> None:
    limit = config.MAX_FILE_BYTES
    assert refusal("#" * (limit + 1)) == f"is too large; accepted: up to {limit} bytes"
    assert read("#" * limit).queues == {}
    with pytest.raises(InvalidConfig, match="is too large"):
        config.load("/dev/zero", {})


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system [ls]",
        "!!python/name:os.system ''",
        "!!binary aGk=",
        "!!set {a}",
        "!!omap [a: b]",
        "!own x",
        "!own [x]",
        "!!int x",
        "!!int ''",
        "!!float x",
        "!!bool x",
        "!!timestamp x",
        "2024-13-45",
        "2024-01-01",
        "9" * 5000,
        "0x" + "f" * 5000,
        "1" + ":59" * 5000,
    ],
)
def test_values_of_other_kinds_are_refused_by_their_key(refusal: Refuse, value: str) -> None:
    assert re.match(
        r"storage\.path (is neither text, number|has a YAML tag)", refusal(f"storage: {{path: {value}}}")
    )


def test_long_values_are_cut_in_errors(refusal: Refuse) -> None:
    assert len(refusal(f"storage: {{engine: {'x' * 10_000}}}")) < 200
    assert len(refusal(f"{'x' * 10_000}: 1")) < 200


nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=6,
)
sections = st.fixed_dictionaries(
    {},
    optional={
        "storage": nonsense | st.dictionaries(st.sampled_from(StorageSettings.__struct_fields__), nonsense),
        "backends": nonsense
        | st.dictionaries(st.text(), st.dictionaries(st.sampled_from(["url", "password", "x"]), nonsense)),
        "queues": nonsense
        | st.dictionaries(
            st.text(), st.dictionaries(st.sampled_from(QueueSettings.__struct_fields__[1:]), nonsense)
        ),
    },
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=sections | nonsense)
def test_nonsense_either_loads_or_is_refused_as_configuration(read: Read, tree: object) -> None:
    with contextlib.suppress(InvalidConfig):
        assert read(yaml.safe_dump(tree, allow_unicode=True)).source


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    raw=st.binary(max_size=200)
    | st.text(alphabet="abc:-[]{}#&*!|>'\"%@`,? \n\t$~<=0123.", max_size=60).map(str.encode)
)
def test_any_bytes_either_load_or_are_refused_as_configuration(read: Read, raw: bytes) -> None:
    with contextlib.suppress(InvalidConfig):
        assert read(raw).source


@given(url=st.text(alphabet="rocksdbmey:/?&=%0+#@.~ durability_\0é", max_size=40))
def test_any_text_resolves_or_is_refused_as_configuration(url: str) -> None:
    for target in (url, "rocksdb:" + url, "memory:" + url, "redis+lists:" + url):
        with contextlib.suppress(InvalidConfig):
            assert config.resolve(target, HOME).source


# --- documentation ----------------------------------------------------------------------------------


def documented(structs: list[type[msgspec.Struct]]) -> list[str]:
    return [name for struct in structs for name in struct.__struct_fields__ if name != "name"]


def test_every_key_and_variable_is_documented() -> None:
    text = DOCS.read_text()
    keys = documented([StorageSettings, RocksDBSettings, config.EncryptionSettings, QueueSettings, Retry])
    assert [key for key in [*keys, "url", "backend", *OVERRIDES] if f"`{key}`" not in text] == []


def test_every_documented_default_is_the_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|", DOCS.read_text(), re.MULTILINE))
    for struct in (
        StorageSettings(),
        RocksDBSettings(),
        config.EncryptionSettings(),
        QueueSettings(name="q"),
        Retry(),
    ):
        for key in struct.__struct_fields__:
            value = getattr(struct, key)
            if key == "name" or isinstance(value, msgspec.Struct):
                continue
            if key == "cache_capacity":
                assert rows[key] == "`256MiB`"
                continue
            plain = yaml.safe_load(rows[key].strip("`"))
            assert plain == (list(value) if isinstance(value, tuple) else value), key


def test_every_documented_example_loads(read: Read) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(examples) >= 3
    for example in examples:
        read(example, REDIS_PASSWORD="x")
