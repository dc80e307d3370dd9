"""Where an archive goes on: journals that grew, were cut off in front, or are not the same any more."""

from __future__ import annotations

import pytest

from penstock.backends.bulk import Extent
from penstock.spark.archive.log import Position
from penstock.spark.archive.ranges import ArchiveGap, Seen, Started, after_hole, started, worlds_started

#: Event 7 of message m, at 10, of a queue that was made at 1.
WAS = Position(seq=7, at_ns=10, id="m", began_ns=1)
LAST = (10, "m")
NOW_NS = 99


def _seen(first: int, last: int, event: tuple[int, str] | None = None, made_ns: int = 1) -> Seen:
    return Seen(Extent(first, last, last - first + 1), event, made_ns)


def _started(seen: Seen, was: Position | None = None, *, accept_gaps: bool = False) -> Started:
    known = {} if was is None else {"q": was}
    return started({"q": seen}, known, NOW_NS, accept_gaps=accept_gaps)


def test_a_journal_that_is_whole_starts_with_its_first_event() -> None:
    assert _started(_seen(1, 9)) == ({"q": Position(seq=0, began_ns=1)}, [], [])


def test_a_journal_that_was_cut_off_before_is_archived_with_how_its_queue_stands_and_when() -> None:
    begun = _started(_seen(5, 9))
    assert begun.positions == {"q": Position(seq=4, began_ns=1, base_seq=9, base_at_ns=NOW_NS)}
    assert begun.based == ["q"]


@pytest.mark.parametrize(
    "seen", [_seen(5, 9, LAST), _seen(8, 9), _seen(8, 7)], ids=["there", "removed", "all"]
)
def test_a_journal_goes_on_after_the_last_event_that_was_archived(seen: Seen) -> None:
    assert _started(seen, WAS) == ({"q": WAS}, [], [])


@pytest.mark.parametrize(
    "seen",
    [
        _seen(1, 3),
        _seen(1, 9, (10, "other")),
        _seen(1, 9, (11, "m")),
        _seen(1, 0, made_ns=20),
        _seen(8, 9, made_ns=20),
        _seen(20, 30, made_ns=20),
    ],
    ids=["it ends before", "another message", "another time", "made anew", "and cut off", "far off"],
)
def test_another_journal_of_the_same_name_begins_another_history(seen: Seen) -> None:
    begun = _started(seen, WAS)
    assert (begun.anew, begun.positions["q"].generation) == (["q"], 2)
    assert begun.positions["q"].seq == seen.extent.first_seq - 1


def test_a_history_begins_when_its_queue_was_made_or_else_after_the_last_event_of_the_one_before() -> None:
    assert _started(_seen(1, 3, made_ns=20), WAS).positions["q"].began_ns == 20
    assert _started(_seen(1, 9, (11, "m")), WAS).positions["q"].began_ns == 11


def test_a_queue_that_was_empty_when_it_was_archived_is_known_by_when_it_was_made() -> None:
    empty = Position(began_ns=5)
    assert _started(_seen(1, 3, made_ns=5), empty).anew == []
    assert _started(_seen(1, 3, made_ns=6), empty).anew == ["q"]


def test_a_queue_that_was_gone_and_is_back_as_it_was_goes_on() -> None:
    gone = Position(seq=7, at_ns=10, id="m", began_ns=1, gone_ns=15)
    assert _started(_seen(1, 9, LAST), gone) == ({"q": WAS}, [], [])
    assert _started(_seen(8, 9), gone).anew == ["q"]


def test_events_that_were_removed_before_they_were_archived_stop_it_with_their_numbers() -> None:
    with pytest.raises(ArchiveGap, match="events 8 to 19 were removed"):
        _started(_seen(20, 30), WAS)


def test_a_gap_that_is_accepted_begins_another_history() -> None:
    begun = _started(_seen(20, 30), WAS, accept_gaps=True)
    expected = Position(generation=2, seq=19, began_ns=11, base_seq=30, base_at_ns=NOW_NS)
    assert begun == ({"q": expected}, ["q"], ["q"])


def test_a_journal_goes_on_after_a_hole_as_another_history_that_is_known_from_now_on() -> None:
    expected = Position(
        generation=2, seq=7, at_ns=10, id="m", began_ns=11, base_seq=30, base_at_ns=NOW_NS, goes_on=True
    )
    assert after_hole(WAS, 30, NOW_NS, known=True) == expected


def test_a_history_that_no_commit_has_is_not_followed_by_another_because_of_a_hole() -> None:
    new = Position(began_ns=1)
    assert after_hole(new, 30, NOW_NS, known=False) == Position(began_ns=1, base_seq=30, base_at_ns=NOW_NS)


def test_worlds_go_on_after_what_retention_has_left() -> None:
    known = {"w": Position(seq=3), "again": Position(seq=9), "other": Position(seq=2, at_ns=1, id="e")}
    seen = {
        "w": _seen(6, 8),
        "again": _seen(1, 2),
        "new": _seen(1, 1),
        "other": _seen(1, 5, (1, "f")),
    }
    worlds = {name: one._replace(made_ns=0) for name, one in seen.items()}
    assert worlds_started(worlds, known) == {
        "w": Position(seq=5),
        "again": Position(generation=2),
        "new": Position(),
        "other": Position(generation=2),
    }
