"""Who may call, over what: passwords that change, TLS that verifies, and no plain text by accident."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from penstock.backends.redis.connecting import Script
from penstock.errors import BackendUnavailable, InvalidConfig, Unauthorized
from penstock.redis_settings import RetrySettings, Secret, is_loopback
from tests.redis.certificates import Authority
from tests.redis.clocks import SkippingClock
from tests.redis.conftest import Connect
from tests.redis.proxy import Proxy
from tests.redis.servers import Binary, RunningServer, binaries, running, wait_until

GET = Script("get", b"return redis.call('GET', KEYS[1])")
OLD, NEW = "old-Passw0rd-7f3a", "new-Passw0rd-c81e"


@pytest.fixture(scope="module", params=binaries(), ids=repr)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server with a password for everyone, and users who may do different things."""
    binary: Binary = request.param
    users = [
        f"worker on >{OLD} ~* &* +@all",
        f"reader on >{OLD} ~* &* +@read +info +hello +ping",
        f"blind on >{OLD} ~* &* +@all -info -hello",
    ]
    with running(tmp_path_factory.mktemp("guarded"), binary, password="s3cret-9d2b", users=users) as server:
        yield server


def test_a_password_is_enough_where_no_user_is_named(guarded: RunningServer, connected: Connect) -> None:
    assert connected(guarded, password=Secret("s3cret-9d2b")).command("PING") == b"PONG"


def test_a_user_calls_with_a_password_of_its_own(guarded: RunningServer, connected: Connect) -> None:
    server = connected(guarded, username="worker", password=Secret(OLD))
    assert server.command("ACL", "WHOAMI") == b"worker"


