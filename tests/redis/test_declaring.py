"""A configuration that is opened while others make and change queues of the same store: theirs stay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock.backends.redis.backend import RedisBackend
from penstock.settings import QueueSettings
from tests.redis.stores import Place


def configured(place: Place, folder: Path, queue: str) -> Path:
    """A file that declares one queue on the place."""
    folder.mkdir()
    file = folder / "penstock.yaml"
    file.write_text(
        f"storage: {{engine: memory}}\nbackends:\n  there: {{url: '{place.url}'}}\n"
        f"queues:\n  {queue}: {{backend: there}}\n"
    )
    return file


def test_queues_that_others_make_meanwhile_stay_with_what_is_in_them(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = place.open()
    other.create_queue("changed")
    queues = RedisBackend.queues

    def meanwhile(backend: RedisBackend) -> list[QueueSettings]:
        found = queues(backend)
        monkeypatch.undo()
        other.create_queue("theirs").enqueue(b"acknowledged")
        other.update_queue("changed", lease_s=5)
        return found

    monkeypatch.setattr(RedisBackend, "queues", meanwhile)
    with penstock.open(configured(place, tmp_path / "ours", "ours"), clock=place.clock) as ps:
        assert [one.name for one in ps.queues()] == ["changed", "ours", "theirs"]
        assert [one.payload for one in ps.queue("theirs").lease()] == [b"acknowledged"]
        assert ps.queue("changed").settings().lease_s == 5


def test_many_that_open_at_once_have_their_queues_all_of_them(place: Place, tmp_path: Path) -> None:
    names = [f"q{number}" for number in range(8)]
    files = [configured(place, tmp_path / name, name) for name in names]

    def enqueues(file: Path, name: str) -> None:
        with penstock.open(file) as ps:
            ps.queue(name).enqueue(name.encode())

    with ThreadPoolExecutor(len(names)) as pool:
        for one in [pool.submit(enqueues, *pair) for pair in zip(files, names, strict=True)]:
            one.result()
    ps = place.open()
    assert {one.name: ps.queue(one.name).length() for one in ps.queues()} == dict.fromkeys(names, 1)
