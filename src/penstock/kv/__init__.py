"""Ordered byte stores with atomic batches; they know nothing of queues."""
