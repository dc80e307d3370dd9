"""The suite that every backend passes, in one class to subclass.

::

    class TestMyBackend(BackendSuite):
        def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> Penstock:
            return penstock.open(f"mine:{folder}", clock=clock, rng=rng)
"""

from __future__ import annotations

from penstock.testing.bulk_suite import MoveSuite, PurgeSuite
from penstock.testing.deadletter_suite import DeadLetterSuite
from penstock.testing.dedup_suite import DedupSuite
from penstock.testing.enqueue_suite import EnqueueSuite
from penstock.testing.failure_suite import FailureSuite
from penstock.testing.lease_suite import LeaseSuite
from penstock.testing.upsert_suite import UpsertSuite
from penstock.testing.waiting_suite import WaitingSuite


class BackendSuite(
    EnqueueSuite,
    UpsertSuite,
    DedupSuite,
    LeaseSuite,
    WaitingSuite,
    FailureSuite,
    DeadLetterSuite,
    MoveSuite,
    PurgeSuite,
):
    """Everything that Penstock promises of a backend, selected by the backend's capabilities."""
