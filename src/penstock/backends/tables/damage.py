"""What cannot be read: raised with its place, or told and set aside, as the request says."""

from __future__ import annotations

from collections.abc import Callable

from penstock.backends.bulk import Damage
from penstock.errors import StorageCorrupt

Told = Callable[[Damage], None]


class Unreadable(Exception):
    """Rows of a batch that do not decode, by their places in it, and why: the batch is made without them."""

    def __init__(self, errors: dict[int, StorageCorrupt]) -> None:
        super().__init__(len(errors))
        self.errors = errors


class Damages:
    """What becomes of damage in one queue or world."""

    def __init__(self, what: str, name: str, told: Told | None) -> None:
        self._what = what
        self.name = name
        #: None: damage fails the read.
        self.told = told

    def found(self, where: str, error: StorageCorrupt, rows: int = 1) -> None:
        """Raise it with its place, or tell."""
        if self.told is None:
            raise type(error)(f"{self._what} {self.name!r}, {where}: {error}") from error
        self.told(Damage(self.name, where, str(error), rows))


def unheard(damage: Damage) -> None:
    """Set aside, and nobody asked what."""


def missing(damages: Damages, what: str, first: int, end: int) -> None:
    """Tell of events or entries that are not where they should be, if there are any."""
    if first < end:
        error = StorageCorrupt(f"{what} {first} to {end - 1} are not there; run check with repair")
        damages.found(f"seq {first}", error, end - first)
