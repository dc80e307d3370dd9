"""`penstock serve` from its start to its end, and what it refuses before its port opens."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.server.credentials import hash_of
from tests.cli.calling import Cli, command
from tests.redis.certificates import Authority
from tests.redis.servers import wait_until
from tests.server.processes import Served, serving

TOKEN = "psk_" + "a1" * 32
OTHER = "psk_" + "b2" * 32


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_STORAGE_DURABILITY", "os")
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    with penstock.open(tmp_path / "penstock-data") as ps:
        ps.create_queue("q")
    return Cli(tmp_path)


def keys_file(path: Path, **tokens: str) -> Path:
    """Principals by name with the right to everything."""
    new = path.with_suffix(".new")
    new.write_text(
        json.dumps(
            {
                "keys": {
                    name: {"token_sha256": hash_of(token), "grants": {"*": ["admin"]}, "certificate": name}
                    for name, token in tokens.items()
                }
            }
        )
    )
    new.chmod(0o600)
    new.rename(path)
    return path


def until(holds: Callable[[], bool]) -> None:
    assert wait_until(holds, 20)


def metrics(server: Served, token: str, tls: ssl.SSLContext | None = None) -> int:
    return server.get("/metrics", tls, {"authorization": f"Bearer {token}"})[0]


def test_it_serves_until_it_is_told_to_end(cli: Cli) -> None:
    with serving(cli.folder, "--log", "requests.log") as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert server.get("/healthz") == (200, {"status": "alive"})
        status, ready = server.get("/readyz")
        assert (status, ready["status"], ready["server"]) == (200, "healthy", [])
        status, text = server.get("/metrics")
        assert status == 200
        assert 'penstock_server_requests_total{interface="server"' in text
        assert "penstock_queue_messages" in text or 'queue="q"' in text
        assert server.get("/nothing?secret=words")[0] == 404
        # The store is in use by others meanwhile.
        cli.process("enqueue", "q", "x")
        # Another server on the same port is told that it is taken.
        taken = cli.process("serve", "--port", str(server.port), code=None)
        assert taken.code != 0
        assert f"port {server.port} of 127.0.0.1 is taken" in taken.err
        assert server.stop() == 0
        assert "Traceback" not in server.errors
        assert "stopping" in server.errors
    log = (cli.folder / "requests.log").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["status"] for line in lines] == [200, 200, 200, 404]
    assert [line["operation"] for line in lines] == ["healthz", "readyz", "metrics", ""]
    assert len({line["id"] for line in lines}) == 4
    assert "secret" not in log
    assert oct((cli.folder / "requests.log").stat().st_mode)[-3:] == "600"
    assert cli.process("stats", "q", "--json").object["ready"] == 1


def test_ctrl_c_ends_it_and_a_request_that_is_half_sent_does_not_hold_it_up(cli: Cli) -> None:
    with serving(cli.folder) as server, socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(b"GET /healthz HTTP/1.1\r\n")
        server.get("/healthz")
        began_s = time.monotonic()
        assert server.stop(signal.SIGINT) == 0
        assert time.monotonic() - began_s < 10
        assert half.recv(100) == b""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "server.credentials is not set; make a file of keys"),
        (["--host", "0.0.0.0", "--credentials", "keys"], "server.tls is not set"),
        (["--credentials", "missing"], "cannot be read"),
        (["--tls-certificate", "a.crt"], "a certificate and its key go together"),
        (["--tls-certificate", "a.crt", "--tls-key", "a.key"], "cannot be used"),
        (["--tls-client-ca", "ca.crt"], "needs tls.certificate"),
        (["--host", "198.51.100.7", "--credentials", "keys", "--allow-plaintext"], "cannot listen"),
        (["--log", "no/such/folder/log"], "cannot be written: No such file or directory; name another"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_reason(cli: Cli, arguments: list[str], said: str) -> None:
    keys_file(cli.folder / "keys", me=TOKEN)
    answer = cli("serve", "--port", "0", *arguments, code=None)
    assert answer.code != 0
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert not answer.out


def test_a_store_that_is_not_there_is_made_unless_the_server_is_refused(cli: Cli) -> None:
    assert cli("serve", "--store", "fresh", "--host", "0.0.0.0", code=None).code != 0
    assert not (cli.folder / "fresh").exists()
    with serving(cli.folder, "--store", "fresh") as server:
        assert server.get("/readyz")[0] == 200
        assert server.stop() == 0
        assert "fresh is new: a store is made there" in server.errors
    assert cli.process("queues", "--store", "fresh").code == 0


def test_a_broken_store_is_refused(cli: Cli) -> None:
    for table in cli.store.rglob("MANIFEST-*"):
        table.write_bytes(b"not a manifest")
    answer = cli.process("serve", "--port", "0", code=None)
    assert answer.code != 0
    assert "serving" not in answer.out
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("document", "key", "said"),
    [
        ("storage: {path: sealed, encryption: {enabled: true, key_id: main}}", "b2", "key"),
        ("storage: {path: sealed, encryption: {enabled: true, key_id: main}}", "", "PENSTOCK_KEY_MAIN"),
        ("storage: {path: sealed", "a1", "not one valid YAML document"),
        ("storage: {path: sealed}\nserver: {limits: {max_polls: -1}}", "a1", "max_polls is out of range"),
        ("storage: {path: sealed}\nserver: {limits: {max_pols: 1}}", "a1", "max_pols is not known"),
        ("backends: {far: {url: 'redis+lists://127.0.0.1:1'}}\nstorage: {path: plain}", "a1", "127.0.0.1:1"),
    ],
)
def test_a_store_that_cannot_be_opened_is_told_and_no_port_opens(
    cli: Cli, document: str, key: str, said: str
) -> None:
    (cli.folder / "sealed.yaml").write_text(
        "storage: {path: sealed, encryption: {enabled: true, key_id: main}}"
    )
    cli.process("init", "--store", "sealed.yaml", env={"PENSTOCK_KEY_MAIN": "a1" * 32})
    (cli.folder / "asked.yaml").write_text(document)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = cli.process(
        *("serve", "--store", "asked.yaml", "--port", str(port)),
        code=None,
        env={"PENSTOCK_KEY_MAIN": key * 32},
    )
    assert told.code in (2, 3, 4)
    assert said in told.err
    assert "Traceback" not in told.err
    assert not told.out
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1).close()


def test_what_is_served_already_is_not_served_again_but_beside_others(cli: Cli) -> None:
    with serving(cli.folder, "--log", "off") as server:
        assert "behind a server already" in cli.process("serve", "--store", server.url, code=2).err
        config = {"storage": {"path": "own", "durability": "os"}, "backends": {"there": {"url": server.url}}}
        (cli.folder / "two.yaml").write_text(json.dumps(config))
        with penstock.open(cli.folder / "two.yaml") as ps:
            ps.create_queue("here")
        (cli.folder / "two").mkdir()
        with serving(cli.folder / "two", "--store", "../two.yaml", "--log", "off") as second:
            with penstock.open(second.url) as ps:
                assert {one.name for one in ps.queues()} == {"here", "q"}
                ps.queue("q").enqueue(b"x")
                assert ps.queue("q").lease(1, wait_s=10)[0].payload == b"x"
            assert second.stop() == 0


def test_settings_come_from_the_file_then_the_environment_then_the_command_line(cli: Cli) -> None:
    (cli.folder / "penstock.yaml").write_text(
        "storage: {path: penstock-data}\nserver: {host: 0.0.0.0, port: 1, limits: {max_body_bytes: 2KiB}}\n"
    )
    with serving(cli.folder, PENSTOCK_SERVER_HOST="127.0.0.1") as server:
        assert server.url.startswith("http://127.0.0.1:")
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2049\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_keys_change_while_it_runs_and_a_broken_file_leaves_those_before(cli: Cli) -> None:
    path = keys_file(cli.folder / "keys", me=TOKEN)
    with serving(cli.folder, "--credentials", "keys") as server:
        assert server.get("/healthz")[0] == 200
        assert server.get("/readyz") == (200, {"status": "healthy"})  # No more than that for strangers.
        assert server.get("/metrics")[0] == 401
        assert (metrics(server, TOKEN), metrics(server, OTHER)) == (200, 401)
        keys_file(path, me=OTHER)
        until(lambda: metrics(server, OTHER) == 200)
        assert metrics(server, TOKEN) == 401
        path.write_text("keys: [")
        until(lambda: "still in use" in server.errors)
        assert metrics(server, OTHER) == 200
        _, ready = server.get("/readyz", headers={"authorization": f"Bearer {OTHER}"})
        assert "still in use" in ready["server"][0]
        assert server.stop() == 0
        assert TOKEN not in server.errors
        assert OTHER not in server.errors
    scanned = cli.process("journal", "scan", "_audit", "--json").objects
    assert [(one["kind"], one["labels"]) for one in scanned] == [
        ("credentials_changed", ["principal:", "queue:me"])
    ]


@pytest.mark.parametrize(("has_keys", "said"), [(False, " --no-sign-request "), (True, "keys create --aws")])
def test_what_to_try_first_is_what_the_server_lets_in(cli: Cli, has_keys: bool, said: str) -> None:
    more = ["--credentials", str(keys_file(cli.folder / "keys", me=TOKEN))] if has_keys else []
    serve = command("serve", "--port", "0", "--log", "off", *more)
    with subprocess.Popen(serve, cwd=cli.folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(4 + has_keys)]
        finally:
            process.terminate()
    assert lines[0].startswith("serving http://127.0.0.1:")
    assert said in lines[-1]
    assert ("--no-sign-request" in "".join(lines)) is not has_keys


def test_tls_with_certificates_of_clients_and_one_that_is_renewed(cli: Cli) -> None:
    authority = Authority(cli.folder)
    crt, key = authority.issue("server", "127.0.0.1")
    keys_file(cli.folder / "keys", someone=TOKEN)
    tls = ["--tls-certificate", str(crt), "--tls-key", str(key), "--tls-client-ca", str(authority.path)]

    def client(name: str | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(authority.path))
        if name is not None:
            context.load_cert_chain(*authority.issue(name))
        return context

    with serving(cli.folder, "--host", "0.0.0.0", "--credentials", "keys", "--log", "off", *tls) as server:
        assert server.url.startswith("https://")
        someone = client("someone")
        assert server.get("/metrics", someone)[0] == 200
        assert server.get("/metrics", client("stranger"))[0] == 401
        assert metrics(server, TOKEN, client("stranger")) == 200
        assert metrics(server, OTHER, someone) == 401
        with pytest.raises((ssl.SSLError, ConnectionError)):
            server.get("/healthz", client(None))
        with pytest.raises(Exception):  # noqa: B017  (whatever becomes of plain text)
            server.get("/healthz")

        def serial() -> object:
            with (
                socket.create_connection(("127.0.0.1", server.port)) as plain,
                someone.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
            ):
                return (secure.getpeercert() or {})["serialNumber"]

        before = serial()
        crt.write_text("broken")
        until(lambda: "the one before is still in use" in server.errors)
        assert serial() == before
        authority.issue("server", "127.0.0.1")
        until(lambda: serial() != before)
        assert server.stop() == 0
        assert "Traceback" not in server.errors
