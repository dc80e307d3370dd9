"""`penstock backends`: what is installed, what is configured, what answers, and what each can do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.backends import discovery, registry
from penstock.backends.discovery import configured_backends, known_backends
from penstock.cli.main import app
from penstock.config import load
from penstock.errors import BackendNotInstalled
from tests.redis.servers import RunningServer


def listed(file: Path) -> tuple[int, list[dict[str, Any]]]:
    result = CliRunner().invoke(
        app, ["backends", "--store", str(file), "--json"], catch_exceptions=False, prog_name="penstock"
    )
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def file(tmp_path: Path, shared_server: RunningServer) -> Path:
    path = tmp_path / "penstock.yaml"
    path.write_text(
        "storage: {engine: memory}\n"
        "backends:\n"
        f"  fast: {{url: 'redis+lists://localhost:{shared_server.port}/3', password: '${{PW}}'}}\n"
        "  gone: {url: 'redis+lists://ann:hunter2@localhost:1'}\n"
        "  far: {url: 'keydb+lists://far.example'}\n"
        f"  wrong: {{url: 'valkey+lists://localhost:{shared_server.port}'}}\n"
        "  disk: {url: 'rocksdb:./disk'}\n"
    )
    return path


def test_every_backend_of_a_configuration_is_asked(
    file: Path, shared_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PW", "hunter2")
    code, rows = listed(file)
    found = {row["name"]: row for row in rows if row["is"] == "configured"}
    assert code == 3
    assert {name: row["answers"] for name, row in found.items()} == {
        "default": True,
        "fast": False,  # The server has no password, and says so.
        "gone": False,
        "far": False,
        "wrong": False,
        "disk": None,
    }
    assert "without any password configured" in found["fast"]["problem"]
    assert "does not answer" in found["gone"]["problem"]
    assert "unencrypted" in found["far"]["problem"]
    assert "says valkey, but redis" in found["wrong"]["problem"]
    assert "hunter2" not in json.dumps(rows)
    assert not (file.parent / "disk").exists()


def test_one_that_answers_says_which_server_it_is_and_how_long_it_took(
    tmp_path: Path, shared_server: RunningServer
) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(
        f"storage: {{engine: memory}}\nbackends: {{fast: {{url: 'redis+lists://localhost:{shared_server.port}'}}}}"
    )
    code, rows = listed(path)
    (fast,) = [row for row in rows if row.get("name") == "fast"]
    assert code == 0
    assert fast["server"] == f"redis {shared_server.binary.version}"
    assert 0 < fast["latency_s"] < 5
    memory = next(row for row in rows if row.get("name") == "default")
    assert "journal" in memory["can"]
    assert "persistence" in memory["cannot"]


def test_a_server_that_keeps_no_log_is_not_said_to_keep_anything(
    tmp_path: Path, shared_server: RunningServer
) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_text(
        f"storage: {{engine: memory}}\nbackends: {{fast: {{url: 'redis+lists://localhost:{shared_server.port}'}}}}"
    )
    for log, has in (("no", "cannot"), ("yes", "can")):
        shared_server.do("CONFIG", "SET", "appendonly", log)
        try:
            (fast,) = [row for row in listed(path)[1] if row.get("name") == "fast"]
        finally:
            shared_server.do("CONFIG", "SET", "appendonly", "no")
        assert "persistence" in fast[has]
        assert ("keeps no log" in str(fast["warnings"])) == (log == "no")
    by_scheme = {one.scheme: one.capabilities for one in known_backends()}
    for scheme, kept in (("dragonfly+lists", False), ("keydb+lists", True), ("rocksdb", True)):
        can = by_scheme[scheme]
        assert can is not None
        assert can.persistence is kept


def test_all_that_there_is_is_listed_once() -> None:
    found = {one.scheme: one for one in known_backends()}
    servers = {one.tls_scheme: one for one in found.values() if one.tls_scheme}
    assert {*found, *servers} == set(registry.known())
    assert len(found) == 11
    assert found["rocksdb"].capabilities is not None


def test_what_lacks_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "DRIVERS", {"redis": "a_driver_that_nobody_has"})
    monkeypatch.setattr(discovery, "is_part_of_this_version", lambda kind: True)
    (lists,) = [one for one in known_backends() if one.scheme == "redis+lists"]
    assert (lists.installed, lists.hint) == (
        False,
        "a_driver_that_nobody_has is not installed; pip install 'penstock[redis]'",
    )
    with pytest.raises(BackendNotInstalled):
        registry.factory("redis+lists")
    path = tmp_path / "penstock.yaml"
    path.write_text("storage: {engine: memory}\nbackends: {b: {url: 'redis+lists://localhost'}}")
    (b,) = [one for one in configured_backends(load(path)) if one.name == "b"]
    assert not b.answers
    assert "pip install" in b.problem


def test_people_get_tables(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "hunter2")
    result = CliRunner().invoke(app, ["backends", "--store", str(file)], prog_name="penstock")
    assert "BACKEND" in result.stdout
    assert "no store yet" in result.stdout
    assert "hunter2" not in result.stdout
