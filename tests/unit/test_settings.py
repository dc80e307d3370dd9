"""Queue settings and the retry arithmetic: every key, every limit."""

from __future__ import annotations

import datetime
import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidConfig
from penstock.scheduling.retry import retry_delay_s
from penstock.settings import DAY_S, MAX_DURATION_S, QueueSettings, Retry, queue_settings


def refusal(key: str, value: object) -> str:
    with pytest.raises(InvalidConfig) as caught:
        queue_settings("emails", {key: value})
    return str(caught.value)


# --- what is accepted -------------------------------------------------------------------------------


def test_the_defaults_are_the_documented_ones() -> None:
    assert queue_settings("emails", {}) == QueueSettings(
        name="emails",
        lease_s=30.0,
        max_attempts=5,
        dead_letter=None,
        fifo=False,
        delay_s=0.0,
        retention_s=0.0,
        dead_retention_s=None,
        dedup_window_s=300.0,
        journal_retention_s=7 * DAY_S,
        journal_max_bytes=None,
        retry=Retry(policy="fixed", delay_s=0.0, max_delay_s=3600.0, jitter=True, delays_s=()),
        max_leased=None,
        max_leased_per_key=None,
        compress_over_bytes=None,
        on_enqueue=None,
        on_failure=None,
        annotations={},
    )


#: setting -> (lowest, just below it, highest, just above it)
LIMITS: dict[str, tuple[float, float, float, float]] = {
    "lease_s": (0.001, 0.0009, MAX_DURATION_S, MAX_DURATION_S + 1),
    "max_attempts": (1, 0, 1_000_000, 1_000_001),
    "delay_s": (0, -0.001, MAX_DURATION_S, MAX_DURATION_S + 1),
    "retention_s": (0, -0.001, MAX_DURATION_S, MAX_DURATION_S + 1),
    "dead_retention_s": (0.001, 0, MAX_DURATION_S, MAX_DURATION_S + 1),
    "dedup_window_s": (0, -0.001, MAX_DURATION_S, MAX_DURATION_S + 1),
    "journal_retention_s": (0.001, 0, MAX_DURATION_S, MAX_DURATION_S + 1),
    "journal_max_bytes": (1, 0, 2**62, 2**62 + 1),
    "max_leased": (1, 0, 2**31, 2**31 + 1),
    "max_leased_per_key": (1, 0, 2**31, 2**31 + 1),
    "compress_over_bytes": (0, -1, 2**31, 2**31 + 1),
}
#: What else a setting needs.
GOES_WITH: dict[str, dict[str, object]] = {"delay_s": {"fifo": True}}
OTHERS: dict[str, list[object]] = {
    "dead_letter": ["emails-dead", "ü/:", None],
    "fifo": [True, False],
    "retry": [Retry(delay_s=1.0), Retry(policy="list", delays_s=(1.0, 2.0))],
    "on_enqueue": ["return true", None],
    "on_failure": ["return true", None],
    "annotations": [{}, {"team": "mail", "ü/:": ""}],
}
OPTIONAL = [
    "dead_letter",
    "dead_retention_s",
    "journal_retention_s",
    "journal_max_bytes",
    "max_leased",
    "max_leased_per_key",
    "compress_over_bytes",
    "on_enqueue",
    "on_failure",
]


def test_every_setting_has_its_test_values() -> None:
    assert sorted([*LIMITS, *OTHERS]) == sorted(QueueSettings.__struct_fields__[1:])


@pytest.mark.parametrize("key", LIMITS)
def test_the_limits_themselves_are_accepted(key: str) -> None:
    lowest, _, highest, _ = LIMITS[key]
    for value in (lowest, highest):
        made = queue_settings("emails", {key: value, **GOES_WITH.get(key, {})})
        assert getattr(made, key) == value


@pytest.mark.parametrize("key", LIMITS)
def test_beyond_a_limit_is_refused_with_the_range(key: str) -> None:
    _, below, _, above = LIMITS[key]
    for value in (below, above):
        message = refusal(key, value)
        assert message.startswith(f"queue 'emails': {key} is ")
        assert "accepted: " in message


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in OTHERS for value in OTHERS[key]])
def test_other_settings_are_kept_as_given(key: str, value: object) -> None:
    assert getattr(queue_settings("emails", {key: value}), key) == value


@pytest.mark.parametrize("key", OPTIONAL)
def test_a_setting_that_may_be_off_takes_none(key: str) -> None:
    assert getattr(queue_settings("emails", {key: None}), key) is None


