"""Queues on servers of the Redis family."""
