"""Passwords that change while workers are at it: who has the old one goes on with the new one by itself."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

import penstock
from penstock import Delivery, InvalidConfig, Worker
from tests.redis.one_server import started
from tests.redis.servers import wait_until

OLD, NEW = "old-Passw0rd-5b1c", "new-Passw0rd-e0d4"


def test_a_worker_waits_for_the_new_password_however_late_it_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = started(tmp_path / "server", requirepass=OLD)
    password, file = tmp_path / "password", tmp_path / "penstock.yaml"
    password.write_text(OLD)
    file.write_text(
        f"storage: {{engine: memory}}\nqueues: {{q: {{backend: there}}}}\nbackends:\n  there:\n"
        f"    url: {server.url()}\n    password_file: {password}\n"
        "    retry: {attempts: 2, first_delay: 10ms}\n"
    )
    handled: list[bytes] = []

    def handle(delivery: Delivery) -> None:
        handled.append(delivery.payload)

    try:
        with caplog.at_level(logging.WARNING, "penstock"), penstock.open(file) as ps, Worker(ps, "q", handle):
            ps.queue("q").enqueue(b"before")
            assert wait_until(lambda: b"before" in handled)
            server.do("CONFIG", "SET", "requirepass", NEW)
            server.password = NEW
            server.do("CLIENT", "KILL", "TYPE", "normal")
            assert wait_until(lambda: "leasing from queue 'q' failed, trying again" in caplog.text)
            password.write_text("")
            assert wait_until(lambda: "must hold the password" in caplog.text)
            password.write_text(NEW)
            ps.queue("q").enqueue(b"after")
            assert wait_until(lambda: b"after" in handled)
        assert OLD not in caplog.text
        assert NEW not in caplog.text
    finally:
        server.kill()


def test_a_password_that_is_being_written_is_waited_for_and_one_that_is_gone_is_told_by_health(
    tmp_path: Path,
) -> None:
    server = started(tmp_path / "server", requirepass=OLD)
    password, file = tmp_path / "password", tmp_path / "penstock.yaml"
    password.write_text(OLD)
    file.write_text(
        f"storage: {{engine: memory}}\nqueues: {{q: {{backend: there}}}}\nbackends:\n  there:\n"
        f"    url: {server.url()}\n    password_file: {password}\n"
        "    retry: {attempts: 3, first_delay: 200ms}\n"
    )
    try:
        with penstock.open(file) as ps:
            q = ps.queue("q")
            password.write_text("")  # As a shell's `>` does, a moment before what it writes.
            server.do("CLIENT", "KILL", "TYPE", "normal")
            threading.Timer(0.05, password.write_text, [OLD]).start()
            q.enqueue(b"once")
            assert q.length() == 1
            password.unlink()
            server.do("CLIENT", "KILL", "TYPE", "normal")
            with pytest.raises(InvalidConfig, match="cannot be read") as caught:
                q.enqueue(b"x")
            assert caught.value.retryable
            health = ps.health()
            assert health.backends == {"default": "healthy", "there": "unhealthy"}
            assert "password_file" in health.reasons["there"][0]
            assert list(ps.metrics()) == ["default"]
            password.write_text(NEW)
            assert ps.health().backends["there"] == "unhealthy"
            assert list(ps.metrics()) == ["default"]
            password.write_text(OLD)
            assert q.length() == 1
            assert ps.health().backends["there"] != "unhealthy"
    finally:
        server.kill()
