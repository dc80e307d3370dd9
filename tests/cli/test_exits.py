"""Exit codes that scripts can use: one table, complete, and what people read beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import penstock
from penstock import errors
from penstock.cli.exits import EXITS, Exit, exit_of, wording
from tests.cli.calling import Cli
from tests.docs.pages import DOCS, table

ALL = [
    cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.PenstockError)
]


def test_every_error_has_its_own_place_in_the_table() -> None:
    assert [cls.__name__ for cls in ALL if cls not in EXITS] == []


def test_the_table_is_the_one_in_the_documentation() -> None:
    shown = {int(row["code"]): row["errors"] for row in table(DOCS / "cli.md", "Exit codes")}
    assert set(shown) == {code.value for code in Exit}
    for cls in ALL:
        assert f" {cls.__name__}," in f" {shown[EXITS[cls]]},"


def test_an_error_below_one_of_the_table_counts_as_that() -> None:
    class Special(errors.StorageCorrupt):
        """A backend's own."""

    assert exit_of(Special("x")) is Exit.DAMAGED
    assert exit_of(ValueError("x")) is Exit.DEFECT


@pytest.mark.parametrize("cls", ALL)
def test_no_error_speaks_of_python_calls(cls: type[errors.PenstockError]) -> None:
    made: dict[type, Callable[[], Exception]] = {
        errors.MessageNotFound: lambda: errors.MessageNotFound("id", "q"),
        errors.MessageLeased: lambda: errors.MessageLeased("id", "q"),
        errors.HistoryTruncated: lambda: errors.HistoryTruncated("cursor 'x'", 1, 5),
        errors.Unsupported: lambda: errors.Unsupported("throttles", "throttling", "embedded"),
        errors.BackendNotInstalled: lambda: errors.BackendNotInstalled("redis", "redis"),
    }
    said = wording(made.get(cls, lambda: cls("name"))())
    assert not any(call in said for call in ("create_queue(", "update_queue(", "commit(", "\n"))


def test_a_name_in_advice_can_be_pasted_into_a_shell() -> None:
    said = wording(errors.QueueNotFound("a b; rm -rf /"))
    assert said.endswith("penstock queues create 'a b; rm -rf /'")


def test_a_damaged_store_is_4(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.backends.base import CheckReport, Problem

    report = CheckReport([Problem("ready row is missing", "emails", "message 7")], 1, 1, 1)
    monkeypatch.setattr(penstock.Penstock, "check", lambda self, *a, **k: report)
    answer = cli("check", code=4)
    assert "ready row is missing" in answer.out
    assert "1 problems; to mend what can be mended: penstock check --repair" in answer.out
    assert cli("check", "--json", code=4).object["problems"][0]["where"] == "message 7"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StorageCorrupt("the store is damaged: restore a backup of it"), 4),
        (errors.DecryptFailed("a record does not decrypt"), 4),
        (errors.KeyMissing("key 'main' is not available: set PENSTOCK_KEY_MAIN"), 3),
        (errors.StorageFull("no room"), 3),
        (errors.StoreLocked("another process owns the store: stop it first"), 3),
        (errors.BackendNotInstalled("redis", "redis"), 3),
        (OSError(13, "Permission denied", "/x"), 3),
        (RuntimeError("surprise"), 70),
    ],
)
def test_errors_of_the_store_end_in_a_line_and_their_code(
    error: Exception, code: int, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: object) -> None:
        raise error

    monkeypatch.setattr(penstock.Penstock, "queues", failing)
    answer = cli("queues", "list", code=code)
    assert answer.err.startswith("penstock: ")
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err
    with_trace = cli("queues", "list", "--debug", code=code)
    assert "Traceback" in with_trace.err
    assert with_trace.err.splitlines()[-1] == answer.err.strip()


@pytest.mark.parametrize("form", [["--store", "penstock-data"], ["--store=penstock-data"]])
def test_what_to_do_next_is_to_be_done_on_the_same_store(form: list[str], cli: Cli) -> None:
    answer = cli("stats", "nope", *form, code=1)
    assert answer.err.endswith("create it: penstock queues create nope --store penstock-data\n")
    answer = cli("move", "emails", "nope", "01a1e314-7a5c-72f1-8a4d-3868221002be", *form, code=1)
    assert answer.err.endswith("create it: penstock queues create nope --store penstock-data\n")
    assert cli(*form, "stats", "nope", code=1).err.endswith("nope --store penstock-data\n")
