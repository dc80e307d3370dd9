"""The tables and the diagram of docs/semantics.md say what the code says."""

from __future__ import annotations

import re

import pytest

from penstock import errors, message
from penstock.backends.embedded import sweep
from penstock.backends.embedded.bulk import SLICE
from penstock.backends.embedded.housekeeper import SWEEP_EVERY_S
from penstock.codec.entry import MAX_VECTOR
from penstock.event import Kind
from penstock.message import STORED_STATES, TRANSITIONS, State
from penstock.scheduling.fairness import STARVATION_BOUND
from penstock.settings import MAX_DURATION_S, QueueSettings
from tests.docs.pages import DOCS, blocks, section, table

PAGE = DOCS / "semantics.md"
ANY = [*(str(state) for state in STORED_STATES), "none"]
Arrow = tuple[str, str, str]


def name(state: State | None) -> str:
    return "none" if state is None else str(state)


def arrows_of_code() -> set[Arrow]:
    return {
        (name(old), str(kind), name(new)) for (old, kind), states in TRANSITIONS.items() for new in states
    }


def arrows_of_table() -> list[Arrow]:
    return [
        (old, row["event"], new)
        for row in table(PAGE, "Transitions")
        for old in _states(row["from"])
        for new in _states(row["to"])
    ]


def _states(cell: str) -> list[str]:
    return ANY if cell == "any" else cell.split(", ")


def arrows_of_diagram() -> list[Arrow]:
    (diagram,) = blocks(PAGE, "mermaid")
    found = re.findall(r"^ +(\S+) --> (\S+): (\w+)$", diagram.text, re.MULTILINE)
    assert len(found) == len(diagram.text.splitlines()) - 1
    return [(old.replace("[*]", "none"), event, new.replace("[*]", "none")) for old, new, event in found]


def test_the_table_of_transitions_has_exactly_those_of_the_code() -> None:
    assert set(arrows_of_table()) == arrows_of_code()


def test_no_transition_is_named_twice() -> None:
    assert len(arrows_of_table()) == len(set(arrows_of_table()))
    assert len(arrows_of_diagram()) == len(set(arrows_of_diagram()))


def test_every_arrow_of_the_diagram_is_legal() -> None:
    by_time = ("delayed", "time", "ready")
    assert by_time in arrows_of_diagram()
    assert {*arrows_of_diagram()} - {by_time} <= arrows_of_code()


def test_every_event_but_administration_is_in_the_diagram() -> None:
    shown = {event for _, event, _ in arrows_of_diagram()}
    left_out = {Kind.UPDATED, Kind.MOVED, Kind.PURGED, Kind.DROPPED, Kind.REPAIRED}
    assert {str(kind) for kind in Kind} - shown == {str(kind) for kind in left_out}


def test_every_state_is_explained() -> None:
    assert [row["state"] for row in table(PAGE, "States")] == [str(state) for state in State]


def test_the_table_of_errors_is_the_tree_of_the_code() -> None:
    tree = {
        cls.__name__: (cls.__mro__[1].__name__, cls.retryable)
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.PenstockError)
    }
    shown = {
        row["error"]: (row["below"] or "Exception", row["retryable"] == "yes")
        for row in table(PAGE, "Errors")
    }
    assert shown == tree


@pytest.mark.parametrize(
    ("what", "numbers"),
    [
        ("names", [1, message.MAX_NAME_BYTES]),
        ("payload", [message.MAX_PAYLOAD_BYTES]),
        ("headers of", [message.MAX_HEADERS_BYTES]),
        ("priority", [0, message.MAX_PRIORITY, message.DEFAULT_PRIORITY]),
        ("weight", [1, message.MAX_WEIGHT, 1]),
        ("throttle", [message.MAX_THROTTLE_KEYS]),
        ("vector", [1, MAX_VECTOR]),
    ],
)
def test_the_limits_are_those_of_the_code(what: str, numbers: list[int]) -> None:
    (row,) = [row for row in table(PAGE, "Limits of what is accepted") if row["what"].startswith(what)]
    shown = [int(digits) for digits in re.findall(r"(?<![-.])\b\d+\b", row["limit"])]
    assert shown == numbers


def test_the_numbers_in_the_text_are_those_of_the_code() -> None:
    assert MAX_DURATION_S == 10 * 365 * 86_400
    assert QueueSettings(name="q").journal_retention_s == 7 * 86_400
    assert STARVATION_BOUND == 20
    assert "one in twenty" in section(PAGE, "Order")
    assert f"{sweep.SLICE * sweep.SLICES_PER_READ:,} delays" in section(PAGE, "Time")
    assert f"every {SWEEP_EVERY_S * 1000:.0f} ms" in section(PAGE, "Time")
    assert f"slices of {SLICE} " in section(PAGE, "Operations")
