"""`penstock keys`: made, shown once, listed, revoked; what a server reads is never half a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.server.credentials import CredentialsFile
from tests.cli.calling import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path)


def test_a_key_works_until_it_is_revoked_and_is_nowhere_in_the_file(cli: Cli) -> None:
    made = cli("keys", "create", "ada", "--grant", "mail*=enqueue,read", "--json").object
    cli("keys", "create", "bob", "--grant", "*=admin", "--certificate", "bob.example")
    path = cli.folder / "keys.yaml"
    assert made["key"] not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    known = CredentialsFile(str(path), SystemClock())
    ada = known.by_token(made["key"])
    assert ada is not None
    assert [ada.may("enqueue", "mails"), ada.may("consume", "mails"), ada.may("read", "other")] == [
        True,
        False,
        False,
    ]
    assert known.by_certificate("bob.example") is not None
    listed = cli("keys", "list", "--json").objects
    assert [(one["name"], one["grants"]) for one in listed] == [
        ("ada", "mail*=enqueue,read"),
        ("bob", "*=admin"),
    ]
    cli("keys", "revoke", "ada")
    assert known.refresh() == ["ada"]
    assert known.by_token(made["key"]) is None
    assert cli("keys", "revoke", "ada", code=None).code == 1


@pytest.mark.parametrize(
    "more",
    [
        ["ada", "--grant", "*=admin"],
        ["eve", "--grant", "*=everything"],
        ["eve", "--grant", "nothing"],
        ["eve", "--grant", "*=read", "--expires-at", "soon"],
    ],
)
def test_what_a_server_could_not_read_is_refused_and_the_file_stays(cli: Cli, more: list[str]) -> None:
    cli("keys", "create", "ada", "--grant", "*=admin")
    before = (cli.folder / "keys.yaml").read_bytes()
    assert cli("keys", "create", *more, code=None).code != 0
    assert (cli.folder / "keys.yaml").read_bytes() == before
    assert list(cli.folder.iterdir()) == [cli.folder / "keys.yaml"]


def test_a_pair_for_sqs_is_made_if_it_is_asked_for_and_shown_with_the_key(cli: Cli) -> None:
    made = cli("keys", "create", "ada", "--grant", "*=admin", "--aws", "--json").object
    plain = cli("keys", "create", "bob", "--grant", "*=admin", "--json").object
    assert set(plain) == {"name", "key"}
    known = CredentialsFile(str(cli.folder / "keys.yaml"), SystemClock())
    found = known.by_access_key(made["aws_access_key"])
    assert found is not None
    assert (found[0].name, found[1]) == ("ada", made["aws_secret"])
    listed = cli("keys", "list", "--json")
    assert [one.get("aws_access_key") for one in listed.objects] == [made["aws_access_key"], None]
    assert made["aws_secret"] not in listed.out
    assert made["aws_secret"] not in cli("keys", "list").out
