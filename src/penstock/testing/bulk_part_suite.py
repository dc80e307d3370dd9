"""Bulk writes of partitions that are staged in several calls: the same rows as if they had come in one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock import InvalidMessage, Penstock, Queue
from penstock.backends.bulk import Staged, Txn, WriteTicket, Written
from penstock.backends.registry import open_writer
from penstock.backends.tables.jobs import joined
from penstock.testing.bulk_write_suite import BulkWriteCase, Columns, batch_of
from penstock.testing.harness import drain, ids, requires

TXN = Txn("suite", 1)


class BulkPartSuite(BulkWriteCase):
    """`first_row`."""

    def staged(self, ticket: WriteTicket, columns: Columns, first_row: int) -> Staged:
        with open_writer(ticket, self.keys()) as writer:
            return writer.stage(TXN, 0, [batch_of(columns)], None, first_row)

    @requires("bulk_write")
    def test_parts_of_a_partition_are_its_rows_in_their_order(self, ps: Penstock, q: Queue) -> None:
        ps.create_queue("whole")
        rows = [b"%d" % n for n in range(30)]
        found = {}
        for name, cuts in (("q", [0, 7, 8, 30]), ("whole", [0, 30])):
            ticket = ps.begin_write(name)
            parts = [self.staged(ticket, {"payload": rows[low:high]}, low) for low, high in pairwise(cuts)]
            assert ps.commit_write(ticket, TXN, [joined(parts)]) == Written(enqueued=30)
            found[name] = ids(ps.queue(name).list(limit=100).items)
            assert drain(ps.queue(name)) == rows
        # What is behind the job and the queue in an id is the row's place: it is the same.
        assert [one[-12:] for one in found["q"]] == [one[-12:] for one in found["whole"]]

    @requires("bulk_write")
    def test_a_part_that_is_staged_again_counts_once(self, ps: Penstock, q: Queue) -> None:
        ticket = ps.begin_write("q")
        parts = [self.staged(ticket, {"payload": [b"a", b"b"]}, 0)]
        # The answers to the first two are lost.
        _, _, second = (self.staged(ticket, {"payload": [b"c", None]}, 2) for _ in range(3))
        assert second.reasons == ("partition 0, row 3: payload is null",)
        assert ps.commit_write(ticket, TXN, [joined([*parts, second])]) == Written(enqueued=3, rejected=1)
        assert drain(q) == [b"a", b"b", b"c"]

    @requires("bulk_write")
    @pytest.mark.parametrize("first_row", [-1, 1 << 28])
    def test_a_row_that_no_partition_has_is_refused(self, ps: Penstock, q: Queue, first_row: int) -> None:
        with pytest.raises(InvalidMessage, match="first_row"):
            self.staged(ps.begin_write("q"), {"payload": [b"a"]}, first_row)
