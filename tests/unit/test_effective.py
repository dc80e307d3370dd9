"""Where each value of a configuration comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import InvalidConfig
from penstock.config import StorageSettings
from penstock.effective import explain


def origins(target: str | Path, environ: dict[str, str]) -> dict[str, tuple[Any, str, str]]:
    return {
        setting.key: (setting.value, setting.origin, setting.detail) for setting in explain(target, environ)
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "penstock.yaml"
    path.write_text(
        """
        storage: {path: ./data, rocksdb: {mode: low_space}, durability: interval}
        backends:
          scratch: {url: "memory:?durability=os"}
          fast: {url: "redis+lists://me@host", password: "${PASSWORD}"}
        queues:
          emails: {lease_s: 60, retry: {policy: list, delays_s: [1, 2]}}
          clicks: {backend: fast}
        """
    )
    return path


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(file: Path) -> None:
    found = origins(file, {"PASSWORD": "secret", "PENSTOCK_STORAGE_DURABILITY": "os"})
    assert found["storage.durability"] == ("os", "environment", "PENSTOCK_STORAGE_DURABILITY")
    assert found["storage.rocksdb.mode"] == ("low_space", "file", str(file))
    assert found["storage.path"] == (str(file.parent / "data"), "file", str(file))
    assert found["storage.rocksdb.cache_capacity"][1:] == ("default", "")


def test_an_empty_variable_counts_as_not_set(file: Path) -> None:
    found = origins(file, {"PASSWORD": "x", "PENSTOCK_STORAGE_DURABILITY": ""})
    assert found["storage.durability"][:2] == ("interval", "file")


def test_every_key_of_a_store_is_there(file: Path) -> None:
    found = origins(file, {"PASSWORD": "x"})
    assert {key.split(".")[1] for key in found if key.startswith("storage.")} == set(
        StorageSettings.__struct_fields__
    )


def test_further_stores_and_queues_say_what_was_given(file: Path) -> None:
    found = origins(file, {"PASSWORD": "hunter2"})
    assert found["backends.scratch.durability"][:2] == ("os", "file")
    assert found["backends.scratch.interval_ms"][1] == "default"
    assert found["queues.emails.retry.delays_s"][:2] == ((1.0, 2.0), "file")
    assert found["queues.emails.backend"][:2] == ("default", "default")
    assert found["queues.clicks.backend"][:2] == ("fast", "file")


def test_what_may_be_secret_is_masked(file: Path) -> None:
    found = origins(file, {"PASSWORD": "hunter2"})
    assert found["backends.fast.password"][0] == "***"
    assert "hunter2" not in repr(found)


def test_options_of_a_url_win_over_the_environment() -> None:
    environ = {
        "PENSTOCK_STORAGE_DURABILITY": "os",
        "PENSTOCK_STORAGE_INTERVAL_MS": "7",
        "PENSTOCK_STORAGE_PATH": "/x",
    }
    found = origins("rocksdb:/data?durability=interval", environ)
    assert found["storage.durability"][:2] == ("interval", "URL")
    assert found["storage.interval_ms"][:2] == (7, "environment")
    assert found["storage.path"][:2] == ("/data", "URL")


def test_a_folder_is_a_path_and_nothing_else() -> None:
    found = origins("/data", {"PENSTOCK_STORAGE_PATH": "/x"})
    assert found["storage.path"] == ("/data", "folder", "/data")
    assert found["storage.engine"][1] == "default"


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("storage: {pth: x}")
    with pytest.raises(InvalidConfig, match=r"storage\.pth"):
        explain(tmp_path / "bad.yaml")
