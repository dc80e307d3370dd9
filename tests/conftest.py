"""What every test shares: how Hypothesis runs, and that the shipped suites explain what fails."""

import os
import signal
from typing import Any

import pytest
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


#: By parts of their names, tests that wait for `make soak`: long, and of what others show in every run.
SLOW = (
    # The engine's own arithmetic, which the embedded store shows: here it is only farther away.
    ("test_http.py", "test_over_hours_a_key_is_delivered_at_its_rate"),
    ("test_attached.py", "test_over_hours_a_key_is_delivered_at_its_rate"),
    # Redis runs the same scripts, all of them.
    ("test_redis_streams.py", "TestValkeyStreams"),
    ("test_outages.py", "redis+lists-server killed -9"),
    ("test_outages.py", "redis+lists-all connections cut"),
    ("test_outages.py", "redis+lists-server without memory"),
    ("test_outages.py", "redis+streams-worker killed -9"),
    ("test_outages.py", "redis+lists-server paused for 10 s"),
    ("redis/test_encryption.py", "test_rekeying_beside_traffic_loses_nothing"),
    # Each waits out the patience with a queue that has no counters: lists show it.
    ("test_tolerance.py", "test_counters_that_are_damaged_are_mended_as_lost_ones_are[streams-None]"),
    ("test_planted_faults.py", "[streams-the counters are lost]"),
    ("spark/test_cluster.py", "test_tables_streams_writes_and_jobs_are_run_by_the_workers"),
    ("spark/redis/test_killed.py", "test_a_driver_that_is_killed_in_the_middle_of_its_commit"),
    ("spark/archive/test_commands.py", "test_a_queue_goes_through_all_of_them"),
    ("spark/archive/test_holes.py", "test_what_is_behind_a_hole_is_another_history"),
    ("spark/archive/test_rebuild.py", "test_a_rebuilt_store_can_be_archived_and_rebuilt_again"),
    ("spark/archive/test_holes.py", "test_events_that_are_lost_after_they_were_archived_are_not_missed"),
    ("spark/test_write_killed.py", "test_a_batch_whose_driver_is_killed_counts_once_when_it_is_run_again"),
    ("spark/jobs/test_commands.py", "test_an_audit_against_a_store_leaves_out_queues"),
    ("spark/jobs/test_report.py", "test_without_the_store_the_events_alone_tell_the_same"),
    ("redis/test_given_url.py", "test_the_suite_runs_against_the_url_that_is_given"),
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(file in item.nodeid and name in item.nodeid for file, name in SLOW):
            item.add_marker(pytest.mark.soak)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was not run for want of a server is told, whoever reads only the end."""
    from tests.redis.servers import redis_7

    if redis_7() is None:
        terminalreporter.write_line("NOT RUN: Redis 7 (no redis-server of version 7 or later on PATH)")
