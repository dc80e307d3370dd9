"""Versioned bytes of messages, events and entries: the same on every backend."""
