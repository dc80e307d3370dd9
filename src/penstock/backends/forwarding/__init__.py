"""Calls of a backend made for others: how they travel, and how one that is made again happens once."""
