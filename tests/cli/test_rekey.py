"""penstock rekey: encrypts, says what there was to do, and ends with an exit code that scripts can use."""

from __future__ import annotations

import pytest

import penstock
from penstock.backends.base import RekeyReport
from tests.cli.calling import Cli

KEY = bytes(range(32)).hex()


@pytest.fixture
def _encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STORAGE_ENCRYPTION_ENABLED", "true")
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", KEY)


def plain_text_in(cli: Cli) -> bool:
    return any(b"a secret" in file.read_bytes() for file in cli.store.iterdir() if file.is_file())


def test_a_plain_store_is_encrypted_and_a_second_run_has_nothing_to_do(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("enqueue", "emails", "a secret")
    assert plain_text_in(cli)
    monkeypatch.setenv("PENSTOCK_STORAGE_ENCRYPTION_ENABLED", "true")
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", KEY)
    assert "encrypted key main to rekey plain" in " ".join(cli("info").out.split())
    answer = cli("rekey").out
    assert answer.endswith("records rewritten; the store is now encrypted with key 'main'\n")
    assert not plain_text_in(cli)
    found = cli("rekey", "--json", code=1).object
    assert found == {"records": 0, "rewritten": 0, "unreadable": 0, "sealed_with": {"default": "main"}}
    monkeypatch.delenv("PENSTOCK_STORAGE_ENCRYPTION_ENABLED")
    assert cli("peek", "emails", "--json").object["payload"] == "a secret"


def test_a_plain_store_without_encryption_has_nothing_to_do(cli: Cli) -> None:
    assert cli("rekey", code=1).out == "0 records rewritten; the store is now plain\n"


@pytest.mark.usefixtures("_encrypted")
def test_a_missing_key_is_one_line_that_says_what_to_do(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("rekey")
    monkeypatch.delenv("PENSTOCK_KEY_MAIN")
    answer = cli("stats", code=3)
    assert answer.err.startswith("penstock: the store in ")
    assert "PENSTOCK_KEY_MAIN" in answer.err
    assert len(answer.err.splitlines()) == 1
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", "f" * 64)
    assert "key 'main' is not the one" in cli("stats", code=4).err


def test_records_that_do_not_open_are_exit_code_4(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock.Penstock, "rekey", lambda self, progress=None: RekeyReport(9, 7, 2))
    assert "2 do not open and were left: penstock check" in cli("rekey", code=4).out
