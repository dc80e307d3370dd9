"""Keys that are taken back, and certificates: also from who waits, reads on, or has been let in before."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

import penstock
from penstock import Penstock
from penstock.backends.bulk import BulkRequest
from penstock.backends.registry import open_reader
from penstock.clock import NS_PER_S, ManualClock, SystemClock
from penstock.errors import Unauthorized
from penstock.server.credentials import CredentialsFile, hash_of
from tests.http.running import Running
from tests.redis.certificates import Authority
from tests.redis.servers import wait_until
from tests.server.processes import serving
from tests.server.running import message

TOKEN, NEW_TOKEN = "psk_" + "a1" * 32, "psk_" + "b2" * 32
SECRET = "a-secret-of-enough-letters"
ADA = {
    "token_sha256": hash_of(TOKEN),
    "aws_access_key": "AKIDADA",
    "aws_secret": SECRET,
    "grants": {"*": ["consume", "read"]},
}
OTHER = {"token_sha256": hash_of("other"), "grants": {}}


class Keys:
    """A file of keys, taken as soon as it is written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "keys.json"
        self._write(ada=ADA)
        self.known = CredentialsFile(str(self._path), SystemClock())

    def put(self, **entries: dict[str, Any]) -> None:
        self._write(**entries)
        self.known.refresh()
        assert self.known.trouble == []

    def _write(self, **entries: dict[str, Any]) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"keys": entries}))
        new.chmod(0o600)
        new.rename(self._path)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def server(ps: Penstock, keys: Keys) -> Iterator[Running]:
    running = Running(ps, credentials=keys.known)
    yield running
    running.stop()


def by_native(server: Running) -> list[Any]:
    with penstock.open(f"http://{TOKEN}@127.0.0.1:{server.port}") as ps:
        return ps.queue("q").lease(1, wait_s=60)


