"""Snapshots of a store on Redis as tables."""
