"""Nothing that is stored can steer a terminal, and what is typed means what it says."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import text, values
from penstock.cli.columns import preview
from penstock.cli.rows import bytes_field, bytes_of
from tests.cli.calling import Cli

HOSTILE = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202egnp.exe\r\n\x08\u2028end"


def steers(shown: str) -> list[str]:
    """Characters that a terminal would obey."""
    return [
        char
        for char in shown
        if char not in "\n\u200c\u200d" and unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs")
    ]


@given(st.text())
def test_neutral_text_never_steers(given_text: str) -> None:
    assert steers(text.neutral(given_text)) == []
    assert "\n" not in text.neutral(given_text)
    assert steers(text.neutral_block(given_text).replace("\t", "")) == []


@given(st.text(alphabet=st.characters(exclude_categories=["C", "Z"])))
def test_ordinary_text_stays_as_it_is(given_text: str) -> None:
    assert text.neutral(given_text) == given_text


@given(st.dictionaries(st.text(), st.text()))
def test_neutral_json_is_the_same_json(value: dict[str, str]) -> None:
    line = text.neutral_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(line) == value
    assert steers(line) == []


@given(st.binary())
def test_bytes_are_shown_as_text_only_if_all_of_it_is(raw: bytes) -> None:
    shown = text.shown_bytes(raw)
    assert steers(shown.replace("\t", "")) == []
    assert shown.encode() == raw or shown.startswith("base64:")


@given(st.binary())
def test_json_gives_the_bytes_back(raw: bytes) -> None:
    assert bytes_of(bytes_field("payload", raw), "payload") == raw


@given(st.binary(max_size=2000))
def test_a_preview_is_short_and_safe(raw: bytes) -> None:
    shown = text.neutral(preview("payload")(bytes_field("payload", raw)))
    assert len(preview("payload")(bytes_field("payload", raw))) <= 60
    assert steers(shown) == []


def test_writing_with_joiners_is_text() -> None:
    for word in ("می‌خواهم", "👩‍💻", "a b", "漢字"):
        assert text.as_text(word.encode()) == word


def test_hostile_names_and_payloads_are_harmless_in_every_listing(cli: Cli) -> None:
    name = f"q{HOSTILE}"
    cli("queues", "create", name, "--dead-letter", "none")
    cli("enqueue", name, HOSTILE, "--key", HOSTILE, "-H", f"a={HOSTILE}", "--dedup-id", HOSTILE)
    cli("journal", "append", name, HOSTILE, HOSTILE, "--label", HOSTILE)
    cli("state", "put", HOSTILE, HOSTILE)
    cli("cursors", "open", name, HOSTILE)
    receipt = cli("lease", name, "--consumer", HOSTILE, "--json").object["receipt"]
    shown = [cli("list", name, "-s", "leased"), cli("due")]
    cli("nack", name, receipt, "--reason", HOSTILE, "--delay", "0")
    message_id = cli("peek", name, "--json").object["id"]
    shown += [
        cli(*words, *form, code=None)
        for form in ((), ("--json",))
        for words in (
            ("queues", "list"), ("stats",), ("stats", name), ("peek", name), ("list", name), ("events", name),
            ("get", name, message_id), ("journal", "scan", name), ("journal", "stats", name), ("due",),
            ("state", "get", HOSTILE), ("cursors", "list", name), ("health",), ("check",),
            ("lease", "no\x1b[2J"), ("cursors", "read", name, "no\x1b[2J"), ("lease", name),
            ("reject", name, "no\x1b[2J"), ("purge", name, "-y"), ("queues", "delete", name, "-y"),
        )
    ]  # fmt: skip
    for answer in shown:
        assert steers(answer.out) == []
        assert steers(answer.err) == []


def test_hostile_payloads_are_marked_base64_for_people(cli: Cli) -> None:
    message_id = cli("enqueue", "emails", "\x1b[2Jboo").out.strip()
    assert "base64:G1sySmJvbw==" in cli("get", "emails", message_id).out
    assert cli("get", "emails", message_id, "--json").object["payload"] == "\x1b[2Jboo"


def test_markup_in_a_name_is_only_text(cli: Cli) -> None:
    cli("queues", "create", "[bold red]:smile:[/]")
    assert "[bold red]:smile:[/]" in cli("queues", "list").out


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [
        ("30", 30),
        ("1.5s", 1.5),
        ("250ms", 0.25),
        ("10m", 600),
        ("1h30m", 5400),
        ("2 h", 7200),
        ("7d", 604_800),
        ("0", 0),
    ],
)
def test_durations(typed: str, seconds: float) -> None:
    assert values.duration(typed) == pytest.approx(seconds)


@pytest.mark.parametrize("typed", ["", "s", "-5", "1y", "1e3", "ten", "5 apples", "1.2.3"])
def test_what_is_no_duration(typed: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a duration; accepted"):
        values.duration(typed)


@pytest.mark.parametrize(
    ("typed", "at"),
    [
        ("2026-11-16", datetime(2026, 11, 16, tzinfo=UTC)),
        ("2026-11-16T08:30:00.25Z", datetime(2026, 11, 16, 8, 30, 0, 250_000, tzinfo=UTC)),
        ("2026-11-16T08:30:00+02:00", datetime(2026, 11, 16, 6, 30, tzinfo=UTC)),
        ("1763280000000000000", datetime(2025, 11, 16, 8, tzinfo=UTC)),
    ],
)
def test_moments(typed: str, at: datetime) -> None:
    assert values.moment(typed) == round(at.timestamp() * 1000) * 10**6


def test_a_duration_is_a_moment_ago() -> None:
    assert 3599 * 10**9 < values.moment("now") - values.moment("1h") < 3601 * 10**9


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (0.0421, "42ms"),
        (1, "1s"),
        (12.34, "12.3s"),
        (200, "3m 20s"),
        (3600, "1h"),
        (183_600, "2d 3h"),
        (-90, "-1m 30s"),
        (None, ""),
    ],
)
def test_spans(seconds: float | None, shown: str) -> None:
    assert text.span(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5 TiB")]
)
def test_sizes(count: int, shown: str) -> None:
    assert text.size(count) == shown


def test_times_are_iso_utc() -> None:
    assert text.iso(1_763_280_000_123_456_789) == "2025-11-16T08:00:00.123Z"
    assert text.iso(0) is None
    assert text.iso(2**63) == "2262-04-11T23:47:16.854Z"
    assert text.iso(10**24) is None