@pytest.mark.parametrize("password", [None, Secret("wrong-Passw0rd-55")])
def test_a_wrong_password_is_unauthorized_at_once_and_is_not_shown(
    guarded: RunningServer, connected: Connect, password: Secret | None, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SkippingClock()
    with caplog.at_level(logging.DEBUG), pytest.raises(Unauthorized) as caught:
        connected(guarded, password=password, clock=clock)
    assert clock.waits_s == []
    assert not caught.value.retryable
    shown = f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {caplog.text}"
    assert "wrong-Passw0rd-55" not in shown


def test_what_a_user_may_not_do_is_unauthorized(guarded: RunningServer, connected: Connect) -> None:
    server = connected(guarded, username="reader", password=Secret(OLD))
    assert server.command("GET", "a") is None
    with pytest.raises(Unauthorized, match="NOPERM"):
        server.command("SET", "a", "b")
    with pytest.raises(Unauthorized, match="NOPERM"):
        server.run(GET, [b"a"], [])


def test_where_info_is_forbidden_the_server_says_hello(guarded: RunningServer, connected: Connect) -> None:
    profile = connected(guarded, username="blind", password=Secret(OLD)).profile
    assert (profile.flavour, profile.version) == (guarded.binary.flavour, guarded.binary.version)


def end_connections(server: RunningServer, user: str) -> None:
    server.do("CLIENT", "KILL", "USER", user)


@pytest.fixture
def rotating(guarded: RunningServer) -> Iterator[RunningServer]:
    """A server whose user `worker` gets another password; afterwards it has its old one again."""
    yield guarded
    guarded.do("ACL", "SETUSER", "worker", "resetpass", f">{OLD}")


def test_a_password_file_that_changes_is_read_again_without_a_restart(
    rotating: RunningServer, connected: Connect, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(OLD + "\n")
    server = connected(rotating, username="worker", password=Secret(file=str(file)))
    rotating.do("ACL", "SETUSER", "worker", "resetpass", f">{NEW}")
    assert server.command("PING") == b"PONG"  # What is open stays open.
    file.write_text(NEW)
    end_connections(rotating, "worker")
    assert server.command("ACL", "WHOAMI") == b"worker"


def test_a_password_from_the_environment_is_read_again_without_a_restart(
    rotating: RunningServer, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKER_PASSWORD", OLD)
    secret = Secret(OLD, template="${WORKER_PASSWORD}")
    server = connected(rotating, username="worker", password=secret)
    rotating.do("ACL", "SETUSER", "worker", "resetpass", f">{NEW}")
    monkeypatch.setenv("WORKER_PASSWORD", NEW)
    end_connections(rotating, "worker")
    assert server.command("PING") == b"PONG"


def test_until_the_new_password_is_there_calls_are_unauthorized_and_then_they_go_on(
    rotating: RunningServer, connected: Connect, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(OLD)
    server = connected(rotating, username="worker", password=Secret(file=str(file)))
    rotating.do("ACL", "SETUSER", "worker", "resetpass", f">{NEW}")
    end_connections(rotating, "worker")
    with pytest.raises(Unauthorized, match="WRONGPASS"):
        server.command("PING")
    file.unlink()
    with pytest.raises(InvalidConfig, match=r"password_file .* cannot be read"):
        server.command("PING")
    file.write_text(NEW)
    assert server.command("ACL", "WHOAMI") == b"worker"


def test_a_new_password_that_comes_a_moment_late_is_waited_for(
    rotating: RunningServer, connected: Connect, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(OLD)
    clock = SkippingClock(lambda number: number == 2 and file.write_text(NEW))
    server = connected(rotating, username="worker", password=Secret(file=str(file)), clock=clock)
    rotating.do("ACL", "SETUSER", "worker", "resetpass", f">{NEW}")
    end_connections(rotating, "worker")
    assert server.command("ACL", "WHOAMI") == b"worker"
    assert len(clock.waits_s) == 2


def test_who_listens_goes_on_after_a_change_of_password(
    rotating: RunningServer, connected: Connect, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(OLD)
    secret = Secret(file=str(file))
    retry = RetrySettings(first_delay_s=0.01, max_delay_s=0.05)
    server = connected(rotating, username="worker", password=secret, retry=retry)
    told: list[None] = []
    server.listen(b"c", lambda: told.append(None))
    assert wait_until(lambda: len(told) == 1)
    rotating.do("ACL", "SETUSER", "worker", "resetpass", f">{NEW}")
    end_connections(rotating, "worker")
    file.write_text(NEW)
    assert wait_until(lambda: len(told) >= 2)


@pytest.mark.parametrize("content", ["", "\n", "two\nlines", "x" * 70_000])
def test_a_password_file_holds_one_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "password"
    file.write_text(content)
    with pytest.raises(InvalidConfig, match="must hold the password, on one line") as caught:
        Secret(file=str(file)).read()
    assert "xxx" not in str(caught.value)
    assert "lines" not in str(caught.value)


def test_a_secret_has_no_text_form() -> None:
    secret = Secret("hush-88", template="${X}hush-88")
    assert "hush" not in f"{secret} {secret!r} {[secret]}"


# -- TLS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextmanager
def tls_before(
    server: RunningServer, authority: Authority, *addresses: str, clients: bool = False
) -> Iterator[Proxy]:
    """The servers of the tests have no TLS of their own."""
    with Proxy(server.port, authority.server_context(*addresses, clients=clients)) as proxy:
        yield proxy


def test_a_server_whose_certificate_the_authority_signed_is_trusted(
    shared_server: RunningServer, authority: Authority, connected: Connect
) -> None:
    with tls_before(shared_server, authority, "127.0.0.1") as proxy:
        server = connected(proxy, tls=True, ca_file=str(authority.path))
        for _ in range(5):
            assert server.command("PING") == b"PONG"
        assert proxy.accepted == 1
        told: list[None] = []
        server.listen(b"c", lambda: told.append(None))
        assert wait_until(lambda: len(told) == 1)
        shared_server.do("PUBLISH", "c", "x")
        assert wait_until(lambda: len(told) == 2)
        assert server.health().warnings == []


def test_a_certificate_of_somebody_else_is_refused_without_trying_again(
    shared_server: RunningServer, authority: Authority, connected: Connect, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    clock = SkippingClock()
    with (
        tls_before(shared_server, authority, "127.0.0.1") as proxy,
        pytest.raises(BackendUnavailable, match="certificate cannot be trusted"),
    ):
        connected(proxy, tls=True, ca_file=str(stranger.path), clock=clock)
    assert clock.waits_s == []


def test_without_an_authority_those_of_the_machine_count(
    shared_server: RunningServer, authority: Authority, connected: Connect
) -> None:
    with (
        tls_before(shared_server, authority, "127.0.0.1") as proxy,
        pytest.raises(BackendUnavailable, match="certificate cannot be trusted"),
    ):
        connected(proxy, tls=True)


def test_with_an_authority_those_of_the_machine_do_not_count(
    shared_server: RunningServer,
    authority: Authority,
    connected: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    with tls_before(shared_server, authority, "127.0.0.1") as proxy:
        assert connected(proxy, tls=True).command("PING") == b"PONG"
        with pytest.raises(BackendUnavailable, match="certificate cannot be trusted"):
            connected(proxy, tls=True, ca_file=str(Authority(tmp_path, "own").path))


def test_a_key_that_wants_a_password_is_refused_and_nobody_is_asked_for_it(
    shared_server: RunningServer, authority: Authority, connected: Connect, tmp_path: Path
) -> None:
    crt, pem = authority.issue("client")
    key = serialization.load_pem_private_key(pem.read_bytes(), None)
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hunter2"),
        )
    )
    with pytest.raises(InvalidConfig, match=r"client\.crt' cannot be used: its key is encrypted"):
        connected(shared_server, tls=True, cert_file=str(crt), key_file=str(pem))


def test_a_certificate_for_another_host_is_refused(
    shared_server: RunningServer, authority: Authority, connected: Connect
) -> None:
    with (
        tls_before(shared_server, authority, "redis.example") as proxy,
        pytest.raises(BackendUnavailable, match="certificate cannot be trusted"),
    ):
        connected(proxy, tls=True, ca_file=str(authority.path))


def test_skipping_the_verification_has_to_be_asked_for_and_health_warns(
    shared_server: RunningServer, authority: Authority, connected: Connect
) -> None:
    with tls_before(shared_server, authority, "redis.example") as proxy:
        server = connected(proxy, tls=True, skip_verify=True)
        assert server.command("PING") == b"PONG"
        assert any("skip_verify" in warning for warning in server.health().warnings)


def test_a_server_that_wants_a_certificate_gets_it(
    shared_server: RunningServer, authority: Authority, connected: Connect, tmp_path: Path
) -> None:
    crt, key = authority.issue("client")
    both = tmp_path / "both.pem"
    both.write_bytes(crt.read_bytes() + key.read_bytes())
    with tls_before(shared_server, authority, "127.0.0.1", clients=True) as proxy:
        ca = str(authority.path)
        with pytest.raises(BackendUnavailable):
            connected(proxy, tls=True, ca_file=ca, clock=SkippingClock())
        server = connected(proxy, tls=True, ca_file=ca, cert_file=str(crt), key_file=str(key))
        assert server.command("PING") == b"PONG"
        assert connected(proxy, tls=True, ca_file=ca, cert_file=str(both)).command("PING") == b"PONG"


@pytest.mark.parametrize("field", ["ca_file", "cert_file"])
def test_a_file_of_tls_that_is_not_there_is_named(
    shared_server: RunningServer, connected: Connect, tmp_path: Path, field: str
) -> None:
    with pytest.raises(InvalidConfig, match=rf"{field} .*missing\.pem.* cannot be used"):
        connected(shared_server, tls=True, **{field: str(tmp_path / "missing.pem")})


def test_tls_to_a_server_without_it_is_unavailable(shared_server: RunningServer, connected: Connect) -> None:
    with pytest.raises(BackendUnavailable):
        connected(shared_server, tls=True, clock=SkippingClock(), write_timeout_s=0.1)


# -- plain text


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("LocalHost.", True),
        ("a.localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("127.0.0.1.example", False),
        ("redis", False),
        ("", False),
    ],
)
def test_loopback_is_what_is_this_machine_by_its_name(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_plain_text_to_another_machine_is_refused_unless_it_is_allowed(
    shared_server: RunningServer, connected: Connect
) -> None:
    elsewhere = (("0.0.0.0", shared_server.port),)  # Leads here, but does not say so.
    with pytest.raises(InvalidConfig, match=r"unencrypted to 0\.0\.0\.0.*rediss\+lists.*allow_plaintext"):
        connected(shared_server, nodes=elsewhere)
    server = connected(shared_server, nodes=elsewhere, allow_plaintext=True)
    assert server.command("PING") == b"PONG"
    assert any("unencrypted" in warning for warning in server.health().warnings)
