"""States and legal transitions in Spark's SQL, all of them made from what `penstock.message` says.

Nothing is decided here: `state_after` is called for every case that an event can be, and its answers become
the expression; the table of transitions becomes a set of texts. Expressions are texts rather than columns of
the API, of which each part is a call to Java.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as fn

from penstock.event import HOLE, NOBODY, Event, Kind
from penstock.message import STORED_STATES, TRANSITIONS, State, format_id, state_after

#: Not in this queue: not yet, or not any more.
GONE = "gone"
#: What came before is not known: history starts here.
UNKNOWN = "unknown"
#: What an event leads to that no version ever recorded.
IMPOSSIBLE = "impossible"
NOBODY_ID = format_id(NOBODY)
#: Events that a body comes by, or comes anew.
BRINGING = (Kind.ENQUEUED, Kind.UPDATED, Kind.REPAIRED)

_AT_NS = 2
#: The times that an event may set, seen from when it happens: an example, and how to tell it.
_DUES = {0: "due_ns = 0", _AT_NS: "due_ns <> 0 AND due_ns <= at_ns", _AT_NS + 1: "due_ns > at_ns"}
_WORDS = ("", HOLE, *map(str, State))


def listed(texts: Iterable[str]) -> str:
    """Names of states and kinds as SQL has lists: none of them has a quotation mark in it."""
    return "(" + ", ".join(f"'{text}'" for text in texts) + ")"


_EXTRAS = {
    **{word: f"extra = '{word}'" for word in _WORDS},
    "the name of a queue": f"extra NOT IN {listed(_WORDS)}",
}

#: Time makes the one into the other, and no event tells.
WAITING = listed(("delayed", "ready"))
#: Those that a message can be found in.
STORED = listed(map(str, STORED_STATES))


def name_of(state: State | None) -> str:
    return GONE if state is None else str(state)


def _answer(kind: Kind, due_ns: int, extra: str) -> str:
    try:
        return name_of(state_after(Event(1, _AT_NS, kind, NOBODY, 0, due_ns, "", "", extra)))
    except ValueError:  # A repair that left a message in no state that there is.
        return IMPOSSIBLE


def _after(kind: Kind) -> str:
    """The answer for one kind, which asks for no more than the answer depends on."""
    answers = {(due, word): _answer(kind, due, word) for due in _DUES for word in _EXTRAS}
    dues = [due for due in _DUES if any(answers[due, word] != answers[0, word] for word in _EXTRAS)]
    words = [word for word in _EXTRAS if any(answers[due, word] != answers[due, ""] for due in _DUES)]
    cases = ""
    # The most particular first: the first case that fits counts.
    for due in [*dues, 0]:
        for word in [*words, ""]:
            tests = [*([_DUES[due]] if due else []), *([_EXTRAS[word]] if word else [])]
            if tests:
                cases += f" WHEN {' AND '.join(tests)} THEN '{answers[due, word]}'"
    rest = f"'{answers[0, '']}'"
    return f"CASE{cases} ELSE {rest} END" if cases else rest


#: Where an event leaves its message: a state, or `GONE`. Of the columns of the table `events`.
AFTER = (
    "CASE kind"
    + "".join(f" WHEN '{kind}' THEN {_after(kind)}" for kind in Kind)
    + f" ELSE '{IMPOSSIBLE}' END"
)

#: Every step that a message may take, one without a known beginning included.
LEGAL_STEPS = frozenset(
    f"{one} {kind} {name_of(after)}"
    for (before, kind), afters in TRANSITIONS.items()
    for after in afters
    # A delay may have passed since, and then the clock may have been set back.
    for one in (name_of(before), UNKNOWN, *([str(State.DELAYED)] if before == State.READY else []))
)
#: Whether an event was allowed: of the columns `was`, `kind` and `state`.
IS_LEGAL = f"concat_ws(' ', was, kind, state) IN {listed(sorted(LEGAL_STEPS))}"


def after() -> Column:
    return fn.expr(AFTER)
