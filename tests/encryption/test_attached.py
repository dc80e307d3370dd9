"""Encryption through an attachment: the owner has the keys, and rekeys for whoever asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import KeyMissing
from penstock.backends.base import RekeyReport
from tests.encryption.stores import Keys, contents, fill, opened, raw_store, rows, secrets_in


def test_a_process_without_keys_attaches_to_an_owner_that_has_them(tmp_path: Path) -> None:
    with opened(tmp_path) as owner, opened(tmp_path, None, Keys()) as attached:
        fill(attached)
        info = attached.info().default
        assert info.attached_to is not None
        assert info.sealed_with == "main"
        assert contents(attached) == contents(owner)
    assert secrets_in(tmp_path) == set()


def test_answers_that_are_kept_for_attached_callers_are_sealed(tmp_path: Path) -> None:
    with opened(tmp_path) as owner, opened(tmp_path) as attached:
        attached.create_queue("q").enqueue(b"")
        kv = owner._default._kv  # type: ignore[attr-defined]  # the rows behind the facade
        kept = [value for key, value in kv._store.scan(kv.space("meta"), b"\x11", b"\x12")]
        assert kept
        assert all(value[0] == 0xE1 for value in kept)


def test_a_rekey_that_an_attached_process_asks_for_reports_its_progress(tmp_path: Path) -> None:
    with opened(tmp_path, None) as ps:
        fill(ps)
    told: list[tuple[str, int, int]] = []
    with opened(tmp_path, "main") as owner, opened(tmp_path, "new") as attached:
        before = contents(owner)
        report = attached.rekey(lambda *what: told.append(what))
        assert report.rewritten > 50
        assert report.unreadable == 0
        assert [what for what, _, _ in told][-2:] == ["compact", "compact"]
        assert owner.info().default.rekey_from == []
        assert contents(attached) == before
        assert attached.rekey() == RekeyReport()
    with raw_store(tmp_path) as store:
        assert {value[:6] for value in rows(store, "messages").values()} == {b"\xe1\x04main"}


def test_one_without_the_key_that_should_take_over_says_which_is_missing(tmp_path: Path) -> None:
    owner = opened(tmp_path)
    attached = opened(tmp_path, None, Keys(), follow=True)
    attached.create_queue("q").enqueue(b"here")
    owner.close()
    with pytest.raises(KeyMissing, match="PENSTOCK_KEY_MAIN"):
        attached.queue("q").length()
    with opened(tmp_path) as owner:
        assert attached.queue("q").length() == 1
        assert owner.check().problems == []
    attached.close()
