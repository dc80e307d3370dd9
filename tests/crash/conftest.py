"""Crash campaigns report what they did: rounds, acknowledged calls, reopening times."""

from __future__ import annotations

import pytest

PROPERTY = "crash campaign"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        str(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if lines:
        terminalreporter.section("crash campaigns")
        for line in sorted(lines):
            terminalreporter.write_line(line)
