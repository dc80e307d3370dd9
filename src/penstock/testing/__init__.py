"""The suites that every store and every backend passes; shipped, so that others can run them too."""

import pkgutil

import pytest

# Asserts in a library say only that they failed, unless pytest rewrites them before they are imported.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)))
