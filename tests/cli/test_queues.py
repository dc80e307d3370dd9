"""Queues by command: settings as they are typed, and deletion that asks."""

from __future__ import annotations

import pytest

from penstock import QueueSettings, Retry
from tests.cli.calling import Cli


def settings_of(cli: Cli, name: str) -> QueueSettings:
    return cli.through_api(lambda ps: next(queue for queue in ps.queues() if queue.name == name))


def test_create_takes_every_setting_in_human_units(cli: Cli) -> None:
    cli("queues", "create", "dead")
    shown = cli(
        "queues", "create", "jobs", "--fifo", "--lease", "1m30s", "--max-attempts", "3", "--retry",
        "exponential:1s:10m:exact", "--dead-letter", "dead", "--retention", "2h", "--dead-retention", "7d",
        "--dedup-window", "250ms", "--journal-retention", "none", "--journal-max-bytes", "64KiB",
        "--annotations", '{"team": "mail"}', "--delay", "1m",
    ).out  # fmt: skip
    assert shown == "queue 'jobs' created\n"
    assert settings_of(cli, "jobs") == QueueSettings(
        name="jobs",
        fifo=True,
        delay_s=60,
        lease_s=90,
        max_attempts=3,
        retry=Retry(policy="exponential", delay_s=1, max_delay_s=600, jitter=False),
        dead_letter="dead",
        retention_s=7200,
        dead_retention_s=7 * 86_400,
        dedup_window_s=0.25,
        journal_retention_s=None,
        journal_max_bytes=65_536,
        annotations={"team": "mail"},
    )


def test_update_changes_what_is_named_and_nothing_else(cli: Cli) -> None:
    cli("queues", "create", "dead")
    cli("queues", "update", "emails", "--dead-letter", "dead", "--retry", "list:5s,1m")
    found = cli("queues", "update", "emails", "--dead-letter", "none", "--json").object
    assert (found["dead_letter"], found["retry"]["delays_s"]) == (None, [5.0, 60.0])
    assert "updated: lease_s" in cli("queues", "update", "emails", "--lease", "5").out


def test_annotations_are_a_json_object_of_texts(cli: Cli) -> None:
    for given in ("secret", '{"secret": 1}', '["secret"]', '{"secret'):
        err = cli("queues", "update", "emails", "--annotations", given, code=2).err
        assert "not a JSON object of texts" in err
        assert "secret" not in err


def test_update_of_nothing_is_a_usage_error(cli: Cli) -> None:
    assert "nothing to change" in cli("queues", "update", "emails", code=2).err


def test_list_shows_settings_as_they_can_be_typed(cli: Cli) -> None:
    cli("queues", "create", "jobs", "--retry", "exponential:1s:10m", "--fifo", "--delay", "90s")
    header, emails, jobs = cli("queues", "list").lines
    assert header.split()[:2] == ["QUEUE", "LEASE"]
    assert emails.split()[0] == "emails"
    assert "exponential:1s:10m" in jobs
    assert "fifo after 1m 30s" in jobs
    assert [queue["name"] for queue in cli("queues", "list", "--json").objects] == ["emails", "jobs"]


@pytest.mark.parametrize(
    "text", ["fixed:0s", "fixed:1.25s", "exponential:1s:1h", "exponential:2s:61s:exact", "list:5s,1h5m3s"]
)
def test_a_retry_policy_reads_as_it_is_shown(text: str) -> None:
    from penstock.cli.columns import retry_text
    from penstock.cli.rows import row
    from penstock.cli.values import retry

    assert retry(retry_text(row(retry(text)))) == retry(text)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["create", "emails"], 1, "queue 'emails' exists already; change it: penstock queues update emails"),
        (["create", "x" * 1025], 2, "1025 bytes; accepted: 1 to 1024"),
        (["create", "x", "--lease", "soon"], 2, "'soon' is not a duration; accepted: 30, 1.5s, 250ms"),
        (["create", "x", "--lease", "0"], 2, "lease_s is 0.0; accepted: 0.001 to"),
        (["create", "x", "--max-attempts", "many"], 2, "'many' is not a whole number"),
        (["create", "x", "--retry", "sometimes"], 2, "'sometimes' is not a retry policy; accepted: fixed:5s"),
        (["create", "x", "--retry", "exponential:1s:2s:3s"], 2, "is not a retry policy"),
        (["create", "x", "--dead-letter", "nowhere"], 2, "nowhere"),
        (["create", "x", "--journal-max-bytes", "much"], 2, "'much' is not a size; accepted: bytes"),
        (["create", "x", "--backend", "far"], 2, "backend 'far' is not configured; configured: default"),
        (["update", "gone", "--lease", "1"], 1, "does not exist; create it: penstock queues create gone"),
        (["delete", "gone", "--yes"], 1, "queue 'gone' does not exist"),
        (["create"], 2, "queues create: Missing argument 'NAME' (see penstock queues create --help)"),
        (["create", "x", "--nope"], 2, "No such option: --nope"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_that_says_what_to_do(
    arguments: list[str], code: int, said: str, cli: Cli
) -> None:
    answer = cli("queues", *arguments, code=code)
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert answer.out == ""


def test_delete_is_refused_without_a_terminal_unless_told_yes(cli: Cli) -> None:
    cli("enqueue", "emails", "hello")
    answer = cli("queues", "delete", "emails", code=2)
    assert "there is no terminal to ask on; add --yes" in answer.err
    assert cli("queues", "delete", "emails", "--yes").out == "queue 'emails' deleted, with 1 messages\n"
    assert cli("queues", "list", "--json").raw == b""


def test_delete_by_json_says_what_went(cli: Cli) -> None:
    found = cli("queues", "delete", "emails", "-y", "--json").object
    assert found == {"queue": "emails", "deleted": True, "messages": 0}
