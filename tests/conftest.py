"""What every test shares: how Hypothesis runs, and that the shipped suites explain what fails."""

import os
import signal
from typing import Any

from hypothesis import settings

import penstock.testing  # noqa: F401  (registers its modules before a test imports one)

# A slow machine is no failure, and a failure prints what replays it. CI tries the same examples each time:
# a change that breaks nothing never fails there by chance.
settings.register_profile("default", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("default")

# A shell that starts the tests in the background has SIGINT ignored, and every command under test would
# inherit that: Ctrl-C would do nothing.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was not run for want of a server is told, whoever reads only the end."""
    from tests.redis.servers import redis_7

    if redis_7() is None:
        terminalreporter.write_line("NOT RUN: Redis 7 (no redis-server of version 7 or later on PATH)")
