"""Small slices, so that short histories have every kind of step."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from penstock.backends.embedded import bulk


@pytest.fixture(autouse=True)
def small_slices() -> Any:
    """Bulk operations of a few messages are long ones."""
    with mock.patch.object(bulk, "SLICE", 3):
        yield
