"""The suite over a backend that lacks what can be lacked: selection by capability, and every refusal."""

from __future__ import annotations

import random
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.backends import registry
from penstock.clock import Clock
from penstock.testing.suite import BackendSuite

PLAIN = EntryPoint("plain", "tests.conformance.plain_backend:open_plain", registry.ENTRY_POINT_GROUP)


def entry_points(**wanted: Any) -> EntryPoints:
    """What another package's installation would add."""
    return EntryPoints([PLAIN]).select(**wanted)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", entry_points)


class TestPlainBackend(BackendSuite):
    def open_penstock(self, folder: Path, clock: Clock, rng: random.Random) -> penstock.Penstock:
        return penstock.open("plain:", clock=clock, rng=rng)


def test_a_queue_that_needs_what_its_backend_lacks_is_refused_by_name_before_anything_is_served(
    tmp_path: Path,
) -> None:
    config = tmp_path / "penstock.yaml"
    config.write_text(
        "storage: {engine: memory}\n"
        'backends: {small: {url: "plain:"}}\n'
        "queues:\n  fine: {backend: small}\n  line: {backend: small, fifo: true}\n"
    )
    with pytest.raises(penstock.Unsupported, match=r"'line'.*'fifo'.*plain lacks"):
        penstock.open(config)
