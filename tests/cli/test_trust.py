"""Encryption by command: a store's key is named, changed, and missed."""

from __future__ import annotations

import re
import secrets

import pytest

from tests.cli.calling import Cli


@pytest.fixture
def sealed(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A store that is encrypted with the key `main`."""
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", secrets.token_hex(32))
    monkeypatch.setenv("PENSTOCK_STORAGE_ENCRYPTION_ENABLED", "true")
    bare("init", "-q", "emails")
    bare("enqueue", "emails", "--lines", input="a\nb\n")
    return bare


def test_info_names_the_key(sealed: Cli) -> None:
    assert re.search("encrypted with +main\n", sealed("info").out)
    assert sealed("info", "--json").object["backends"][0]["sealed_with"] == "main"


def test_rekey_encrypts_everything_with_the_new_key(sealed: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEY_NEW", secrets.token_hex(32))
    monkeypatch.setenv("PENSTOCK_STORAGE_ENCRYPTION_KEY_ID", "new")
    assert re.search("rekey from +main\n", sealed("info").out)
    assert "written anew with key new" in sealed("rekey").out
    monkeypatch.delenv("PENSTOCK_KEY_MAIN")
    assert [item["payload"] for item in sealed("list", "emails", "--json").objects] == ["a", "b"]
    again = sealed("rekey", "--json", code=1).object
    assert (again["rewritten"], again["unreadable"], again["sealed_with"]) == (0, 0, "new")


def test_a_missing_key_is_3_and_a_wrong_one_4(sealed: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_KEY_MAIN")
    assert "PENSTOCK_KEY_MAIN" in sealed("stats", code=3).err
    monkeypatch.setenv("PENSTOCK_KEY_MAIN", secrets.token_hex(32))
    assert "main" in sealed("stats", code=4).err


def test_keys_are_never_shown(sealed: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    key = os.environ["PENSTOCK_KEY_MAIN"]
    for words in (["info"], ["config", "show"], ["config", "check"], ["check"], ["rekey"]):
        for form in ([], ["--json"]):
            answer = sealed(*words, *form, code=None)
            assert key not in answer.out + answer.err
