"""The suite that every backend passes, in one class to subclass.

::

    class TestMyBackend(BackendSuite):
        def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> Penstock:
            return penstock.open(f"mine:{folder}", clock=clock, rng=rng)
"""

from __future__ import annotations

from penstock.testing.admin_suite import AdminSuite
from penstock.testing.bulk_part_suite import BulkPartSuite
from penstock.testing.bulk_plan_suite import BulkPlanSuite
from penstock.testing.bulk_read_suite import BulkReadSuite
from penstock.testing.bulk_reject_suite import BulkRejectSuite
from penstock.testing.bulk_suite import MoveSuite, PurgeSuite
from penstock.testing.bulk_write_suite import BulkWriteSuite
from penstock.testing.capability_suite import CapabilitySuite
from penstock.testing.compression_suite import CompressionSuite
from penstock.testing.concurrency_suite import ConcurrencySuite
from penstock.testing.cursor_suite import CursorSuite
from penstock.testing.deadletter_suite import DeadLetterSuite
from penstock.testing.dedup_suite import DedupSuite
from penstock.testing.due_suite import DueSuite
from penstock.testing.enqueue_suite import EnqueueSuite
from penstock.testing.failure_suite import FailureSuite
from penstock.testing.fairness_suite import FairnessSuite
from penstock.testing.fifo_clock_suite import FifoClockSuite
from penstock.testing.fifo_delay_suite import FifoDelaySuite
from penstock.testing.fifo_suite import FifoSuite
from penstock.testing.group_suite import GroupSuite
from penstock.testing.held_suite import HeldBodySuite
from penstock.testing.hook_suite import HookSuite
from penstock.testing.journal_suite import JournalSuite
from penstock.testing.key_suite import KeySuite
from penstock.testing.lease_suite import LeaseSuite
from penstock.testing.limit_suite import LimitSuite
from penstock.testing.listing_suite import ListingSuite
from penstock.testing.name_suite import NameSuite
from penstock.testing.persistence_suite import PersistenceSuite
from penstock.testing.priority_suite import PrioritySuite
from penstock.testing.promise_suite import PromiseSuite
from penstock.testing.race_suite import RaceSuite
from penstock.testing.receipt_suite import ReceiptSuite
from penstock.testing.replace_suite import DeclareQueuesSuite, ReplaceQueuesSuite
from penstock.testing.restore_suite import RestoreSuite
from penstock.testing.state_suite import StateSuite
from penstock.testing.stats_suite import StatsSuite
from penstock.testing.sweep_suite import SweepSuite
from penstock.testing.thread_suite import ThreadSuite
from penstock.testing.throttle_limit_suite import ThrottleLimitSuite
from penstock.testing.throttle_line_suite import ThrottleLineSuite
from penstock.testing.throttle_suite import ThrottleSuite
from penstock.testing.time_suite import TimeSuite
from penstock.testing.transition_suite import TransitionSuite
from penstock.testing.upsert_suite import UpsertSuite
from penstock.testing.waiting_suite import WaitingSuite
from penstock.testing.world_suite import WorldSuite


class BackendSuite(
    EnqueueSuite,
    UpsertSuite,
    DedupSuite,
    LeaseSuite,
    ReceiptSuite,
    WaitingSuite,
    GroupSuite,
    FailureSuite,
    HookSuite,
    DeadLetterSuite,
    MoveSuite,
    PurgeSuite,
    RestoreSuite,
    ListingSuite,
    StatsSuite,
    TimeSuite,
    SweepSuite,
    DueSuite,
    PrioritySuite,
    FairnessSuite,
    ThrottleSuite,
    ThrottleLimitSuite,
    ThrottleLineSuite,
    ConcurrencySuite,
    KeySuite,
    FifoSuite,
    FifoDelaySuite,
    FifoClockSuite,
    TransitionSuite,
    JournalSuite,
    CursorSuite,
    HeldBodySuite,
    WorldSuite,
    BulkReadSuite,
    BulkPlanSuite,
    AdminSuite,
    DeclareQueuesSuite,
    ReplaceQueuesSuite,
    StateSuite,
    NameSuite,
    LimitSuite,
    CompressionSuite,
    PromiseSuite,
    ThreadSuite,
    RaceSuite,
    PersistenceSuite,
    BulkWriteSuite,
    BulkPartSuite,
    BulkRejectSuite,
    CapabilitySuite,
):
    """Everything that Penstock promises of a backend, selected by the backend's capabilities."""
