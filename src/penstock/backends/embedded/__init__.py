"""The embedded backend: queues on an ordered store inside the process."""