def test_retry_is_a_struct_or_a_mapping() -> None:
    expected = Retry(policy="exponential", delay_s=2.0, max_delay_s=60.0, jitter=False)
    plain = {"policy": "exponential", "delay_s": 2, "max_delay_s": 60, "jitter": False}
    assert queue_settings("emails", {"retry": expected}).retry == expected
    assert queue_settings("emails", {"retry": plain}).retry == expected
    assert queue_settings("emails", {"retry": {"policy": "list", "delays_s": [1, 2]}}).retry.delays_s == (
        1.0,
        2.0,
    )


def test_settings_are_frozen_and_given_values_are_not_changed() -> None:
    given: dict[str, object] = {"retry": {"policy": "list", "delays_s": [1, 2]}, "lease_s": 5}
    made = queue_settings("emails", given)
    assert given == {"retry": {"policy": "list", "delays_s": [1, 2]}, "lease_s": 5}
    with pytest.raises(AttributeError):
        made.lease_s = 1.0  # type: ignore[misc]  # that is what is tested


def test_settings_survive_being_stored() -> None:
    made = queue_settings("emails", {"retry": Retry(policy="list", delays_s=(1.0, 2.0)), "max_leased": 3})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=QueueSettings) == made


# --- what is refused --------------------------------------------------------------------------------

WRONG_TYPES: dict[str, list[object]] = {
    "lease_s": ["30", None, True, [1], {}, b"1"],
    "max_attempts": ["5", None, True, 5.0, [1], {}],
    "dead_letter": [5, True, ["a"], {}],
    "fifo": [1, 0, "yes", None, []],
    "delay_s": ["1", None, True, [1], {}],
    "retention_s": ["0", None, False, []],
    "dead_retention_s": ["1", False, []],
    "dedup_window_s": ["1", None, False, []],
    "journal_retention_s": ["1", False, []],
    "journal_max_bytes": ["1", 1.0, False, []],
    "retry": ["fixed", 5, None, [], True],
    "max_leased": ["1", 1.0, False, []],
    "max_leased_per_key": ["1", 1.0, False, []],
    "compress_over_bytes": ["1", 1.0, False, []],
    "on_enqueue": [5, True, []],
    "on_failure": [5, True, []],
    "annotations": [5, None, True, [], "x", {"x": 1}, {"x": None}],
}


def test_wrong_types_are_listed_for_every_setting() -> None:
    assert sorted(WRONG_TYPES) == sorted(QueueSettings.__struct_fields__[1:])


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key in WRONG_TYPES for value in WRONG_TYPES[key]]
)
def test_a_wrong_type_is_refused_by_queue_and_key(key: str, value: object) -> None:
    message = refusal(key, value)
    assert message.startswith("queue 'emails': ")
    assert key in message


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, 10**400])
@pytest.mark.parametrize("key", [key for key in LIMITS if key.endswith("_s")])
def test_numbers_that_are_no_durations_are_refused(key: str, value: float) -> None:
    assert key in refusal(key, value)


def test_a_delay_without_fifo_is_refused_with_what_to_do_instead() -> None:
    message = refusal("delay_s", 5)
    assert message == (
        "queue 'emails': delay_s goes with fifo; in other queues each message has its own delay_s"
    )


@pytest.mark.parametrize("key", ["lease", "LEASE_S", "name", "backend", "", "__class__"])
def test_an_unknown_setting_is_refused_with_the_known_ones(key: str) -> None:
    message = refusal(key, 1)
    assert message.startswith(f"queue 'emails': unknown setting {key!r}; accepted: lease_s, max_attempts, ")
    assert all(name in message for name in QueueSettings.__struct_fields__[1:])


def test_a_queue_is_not_its_own_dead_letter_queue() -> None:
    assert refusal("dead_letter", "emails") == (
        "queue 'emails': dead_letter is the queue itself; name another queue"
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "0 bytes"),
        ("x" * 1025, "1025 bytes"),
        ("ü" * 513, "1026 bytes"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, problem: str) -> None:
    with pytest.raises(InvalidConfig, match=f"queue name .*{problem}"):
        queue_settings(name, {})


@pytest.mark.parametrize("name", ["x", "x" * 1024, "ü" * 512, "a/b:c", " ", "\n", "_penstock"])
def test_any_other_name_is_accepted(name: str) -> None:
    assert queue_settings(name, {}).name == name


@pytest.mark.parametrize(
    "retry",
    [
        {"delay_s": -1},
        {"delay_s": math.nan},
        {"delay_s": MAX_DURATION_S + 1},
        {"max_delay_s": -1},
        {"max_delay_s": math.inf},
        {"policy": "list", "delays_s": [1, -1]},
        {"policy": "list", "delays_s": [math.nan]},
        {"policy": "list"},
        {"policy": "list", "delays_s": []},
        {"policy": "fixed", "delays_s": [1]},
        {"policy": "exponential", "delays_s": [1]},
        {"policy": "never"},
        {"policy": None},
        {"delay": 1},
        {"jitter": 1},
        {"delay_s": "1"},
        {"delays_s": 1},
        {1: 2},
    ],
)
def test_a_retry_policy_that_cannot_work_is_refused(retry: dict[str, object]) -> None:
    message = refusal("retry", retry)
    assert message.startswith("queue 'emails': ")
    assert "retry" in message


