"""What every test shares: how Hypothesis runs, and that the shipped suites explain what fails."""

import os

from hypothesis import settings

import penstock.testing  # noqa: F401  (registers its modules before a test imports one)

# A slow machine is no failure, and a failure prints what replays it. CI tries the same examples each time:
# a change that breaks nothing never fails there by chance.
settings.register_profile("default", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("default")
