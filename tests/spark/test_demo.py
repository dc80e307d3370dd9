"""The demonstration's end: what happened is archived, audited and made into a report that stays."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.usefixtures("driver"), pytest.mark.soak]


def test_the_demo_ends_with_a_report(tmp_path: Path) -> None:
    """In a process of its own: it stops its Spark session, and all other tests share one."""
    command = [sys.executable, "-m", "penstock.demo", "--messages", "300", "--path", str(tmp_path / "demo")]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    assert re.search(r"^  archived +[0-9]{3,}   events, ", shown, re.MULTILINE)
    assert re.search(r"^  audit +0 ", shown, re.MULTILINE)
    page = tmp_path / "demo" / "report.html"
    assert str(page) in shown
    assert "Fair shares" in page.read_text()
    facts = json.loads(page.with_suffix(".json").read_text())
    assert facts["deliveries_with_key"] == facts["deliveries"] >= 300