def by_rest(server: Running) -> list[Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        asked, key = json.dumps({"wait_s": 60}), {"authorization": f"Bearer {TOKEN}"}
        connection.request("POST", "/v1/queues/q/lease", asked, key)
        found: list[Any] = json.loads(connection.getresponse().read())["deliveries"]
        return found
    finally:
        connection.close()


def by_sqs(server: Running) -> list[Any]:
    config = Config(retries={"total_max_attempts": 1}, read_timeout=60)
    sqs = boto3.client(
        "sqs",
        "us-east-1",
        endpoint_url=server.url,
        aws_access_key_id="AKIDADA",
        aws_secret_access_key=SECRET,
        config=config,
    )
    try:
        found = sqs.receive_message(QueueUrl=f"{server.url}/000000000000/q", WaitTimeSeconds=20)
        messages: list[Any] = found.get("Messages", [])
        return messages
    finally:
        sqs.close()


#: How each kind of change leaves who waits: with the message, or without.
CHANGES: dict[str, tuple[dict[str, dict[str, Any]], int]] = {
    "revoked": ({"other": OTHER}, 0),
    "another key": ({"ada": {**ADA, "token_sha256": hash_of(NEW_TOKEN), "aws_secret": SECRET[::-1]}}, 0),
    "other grants": ({"ada": {**ADA, "grants": {"elsewhere": ["consume"]}}}, 0),
    "expired": ({"ada": {**ADA, "expires_at": "2020-01-01T00:00:00Z"}}, 0),
    "somebody else": ({"ada": ADA, "other": OTHER}, 1),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("poll", [by_native, by_rest, by_sqs])
def test_who_waits_gets_nothing_that_comes_after_the_key_was_taken_back(
    ps: Penstock, server: Running, keys: Keys, poll: Callable[[Running], list[Any]], change: str
) -> None:
    found: list[list[Any]] = []
    waiting = threading.Thread(target=lambda: found.append(poll(server)))
    waiting.start()
    assert wait_until(lambda: server.calls.polls.waiting == 1, 20)
    entries, gets = CHANGES[change]
    keys.put(**entries)
    ps.queue("q").enqueue(b"not for everybody")
    waiting.join(60)
    assert [len(one) for one in found] == [gets]
    # Nor is it leased for nobody.
    assert ps.queue("q").stats().ready == 1 - gets


def test_a_bulk_read_ends_when_its_key_is_taken_back(tmp_path: Path, keys: Keys) -> None:
    with penstock.open(f"rocksdb:{tmp_path / 'store'}?durability=os") as store:
        messages = [penstock.NewMessage(os.urandom(100_000)) for _ in range(500)]
        store.create_queue("q").enqueue_many(messages)
        server = Running(store, credentials=keys.known)
        try:
            with (
                penstock.open(f"http://{TOKEN}@127.0.0.1:{server.port}") as client,
                open_reader(client.take_snapshot()) as reader,
            ):
                plan = reader.plan(BulkRequest(table="messages"))
                batches = (batch for one in plan.partitions for batch in reader.read(one))
                assert next(batches).num_rows > 0
                keys.put(other=OTHER)
                with pytest.raises(Unauthorized):
                    list(batches)
        finally:
            server.stop()


def test_what_has_not_changed_stays_good_however_often_the_file_is_read(keys: Keys) -> None:
    ada = keys.known.by_token(TOKEN)
    assert ada is not None
    for names in ("abc", "ab", ""):
        keys.put(ada=ADA, **{name: {**OTHER, "token_sha256": hash_of(name)} for name in names})
        assert keys.known.is_good(ada)
    keys.put()
    assert not keys.known.is_good(ada)
    keys.put(ada=ADA)
    assert not keys.known.is_good(ada)
    assert keys.known.by_token(TOKEN) == ada


def test_whose_time_is_over_is_no_longer_good(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.json", ManualClock(0)
    path.write_text(json.dumps({"keys": {"ada": {**ADA, "expires_at": "1970-01-01T00:00:10Z"}}}))
    path.chmod(0o600)
    known = CredentialsFile(str(path), clock)
    ada = known.by_token(TOKEN)
    assert ada is not None
    clock.advance(9.0)
    assert known.is_good(ada)
    clock.advance(1.0)
    assert not known.is_good(ada)
    assert clock.now_ns() == 10 * NS_PER_S


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_clients_of_an_authority_that_is_put_out_are_out(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """Also those whose session is taken up again, and those whose connection is open."""
    authority = Authority(tmp_path)
    crt, key = authority.issue("server", "127.0.0.1")
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes(authority.path.read_bytes())
    tls = ["--tls-certificate", str(crt), "--tls-key", str(key), "--tls-client-ca", str(trusted)]
    context = ssl.create_default_context(cafile=str(authority.path))
    context.load_cert_chain(*authority.issue("someone"))
    context.maximum_version = version

    def connected(session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", served.port), 20)
        return context.wrap_socket(plain, server_hostname="127.0.0.1", session=session)

    def asked(secure: ssl.SSLSocket) -> bytes:
        secure.sendall(message("GET", "/healthz", close=False))
        return secure.recv(1000)[:12]

    def is_let_in(session: ssl.SSLSession | None) -> bool:
        try:
            with connected(session) as secure:
                return asked(secure) == b"HTTP/1.1 200"
        except OSError:
            return False

    with serving(tmp_path, "--store", "memory:", "--log", "off", *tls) as served, connected() as first:
        assert asked(first) == b"HTTP/1.1 200"
        session = first.session
        assert is_let_in(session)
        new = tmp_path / "new.crt"
        new.write_bytes(Authority(tmp_path, "another").path.read_bytes())
        new.rename(trusted)
        assert wait_until(lambda: "was read again" in served.errors, 20)
        assert first.recv(1000) == b""
        assert not is_let_in(None)
        assert not is_let_in(session)
        assert "Traceback" not in served.errors
