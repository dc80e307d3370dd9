"""The environment: variables in values, and variables that override the file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock import config
from penstock.config import BackendSettings
from penstock.errors import InvalidConfig
from tests.unit.config.reading import HOME, OVERRIDES, SAMPLE, Read, Refuse, storage_of

# --- variables in values --------------------------------------------------------------------------


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


# --- variables that override the file -------------------------------------------------------------


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
