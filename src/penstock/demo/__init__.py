"""The demonstration: many messages of several shops, workers that fail, dawdle and crash, and the proof."""

from penstock.demo.play import main

__all__ = ["main"]
