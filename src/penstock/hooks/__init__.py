"""Scripts that users give their queues: run in a process of their own, within limits."""
