"""A store that is opened again and again, as commands do, is never taken for a damaged one."""

from __future__ import annotations

from pathlib import Path

import penstock


def test_compaction_beside_an_opening_is_not_damage(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    for _ in range(60):
        with penstock.open(f"rocksdb:{folder}?durability=os") as ps:
            queue = ps.queue("q") if ps.queues() else ps.create_queue("q")
            queue.enqueue(b"stays", delay_s=1000)
            queue.enqueue(b"goes")
            queue.ack([delivery.receipt for delivery in queue.lease()])
    assert not (folder / "lost").exists()
    with penstock.open(folder) as ps:
        assert ps.queue("q").stats().delayed == 60
        assert ps.check().ok
