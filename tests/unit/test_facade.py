"""Opening: what is verified, what is told, and which backend a queue lives on."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import penstock
from penstock import InvalidConfig, ManualClock, NewMessage, QueueAlreadyExists
from penstock.backends import registry


def yaml(folder: Path, text: str) -> Path:
    path = folder / "penstock.yaml"
    path.write_text(text)
    return path


def test_opening_logs_engine_path_durability_and_format(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "penstock"), penstock.open(tmp_path / "s") as ps:
        info = ps.info().default
    text = caplog.text
    assert "engine=rocksdb" in text
    assert f"path={tmp_path / 's'}" in text
    assert "durability=sync" in text
    assert "format=1" in text
    assert (info.engine, info.path, info.durability) == ("rocksdb", str(tmp_path / "s"), "sync")
    assert info.format_version == 1


def test_nothing_of_a_message_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), penstock.open(tmp_path / "s") as ps:
        q = ps.create_queue("q")
        q.enqueue(b"secret-payload", headers={"h": "secret-header"})
        q.nack([q.lease()[0].receipt], reason="secret-reason")
    assert "secret" not in caplog.text


def test_an_unknown_backend_lists_the_known_ones() -> None:
    with pytest.raises(InvalidConfig, match=r"'redis\+lists' is not known; known: memory, rocksdb"):
        penstock.open("redis+lists://localhost:6379/0")


def test_another_package_can_register_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("other", "penstock.backends.embedded.opening:open_memory", registry.ENTRY_POINT_GROUP)

    def found(group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry] if group == registry.ENTRY_POINT_GROUP and name in (None, "other") else []

    monkeypatch.setattr(registry, "entry_points", found)
    assert registry.known() == ["memory", "other", "rocksdb"]
    assert registry.factory("other").__name__ == "open_memory"


def test_queues_of_a_file_exist_after_opening_each_on_its_backend(tmp_path: Path) -> None:
    config = yaml(
        tmp_path,
        """
        storage: {engine: rocksdb, path: ./main, durability: os}
        backends: {fast: {url: "memory:"}}
        queues:
          emails: {lease_s: 10, dead_letter: emails-dead}
          emails-dead: {}
          clicks: {backend: fast, max_attempts: 3}
        """,
    )
    with penstock.open(config) as ps:
        assert [settings.name for settings in ps.queues()] == ["clicks", "emails", "emails-dead"]
        ps.queue("emails").enqueue(b"kept")
        ps.queue("clicks").enqueue(b"in memory only")
        assert set(ps.info().backends) == {"default", "fast"}
    with penstock.open(config) as ps:
        assert ps.queue("emails").length() == 1
        assert ps.queue("clicks").length() == 0


def test_a_changed_file_changes_its_queues_and_leaves_the_others(tmp_path: Path) -> None:
    config = yaml(tmp_path, "storage: {path: ./s}\nqueues: {a: {lease_s: 10}}\n")
    with penstock.open(config) as ps:
        ps.create_queue("by-hand")
    config = yaml(tmp_path, "storage: {path: ./s}\nqueues: {a: {lease_s: 20}}\n")
    with penstock.open(config) as ps:
        assert {s.name: s.lease_s for s in ps.queues()} == {"a": 20.0, "by-hand": 30.0}


def test_a_queue_that_lives_elsewhere_than_the_file_says_stops_the_start(tmp_path: Path) -> None:
    with penstock.open(yaml(tmp_path, "storage: {path: ./s}\nqueues: {a: {}}\n")):
        pass
    config = yaml(
        tmp_path, "storage: {path: ./s}\nbackends: {m: {url: 'memory:'}}\nqueues: {a: {backend: m}}\n"
    )
    with pytest.raises(InvalidConfig, match=r"queues\.a\.backend is 'm', but the queue lives on 'default'"):
        penstock.open(config)
    with penstock.open(tmp_path / "s") as ps:
        assert [s.name for s in ps.queues()] == ["a"]


def test_a_name_is_used_once_over_all_backends(tmp_path: Path) -> None:
    config = yaml(tmp_path, "storage: {engine: memory}\nbackends: {m: {url: 'memory:'}}\n")
    with penstock.open(config) as ps:
        ps.create_queue("a", backend="m")
        with pytest.raises(QueueAlreadyExists):
            ps.create_queue("a")
        with pytest.raises(QueueAlreadyExists):
            ps.replace_queues(["a"])
        with pytest.raises(InvalidConfig, match="'x' is not configured; configured: default, m"):
            ps.create_queue("b", backend="x")


def test_due_items_of_several_backends_come_in_one_order_page_by_page(tmp_path: Path) -> None:
    clock = ManualClock()
    config = yaml(tmp_path, "storage: {engine: memory}\nbackends: {m: {url: 'memory:'}}\n")
    with penstock.open(config, clock=clock) as ps:
        for name, backend in (("a", "default"), ("b", "m")):
            q = ps.create_queue(name, backend=backend)
            q.enqueue_many([NewMessage(b"", delay_s=delay) for delay in (1, 1, 2, 3)])
        whole = ps.due()
        pages, after = [], None
        while page := ps.due(limit=3, after=after):
            pages += page
            after = page[-1].position
    assert [item.at_ns for item in whole] == sorted(item.at_ns for item in whole)
    assert len(whole) == 8
    assert pages == whole


@pytest.mark.parametrize("after", ["", "x", "default@1", "default@x@00", "default@1@zz", 5])
def test_a_position_that_is_none_is_refused(after: object) -> None:
    with penstock.open("memory:") as ps, pytest.raises(penstock.InvalidMessage):
        ps.due(after=after)  # type: ignore[arg-type]
