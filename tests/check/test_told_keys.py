"""Keys that a salvage looks up in an unreadable part: all that may be in it, in order, and no other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import penstock
from penstock import NewMessage
from penstock.backends.embedded.checking.salvage import TRUTH, Salvage
from penstock.backends.embedded.keys import Meta
from penstock.kv.rocksdb import RocksStore
from tests.crash.clocks import now_clock

Told = Callable[[bytes, bytes | None], Iterable[bytes]]


@pytest.mark.parametrize("space", TRUTH)
def test_every_row_of_a_part_is_told_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, space: str
) -> None:
    with penstock.open(f"rocksdb:{tmp_path}?durability=os", clock=now_clock()) as ps:
        for name in "abc":
            q = ps.create_queue(name, retention_s=900)
            q.enqueue_many([NewMessage(b"", dedup_id=f"{name}{n}") for n in range(60)])
            q.cursor("archive", required=True)
            q.ack([delivery.receipt for delivery in q.lease(20)][:10])
        engine = ps._default._engine  # type: ignore[attr-defined]
        stored = [key for key, _ in engine.kv.scan(engine.kv.space(space), b"", None)]
        rng = random.Random(7)
        parts: list[tuple[bytes, bytes | None]] = [(b"", None), (b"", stored[0]), (stored[-1], None)]
        for _ in range(60):
            start, end = sorted(rng.sample(stored, 2)) if len(stored) > 1 else (stored[0], stored[0] + b"\0")
            parts.append((start + b"\0" * rng.randrange(2), end))
        seen = []

        def look(store: RocksStore, name: str, told: Told) -> None:
            everything = list(told(b"", None))
            for start, end in parts:
                found = list(told(start, end))
                assert found == sorted(set(found))
                assert found == [key for key in everything if start <= key and (end is None or key < end)]
            seen.append(set(everything))

        monkeypatch.setattr(RocksStore, "salvage", look)
        with engine.lock:
            Salvage(engine, {}).run([space])
        missing = set(stored) - seen[0]
        # Of a world that nobody names, and rows of `meta` that nothing else tells of.
        assert not missing or space in ("meta", "journal"), missing
        assert len(missing) < len(stored)
        if space == "meta":
            assert not [key for key in missing if key[0] in (Meta.CURSOR, Meta.QUEUE, Meta.COUNTERS)]
