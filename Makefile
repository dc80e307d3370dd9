# Every target that a person types has its explanation behind `##`; `make` alone prints them.

VENV  := .venv
PY    := $(VENV)/bin/python
TREES := src tests benchmarks
# Further words for the command at hand: make test ARGS="tests/unit -x"
ARGS  ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup check test test-backend soak demo bench bench-spark format lock clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/ready ## Create .venv with the locked packages and this one, editable

check: $(VENV)/ready ## Lint, formatting, types, layers
	$(PY) -m ruff check $(TREES)
	$(PY) -m ruff format --check $(TREES)
	$(PY) -m mypy $(TREES)
	$(VENV)/bin/lint-imports --no-logo

test: $(VENV)/ready ## Run the tests on all cores
	$(PY) -m pytest -n auto --maxprocesses 8 --dist loadgroup $(ARGS)

test-backend: $(VENV)/ready ## Run the conformance suite against any store: make test-backend URL=redis+lists://localhost
	@test -n "$(URL)" || { echo "Which one? make test-backend URL=redis+lists://localhost:6379/0" >&2; exit 2; }
	@PENSTOCK_TEST_URL='$(URL)' $(PY) -m pytest tests/conformance/test_given_url.py $(ARGS)

soak: $(VENV)/ready ## Run the suites that take minutes
	$(PY) -m pytest -m soak -o faulthandler_timeout=0 $(ARGS)

demo: $(VENV)/ready ## Show what Penstock does
	$(VENV)/bin/penstock demo $(ARGS)

bench: $(VENV)/ready ## Measure the embedded store
	$(PY) benchmarks/core.py $(ARGS)
	$(PY) benchmarks/flat.py

bench-spark: $(VENV)/ready ## Measure Spark on a store, against Parquet and against a sink that discards
	$(PY) -m benchmarks.spark $(ARGS)
	$(PY) -m benchmarks.spark_write $(ARGS)

format: $(VENV)/ready ## Format, and fix what the linter can fix
	$(PY) -m ruff check --fix $(TREES)
	$(PY) -m ruff format $(TREES)

lock: $(VENV)/ready ## Pin the newest allowed packages in requirements.lock
	$(PY) -m venv --clear $(VENV)/lock
	$(VENV)/lock/bin/pip install --quiet uv
	$(VENV)/lock/bin/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --python $(PY) \
	    --custom-compile-command "make lock" --extra dev --output-file requirements.lock pyproject.toml

clean: ## Remove the environment and everything that was generated
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The environment is made anew when the lock changes, so that it holds what the lock names and nothing else.
$(VENV)/locked: requirements.lock
	@for python in $(PYTHON) python3.11 python3; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "$$python -m venv $(VENV)"; exec $$python -m venv --clear $(VENV); \
	    fi; \
	done; \
	echo "Penstock needs Python 3.11 or newer; name one: make setup PYTHON=/path/to/python" >&2; exit 1
	$(PY) -m pip install --quiet --require-hashes -r requirements.lock
	@touch $@

# Without isolation the build uses the locked build backend and downloads nothing.
$(VENV)/ready: $(VENV)/locked pyproject.toml
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@
