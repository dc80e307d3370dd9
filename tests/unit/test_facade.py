"""Opening: what is verified, what is told, and which backend a queue lives on."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import penstock
from penstock import InvalidConfig, ManualClock, NewMessage, QueueAlreadyExists, StorageError
from penstock.backends import registry
from penstock.backends.embedded.backend import EmbeddedBackend
from penstock.settings import QueueSettings
from penstock.testing.background import LIMIT_S, Background


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
    with pytest.raises(InvalidConfig, match=r"'sqs' is not known; known: .*memory, .*rocksdb"):
        penstock.open("sqs://localhost")


def test_another_package_can_register_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("other", "penstock.backends.embedded.opening:open_memory", registry.ENTRY_POINT_GROUP)

    def found(group: str, name: str | None = None) -> list[EntryPoint]:
        return [entry] if group == registry.ENTRY_POINT_GROUP and name in (None, "other") else []

    monkeypatch.setattr(registry, "entry_points", found)
    assert registry.known() == sorted([*registry.BUILT_IN, *registry.SERVERS, *registry.REMOTE, "other"])
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


def test_updates_of_different_settings_at_the_same_time_lose_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open("memory:", clock=ManualClock()) as ps:
        ps.create_queue("q")
        put = EmbeddedBackend.update_queue
        first_has_read, second_is_done = threading.Event(), threading.Event()

        def put_late(backend: EmbeddedBackend, settings: QueueSettings, was: QueueSettings) -> bool:
            if settings.lease_s == 77 and settings.max_attempts != 9:
                first_has_read.set()
                assert second_is_done.wait(LIMIT_S)
            return put(backend, settings, was)

        monkeypatch.setattr(EmbeddedBackend, "update_queue", put_late)
        first = Background(lambda: ps.update_queue("q", lease_s=77))
        assert first_has_read.wait(LIMIT_S)
        ps.update_queue("q", max_attempts=9)
        second_is_done.set()
        first.result()
        (settings,) = ps.queues()
        assert (settings.lease_s, settings.max_attempts) == (77, 9)


def test_a_folder_with_something_else_in_it_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(
        StorageError, match=r"holds no store, but 'letter\.txt'.*choose an empty folder"
    ) as refused:
        penstock.open(tmp_path)
    assert str(tmp_path) in str(refused.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["letter.txt", "photos"]
    assert (tmp_path / "letter.txt").read_text() == "dear"


FORKED = """if True:
    import os, sys
    import penstock
    ps = penstock.open(sys.argv[1], clock=penstock.ManualClock())
    q = ps.create_queue("q")
    q.enqueue(b"before")
    child = os.fork()
    if child == 0:
        for call in (lambda: q.enqueue(b"child"), q.lease, q.stats, ps.check, lambda: ps.sweep(1)):
            try:
                call()
            except penstock.StorageError as error:
                print(error, flush=True)
        ps.close()
        os._exit(0)
    os.waitpid(child, 0)
    q.enqueue(b"after")
    print(os.getpid(), [delivery.payload for delivery in q.lease(9)])
    ps.close()
"""


def test_a_forked_child_is_told_whose_store_it_has_and_the_parent_goes_on(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FORKED, tmp_path / "s"], capture_output=True, text=True, timeout=60, check=True
    )
    *told, last = run.stdout.splitlines()
    pid, _, payloads = last.partition(" ")
    assert told == [f"the store was opened in process {pid}; open it anew in this one"] * 5
    assert payloads == "[b'before', b'after']"
