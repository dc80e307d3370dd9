"""AWS secrets in files of their own: who may read them, and what happens when they change."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

import penstock
from penstock.clock import SystemClock
from penstock.errors import InvalidConfig
from penstock.server import serving as serving_of
from penstock.server.audit import Audit
from penstock.server.calls import StoreCalls
from penstock.server.credentials import CredentialsFile
from penstock.server.serving import _watch
from penstock.server_config import Limits
from tests.redis.servers import wait_until
from tests.server.processes import serving

FIRST, SECOND = "the-first-secret-of-all", "another-secret-for-later"


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """As a whole, like whoever rotates a secret should."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)


def keys(folder: Path, secret_file: str) -> Path:
    entry = {"aws_access_key": "AKID", "aws_secret_file": secret_file, "grants": {"*": ["admin"]}}
    write(folder / "keys.json", json.dumps({"keys": {"ada": entry}}))
    return folder / "keys.json"


def opened(folder: Path) -> CredentialsFile:
    write(folder / "secret", f"{FIRST}\n")
    return CredentialsFile(str(keys(folder, "secret")), SystemClock())


def secret(known: CredentialsFile) -> str:
    found = known.by_access_key("AKID")
    assert found is not None
    return found[1]


def test_a_secret_is_read_from_the_file_beside_the_credentials_that_names_it(tmp_path: Path) -> None:
    assert secret(opened(tmp_path)) == FIRST


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    write(tmp_path / "secret", FIRST, mode)
    with pytest.raises(InvalidConfig, match="can be read by others; chmod 600") as refused:
        CredentialsFile(str(keys(tmp_path, "secret")), SystemClock())
    assert FIRST not in str(refused.value)


@pytest.mark.parametrize("text", [None, "too short", "\udcff" * 20], ids=["none", "short", "no-text"])
def test_a_secret_that_is_not_there_or_none_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "secret").write_bytes(os.fsencode(text))
        (tmp_path / "secret").chmod(0o600)
    with pytest.raises(InvalidConfig, match="aws_secret"):
        CredentialsFile(str(keys(tmp_path, "secret")), SystemClock())


def test_a_secret_that_changes_is_another_one_though_the_credentials_file_stays(tmp_path: Path) -> None:
    known = opened(tmp_path)
    assert known.refresh() == []
    write(tmp_path / "secret", SECOND)
    assert known.refresh() == ["ada"]
    assert secret(known) == SECOND
    assert known.refresh() == []


def test_a_secret_that_can_no_longer_be_used_leaves_the_one_before_until_it_is_mended(tmp_path: Path) -> None:
    known = opened(tmp_path)
    write(tmp_path / "secret", SECOND, 0o644)
    assert known.refresh() == []
    assert secret(known) == FIRST
    assert "chmod 600" in known.trouble[0]
    (tmp_path / "secret").chmod(0o600)
    assert known.refresh() == ["ada"]
    assert (secret(known), known.trouble) == (SECOND, [])


def test_another_file_that_is_named_and_mended_later_is_read_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = opened(tmp_path)
    write(tmp_path / "other", SECOND, 0o644)
    keys(tmp_path, "other")
    assert [known.refresh() for _ in range(3)] == [[], [], []]
    assert len(caplog.records) == 1, "what is wrong is told once, not each second"
    assert secret(known) == FIRST
    (tmp_path / "other").chmod(0o600)
    assert known.refresh() == ["ada"]
    assert secret(known) == SECOND


def test_a_running_server_takes_the_new_secret_and_no_longer_the_old_one(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "penstock-data") as ps:
        ps.create_queue("q")
    write(tmp_path / "secret", FIRST)
    path = keys(tmp_path, "secret")

    with serving(tmp_path, "--credentials", str(path), "--log", "requests.log") as server:

        def answer(with_secret: str) -> str:
            client = boto3.client(
                "sqs",
                endpoint_url=server.url,
                region_name="us-east-1",
                aws_access_key_id="AKID",
                aws_secret_access_key=with_secret,
            )
            try:
                client.list_queues()
            except ClientError as error:
                return str(error.response["Error"]["Code"])
            return "ok"

        assert (answer(FIRST), answer(SECOND)) == ("ok", "SignatureDoesNotMatch")
        write(tmp_path / "secret", SECOND)
        assert wait_until(lambda: answer(SECOND) == "ok", 20)
        assert answer(FIRST) == "SignatureDoesNotMatch"
    written = server.errors + (tmp_path / "requests.log").read_text()
    assert FIRST not in written
    assert SECOND not in written


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"ada": {"aws_access_key": "AKID", "aws_secret_file": "a\0b"}}, "cannot be read"),
        ({"\ud800": {"grants": {}}}, "no text"),
        ({"ada": {"grants": {"\ud800": ["read"]}}}, "no text"),
        ({"ada": {"grants": {"q": ["write"]}}}, "accepted: enqueue, consume, read, admin"),
    ],
)
def test_whatever_the_file_has_becomes_it_does_not_end_the_looking(
    tmp_path: Path, tree: object, said: str
) -> None:
    known = opened(tmp_path)
    write(tmp_path / "keys.json", json.dumps({"keys": tree}))
    assert known.refresh() == []
    assert said in known.trouble[0]
    assert secret(known) == FIRST
    keys(tmp_path, "secret")
    known.refresh()
    assert known.trouble == []


class Sometimes(dict[str, str]):
    """An environment that cannot be read while it is `out`."""

    out = False

    def __getitem__(self, name: str) -> str:
        if self.out:
            raise RuntimeError("out of order")
        return super().__getitem__(name)


def test_what_nobody_foresaw_ends_one_look_and_not_the_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving_of, "LOOK_EVERY_S", 0.01)
    entry = {"aws_access_key": "AKID", "aws_secret": "${SECRET}", "grants": {"*": ["admin"]}}
    path, environ = tmp_path / "keys.json", Sometimes(SECRET="a-secret-of-the-environment")
    write(path, json.dumps({"keys": {"ada": entry}}))
    known = CredentialsFile(str(path), SystemClock(), environ)

    async def story(ps: penstock.Penstock) -> None:
        calls = StoreCalls(ps, Limits())
        watching = asyncio.create_task(_watch(known, None, lambda: None, Audit(ps, calls)))
        async with asyncio.timeout(20):
            environ.out = True
            write(path, json.dumps({"keys": {"ada": entry}}))
            while "RuntimeError" not in caplog.text:
                await asyncio.sleep(0.01)
            environ.out = False
            write(path, json.dumps({"keys": {}}))
            while known.by_access_key("AKID") is not None:
                await asyncio.sleep(0.01)
        watching.cancel()
        calls.close()

    with penstock.open("memory:") as ps:
        asyncio.run(story(ps))
