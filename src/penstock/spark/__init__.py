"""Queues in Spark: the session that `spark.read.format("penstock")` needs, and moments of a store to read."""

from penstock.spark.session import session
from penstock.spark.store import snapshot

__all__ = ["session", "snapshot"]
