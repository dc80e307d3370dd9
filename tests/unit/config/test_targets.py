"""URLs, folders, and the choice between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import config
from penstock.config import BackendSettings, RocksDBSettings, StorageSettings
from penstock.errors import InvalidConfig
from penstock.redis_settings import RedisSettings
from tests.unit.config.reading import HOME, storage_of, url_refusal, url_storage


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
    assert config.resolve("redis+lists://h", {}).default == RedisSettings(nodes=(("h", 6379),))


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
