"""Workers: handlers run on the messages of queues, in threads, processes or an event loop."""

from penstock.worker.job import Context, context
from penstock.worker.stats import SlotStats, WorkerStats
from penstock.worker.verdict import Reject, RetryLater
from penstock.worker.worker import Worker

__all__ = ["Context", "Reject", "RetryLater", "SlotStats", "Worker", "WorkerStats", "context"]
