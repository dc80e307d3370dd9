"""Snapshots of an embedded store, read as Arrow: in any process, without the store."""