def test_a_retry_struct_is_checked_like_a_mapping() -> None:
    assert "retry" in refusal("retry", Retry(policy="list"))
    assert "retry" in refusal("retry", Retry(delay_s=-1.0))


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1025, "\ud800"])
def test_a_dead_letter_queue_needs_a_name_that_a_queue_can_have(name: str) -> None:
    assert "dead_letter" in refusal("dead_letter", name)


@pytest.mark.parametrize("value", [b"dead", datetime.date(2024, 1, 1)])
def test_what_is_not_text_is_not_made_text(value: object) -> None:
    assert "dead_letter" in refusal("dead_letter", value)


@pytest.mark.parametrize(
    ("key", "value"), [("dead_letter", object()), ("max_attempts", 10**5000)], ids=["object", "5000 digits"]
)
def test_values_that_cannot_be_stored_or_shown_are_refused_as_configuration(key: str, value: object) -> None:
    assert key in refusal(key, value)


@pytest.mark.parametrize("retry", [{"policy": "never"}, {"delay": 1}])
def test_a_refused_retry_policy_lists_what_is_accepted(retry: dict[str, object]) -> None:
    assert "accepted: " in refusal("retry", retry)


# --- when a failed message comes back ---------------------------------------------------------------


def delays(retry: Retry, count: int, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [retry_delay_s(retry, attempts, rng) for attempts in range(1, count + 1)]


def test_the_default_retries_at_once() -> None:
    assert delays(Retry(), 3) == [0.0, 0.0, 0.0]


def test_fixed_waits_the_same_every_time() -> None:
    assert delays(Retry(delay_s=2.5), 3) == [2.5, 2.5, 2.5]


def test_list_takes_its_delays_in_turn_and_repeats_the_last() -> None:
    assert delays(Retry(policy="list", delays_s=(1.0, 5.0, 30.0)), 5) == [1.0, 5.0, 30.0, 30.0, 30.0]
    assert delays(Retry(policy="list", delays_s=(7.0,)), 2) == [7.0, 7.0]


def test_exponential_doubles_up_to_its_maximum() -> None:
    retry = Retry(policy="exponential", delay_s=1.0, max_delay_s=10.0, jitter=False)
    assert delays(retry, 6) == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_maximum_below_the_first_delay_wins() -> None:
    assert delays(Retry(policy="exponential", delay_s=9.0, max_delay_s=4.0, jitter=False), 2) == [4.0, 4.0]


def test_jitter_is_a_random_part_of_the_delay_from_the_given_generator() -> None:
    retry = Retry(policy="exponential", delay_s=8.0, max_delay_s=8.0)
    many = delays(retry, 2000)
    assert many == delays(retry, 2000)
    assert many != delays(retry, 2000, seed=2)
    assert 0.0 <= min(many) < 0.1
    assert 7.9 < max(many) <= 8.0
    assert 3.8 < sum(many) / len(many) < 4.2


def test_only_exponential_jitters() -> None:
    assert delays(Retry(delay_s=2.0, jitter=True), 2) == [2.0, 2.0]
    assert delays(Retry(policy="list", delays_s=(2.0,), jitter=True), 2) == [2.0, 2.0]


@pytest.mark.parametrize("attempts", [1, 63, 64, 1024, 1_000_000, 10**30])
def test_any_number_of_failures_stays_within_the_maximum(attempts: int) -> None:
    retry = Retry(policy="exponential", delay_s=MAX_DURATION_S, max_delay_s=MAX_DURATION_S, jitter=False)
    assert retry_delay_s(retry, attempts, random.Random(1)) == MAX_DURATION_S


@given(
    delay_s=st.floats(0, MAX_DURATION_S),
    max_delay_s=st.floats(0, MAX_DURATION_S),
    attempts=st.integers(1, 1_000_000),
    seed=st.integers(0, 2**32),
)
def test_every_accepted_policy_gives_a_delay_within_its_bounds(
    delay_s: float, max_delay_s: float, attempts: int, seed: int
) -> None:
    values: dict[str, object] = {
        "retry": Retry(policy="exponential", delay_s=delay_s, max_delay_s=max_delay_s)
    }
    retry = queue_settings("emails", values).retry
    assert 0.0 <= retry_delay_s(retry, attempts, random.Random(seed)) <= max_delay_s
