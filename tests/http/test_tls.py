"""Stores behind a server with TLS, which wants to see certificates of its clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives import serialization

import penstock
from penstock import BackendUnavailable, InvalidConfig
from penstock.backends.registry import open_reader
from penstock.errors import Unauthorized
from tests.http.bulk import read
from tests.redis.certificates import Authority
from tests.server.processes import Served, serving


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Iterator[Served]:
    crt, key = authority.issue("server", "127.0.0.1")
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": {"ann": {"certificate": "ann", "grants": {"*": ["admin"]}}}}))
    keys.chmod(0o600)
    tls = ["--tls-certificate", str(crt), "--tls-key", str(key), "--tls-client-ca", str(authority.path)]
    with serving(tmp_path, "--store", str(tmp_path / "store"), "--credentials", str(keys), *tls) as served:
        yield served


def url(server: Served, **files: Path) -> str:
    return f"{server.url}?{urlencode(files)}"


def test_a_certificate_is_shown_and_its_name_is_who_comes(server: Served, authority: Authority) -> None:
    ca, (crt, key) = authority.path, authority.issue("ann")
    with penstock.open(url(server, ca_file=ca, cert_file=crt, key_file=key)) as ps:
        q = ps.create_queue("q")
        q.enqueue(b"x")
        assert [row["payload"] for row in read(ps.take_snapshot(), table="messages")] == [b"x"]
        assert q.lease(1)[0].payload == b"x"
    both = ca.with_name("both.pem")
    both.write_bytes(crt.read_bytes() + key.read_bytes())
    with penstock.open(url(server, ca_file=ca, cert_file=both)) as ps:
        assert ps.queue("q").length() == 1
    assert '"principal":"ann"' in server.errors


def test_who_shows_none_or_a_stranger_s_does_not_come_in(
    server: Served, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    stranger = Authority(tmp_path / "elsewhere").issue("ann")
    bob = authority.issue("bob")
    for files in ({}, {"cert_file": stranger[0], "key_file": stranger[1]}):
        with pytest.raises(BackendUnavailable):
            penstock.open(url(server, ca_file=authority.path, **files))
    with pytest.raises(Unauthorized):
        penstock.open(url(server, ca_file=authority.path, cert_file=bob[0], key_file=bob[1]))
    with pytest.raises(BackendUnavailable, match="verify failed"):
        penstock.open(server.url)


def test_files_are_found_from_other_folders(
    server: Served, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crt, key = authority.issue("ann")
    monkeypatch.chdir(tmp_path)
    files = {"ca_file": Path(authority.path.name), "cert_file": Path(crt.name), "key_file": Path(key.name)}
    with penstock.open(url(server, **files)) as ps:
        snapshot = ps.take_snapshot()
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        with open_reader(snapshot) as reader:
            reader.renew()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(authority: Authority) -> None:
    crt, key = authority.issue("ann")
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"s3cret"),
        )
    )
    with pytest.raises(InvalidConfig, match="the key is encrypted"):
        penstock.open(f"https://127.0.0.1:1?cert_file={crt}&key_file={key}")
