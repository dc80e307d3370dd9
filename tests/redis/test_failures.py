"""Each error of the driver is one of Penstock's, in one place; and the figures that calls leave behind."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as DriverConnectionError
from redis.exceptions import TimeoutError as DriverTimeoutError

from penstock.backends.call_meter import WINDOW_NS, CallMeter
from penstock.backends.redis import failures
from penstock.clock import NS_PER_S
from penstock.errors import BackendUnavailable, PenstockError, StorageError, StorageFull, Unauthorized
from tests.redis.clocks import SkippingClock

#: What servers answer -> (the word that counts, the error that users see).
ANSWERS: dict[str, tuple[str, type[PenstockError]]] = {
    "LOADING Redis is loading the dataset in memory": ("LOADING", BackendUnavailable),
    "READONLY You can't write against a read only replica.": ("READONLY", BackendUnavailable),
    "TRYAGAIN Multiple keys request during rehashing of slot": ("TRYAGAIN", BackendUnavailable),
    "CLUSTERDOWN Hash slot not served": ("CLUSTERDOWN", BackendUnavailable),
    "MASTERDOWN Link with MASTER is down": ("MASTERDOWN", BackendUnavailable),
    "BUSY Redis is busy running a script.": ("BUSY", BackendUnavailable),
    "NOREPLICAS Not enough good replicas to write.": ("NOREPLICAS", BackendUnavailable),
    "OOM command not allowed when used memory > 'maxmemory'.": ("OOM", StorageFull),
    "ERR Error running script (call to f_1): @user_script:3: @user_script: 3: -OOM command not allowed": (
        "OOM",
        StorageFull,
    ),
    "ERR Error running script (call to f_1): @user_script:3: @user_script: 3: -READONLY You can't write": (
        "READONLY",
        BackendUnavailable,
    ),
    "MISCONF Redis is configured to save RDB snapshots, but it is unable to": ("MISCONF", StorageFull),
    "NOAUTH Authentication required.": ("NOAUTH", Unauthorized),
    "WRONGPASS invalid username-password pair": ("WRONGPASS", Unauthorized),
    "NOPERM this user has no permissions to run the 'set' command": ("NOPERM", Unauthorized),
    "WRONGTYPE Operation against a key holding the wrong kind of value": ("WRONGTYPE", StorageError),
    "CROSSSLOT Keys in request don't hash to the same slot": ("CROSSSLOT", StorageError),
    "ERR unknown command 'X'": ("ERR", StorageError),
    "Err of its own": ("ERR", StorageError),
}


def answered(text: str) -> Exception:
    """What the driver makes of an answer."""
    made: Exception = BaseParser.parse_error(text)  # type: ignore[no-untyped-call]
    return made


@pytest.mark.parametrize("answer", ANSWERS)
def test_each_answer_of_a_server_is_one_error_on_one_line_with_its_cause(answer: str) -> None:
    error = answered(answer)
    code, expected = ANSWERS[answer]
    assert failures.code_of(error) == code
    made = failures.translated(error, "redis+lists://h:1")
    assert type(made) is expected
    assert made.__cause__ is error
    assert str(made).startswith("redis+lists://h:1")
    assert failures.is_for_now(error) == (expected is BackendUnavailable)


def test_a_connection_that_fails_is_unavailable_and_tried_again() -> None:
    for error in (DriverConnectionError("refused"), DriverTimeoutError("late")):
        assert failures.is_trouble(error)
        assert type(failures.translated(error, "x")) is BackendUnavailable
    assert not failures.is_trouble(answered("LOADING x"))
    assert not failures.is_trouble(answered("NOAUTH x"))


def test_what_a_server_says_is_kept_short() -> None:
    error = answered("ERR " + "a\r\nb " * 1000)
    made = failures.translated(error, "x")
    assert len(str(made)) < 400
    assert "\n" not in str(made)


def test_an_error_of_penstock_stays_as_it_is() -> None:
    error = StorageFull("full")
    assert failures.translated(error, "x") is error


def test_without_the_driver_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['redis'] = None\n"
        "import penstock\n"
        "try: penstock.open('redis+lists://localhost')\n"
        "except penstock.BackendNotInstalled as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "redis is not installed; pip install 'penstock[redis]'"


def test_importing_penstock_does_not_import_the_driver() -> None:
    program = "import sys, penstock, penstock.cli.main; print('redis' in sys.modules, 'ssl' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"


# -- figures


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200))
def test_quantiles_are_known_to_an_eighth(times_ns: list[int]) -> None:
    meter = CallMeter(SkippingClock())
    for ns in times_ns:
        meter.took(ns)
    ordered = sorted(times_ns)
    figures = meter.figures()
    for found_s, part in ((figures.p50_s, 0.5), (figures.p99_s, 0.99)):
        exact_ns = ordered[math.ceil(len(ordered) * part) - 1]
        assert found_s is not None
        assert exact_ns <= found_s * NS_PER_S * (1 + 1e-9)
        assert found_s * NS_PER_S <= exact_ns * 1.125 + 1.01


def test_figures_are_of_the_last_minutes() -> None:
    clock = SkippingClock()
    meter = CallMeter(clock)
    meter.took(1000)
    meter.failed()
    clock.advance(WINDOW_NS / NS_PER_S)
    meter.took(3_000_000)
    assert (meter.figures().calls, meter.figures().errors) == (2, 1)
    clock.advance(WINDOW_NS / NS_PER_S)
    assert (meter.figures().calls, meter.figures().errors) == (1, 0)
    clock.advance(5 * WINDOW_NS / NS_PER_S)
    assert meter.figures().p50_s is None
    assert (meter.calls, meter.errors) == (2, 1)


def test_a_clock_that_is_set_back_does_no_harm() -> None:
    clock = SkippingClock()
    meter = CallMeter(clock)
    meter.took(-5)
    clock.advance(-1000)
    meter.took(5)
    assert meter.figures().calls == 1
