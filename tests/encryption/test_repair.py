"""Check and repair of an encrypted store: what does not open is found, named, and kept in quarantine."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import ManualClock, NewMessage
from tests.encryption.stores import Keys, opened, raw_store, rows


def alter(folder: Path, space: str, which: int = 0) -> None:
    with raw_store(folder) as store:
        key, value = [row for row in rows(store, space).items() if row[1][0] == 0xE1][which]
        batch = store.batch()
        batch.put(key, value[:-1] + bytes((value[-1] ^ 1,)), store.space(space))
        store.write(batch)


@pytest.mark.parametrize("space", ["messages", "journal", "state"])
def test_repair_puts_what_does_not_open_into_quarantine_and_a_second_check_is_clean(
    tmp_path: Path, space: str
) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as ps:
        q = ps.create_queue("q")
        q.enqueue_many([NewMessage(b"%d" % n) for n in range(20)])
        q.reject([delivery.receipt for delivery in q.lease(3)], reason="no")
    alter(tmp_path, space, -1)
    with opened(tmp_path, clock=clock) as ps:
        assert any("does not open" in problem.what for problem in ps.check().problems)
        ps.check(repair=True)
        assert ps.check().problems == []
        assert len(ps.quarantine()) >= 1
    with opened(tmp_path, "new", clock=clock) as ps:
        assert ps.rekey().unreadable == 0
        assert ps.check().problems == []
    with opened(tmp_path, "new", Keys("new"), clock=clock) as ps:
        assert len(ps.queue("q").lease(100)) >= 16


def test_quarantine_shows_no_secret_in_the_files(tmp_path: Path) -> None:
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as ps:
        ps.create_queue("q").enqueue_many([NewMessage(b"a secret %d" % n) for n in range(5)])
    with raw_store(tmp_path) as store:
        # A body without anything that leads to it: it is moved to quarantine as it is.
        batch = store.batch()
        batch.delete(next(iter(rows(store, "ready"))), store.space("ready"))
        store.write(batch)
    with opened(tmp_path, clock=clock) as ps:
        ps.check(repair=True)
        assert ps.check().problems == []
        assert not any(b"a secret" in file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
