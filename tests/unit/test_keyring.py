"""Key providers: where keys are found, and what each says about one that cannot be used."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from penstock.errors import InvalidConfig, KeyMissing
from penstock.keyring import (
    MAX_FILE_BYTES,
    CommandKeys,
    EnvironmentKeys,
    FileKeys,
    FirstOf,
    configured_keys,
    is_key_id,
    variable,
)

DIGITS = "0123456789abcdefABCDEF0123456789abcdefabcdef0123456789abcdef0000"
KEY = bytes.fromhex(DIGITS)


@pytest.mark.parametrize(
    ("key_id", "name"),
    [
        ("main", "PENSTOCK_KEY_MAIN"),
        ("2024-06", "PENSTOCK_KEY_2024_06"),
        ("eu.west_1", "PENSTOCK_KEY_EU_WEST_1"),
    ],
)
def test_a_variable_is_the_id_in_upper_case_with_underscores(key_id: str, name: str) -> None:
    assert is_key_id(key_id)
    assert variable(key_id) == name
    assert EnvironmentKeys({name: f" {DIGITS}\n"}).key(key_id) == KEY


@pytest.mark.parametrize("text", ["", "a b", "a=b", "a/b", "x" * 65, "ä", "a\n", "#"])
def test_what_cannot_be_named_everywhere_is_no_key_id(text: str) -> None:
    assert not is_key_id(text)


@pytest.mark.parametrize("environ", [{}, {"PENSTOCK_KEY_MAIN": ""}, {"PENSTOCK_KEY_OTHER": DIGITS}])
def test_a_variable_that_is_not_set_is_no_key(environ: dict[str, str]) -> None:
    assert EnvironmentKeys(environ).key("main") is None


@pytest.mark.parametrize("text", ["x", DIGITS[:-1], DIGITS + "0", "g" * 64, "0x" + DIGITS[2:], "٣" * 64])
def test_a_variable_that_is_not_a_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(InvalidConfig, match="PENSTOCK_KEY_MAIN must hold 64 hexadecimal digits") as caught:
        EnvironmentKeys({"PENSTOCK_KEY_MAIN": text}).key("main")
    assert len(text) == 1 or text not in str(caught.value)


def key_file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_a_file_has_a_key_in_each_line(tmp_path: Path) -> None:
    text = f"# ours\n\nmain = {DIGITS}\n old={DIGITS.replace('0', '1')} # until June\n"
    keys = FileKeys(key_file(tmp_path, text))
    assert keys.key("main") == KEY
    assert keys.key("old") == bytes.fromhex(DIGITS.replace("0", "1"))
    assert keys.key("new") is None


def test_a_file_is_read_each_time_so_that_a_new_key_is_found(tmp_path: Path) -> None:
    keys = FileKeys(key_file(tmp_path, ""))
    assert keys.key("main") is None
    key_file(tmp_path, f"main = {DIGITS}")
    assert keys.key("main") == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610, 0o601])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(InvalidConfig, match="open to others than its owner; chmod 600"):
        FileKeys(key_file(tmp_path, f"main = {DIGITS}", mode)).key("main")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("main", "line 1: accepted: id = 64 hex digits"),
        (f"\n{DIGITS}", "line 2: accepted: id = 64 hex digits"),
        (f"main = {DIGITS} {DIGITS}", "line 1: accepted"),
        (f"main = {DIGITS}\nmain = {DIGITS}", "line 2: 'main' is there twice"),
        ("main = 12", "key 'main' in key_file .* must hold 64 hexadecimal digits"),
        ("#" * (MAX_FILE_BYTES + 1), "is too large"),
        ("\xff\0", "line 1: accepted"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem) as caught:
        FileKeys(key_file(tmp_path, text)).key("main")
    assert DIGITS not in str(caught.value)


def test_a_file_that_is_not_there_or_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyMissing, match="cannot be read: No such file"):
        FileKeys(str(tmp_path / "none")).key("main")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(InvalidConfig, match="is not a file"):
        FileKeys(str(tmp_path / "pipe")).key("main")
    with pytest.raises((InvalidConfig, KeyMissing)):
        FileKeys(str(tmp_path)).key("main")


def command(code: str, timeout_s: float = 30) -> CommandKeys:
    return CommandKeys([sys.executable, "-c", f"import sys, time\n{code}"], timeout_s)


def test_a_command_prints_the_key_of_the_id_that_it_is_called_with() -> None:
    keys = command(f"print('{DIGITS}' if sys.argv[1] == 'main' else '')")
    assert keys.key("main") == KEY
    assert keys.key("other") is None


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (command("sys.exit(3)"), "ended with status 3"),
        (command(f"print('{DIGITS}', flush=True); time.sleep(600)", 0.5), "has not ended after 0.5 s"),
        (CommandKeys(["/no/such/program"]), "cannot be run: No such file"),
        (CommandKeys(["a\0b"]), "cannot be run: embedded null byte"),
    ],
)
def test_a_command_that_fails_is_named_with_the_key(keys: CommandKeys, problem: str) -> None:
    with pytest.raises(KeyMissing, match=f"for key 'main' {problem}") as caught:
        keys.key("main")
    assert DIGITS not in str(caught.value)
    assert DIGITS not in str(caught.value.__cause__)


def test_a_command_that_prints_something_else_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidConfig, match="printed for key 'main' must hold 64 hexadecimal") as caught:
        command("print('a secret')").key("main")
    assert "a secret" not in str(caught.value)


def test_the_first_provider_that_has_a_key_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEY_A", "a" * 64)
    file = key_file(tmp_path, f"a = {'b' * 64}\nb = {'b' * 64}")
    keys = configured_keys(file, [sys.executable, "-c", "print('c' * 64)"])
    assert [keys.key(key_id) for key_id in ("a", "b", "c")] == [bytes.fromhex(x * 64) for x in "abc"]
    assert FirstOf().key("a") is None


def test_a_command_may_be_one_text() -> None:
    keys = configured_keys(None, f"{sys.executable} -c \"print('c' * 64)\"")
    assert keys.key("from-the-command") == bytes.fromhex("c" * 64)
