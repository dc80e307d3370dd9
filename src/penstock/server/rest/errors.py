"""What goes wrong with a request, as one shape and the right status."""

from __future__ import annotations

import msgspec

from penstock.errors import PenstockError
from penstock.server import statuses


class Error(msgspec.Struct, frozen=True):
    """What went wrong: a name for programs, a text for people, and whether the same may work later."""

    error: str
    message: str
    retryable: bool = False
    request_id: str = ""


class ItemError(msgspec.Struct, frozen=True):
    """The same of one item of a batch: its neighbours are not concerned."""

    error: str
    message: str
    retryable: bool = False


class Refusal(PenstockError):
    """What HTTP itself has a status for."""

    def __init__(self, status: int, what: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(what)
        self.status = status
        self.headers = headers


#: status -> the name of an error that has none of its own, and what it means here.
MEANING: dict[int, tuple[str, str]] = {
    400: ("InvalidRequest", "The request is not of its form, or asks for what is not accepted."),
    401: ("Unauthorized", "No key, or one that the server does not know."),
    403: ("Unauthorized", "The key does not allow this."),
    404: ("NotFound", "There is no such queue, message, cursor, key or path."),
    405: ("MethodNotAllowed", "The path has other methods; `Allow` names them."),
    406: ("NotAcceptable", "`Accept` names neither JSON nor MessagePack."),
    409: ("Conflict", "What is there stands against it."),
    413: ("TooLarge", "The body is larger than the server takes."),
    415: ("UnsupportedMediaType", "The body is neither JSON nor MessagePack."),
    429: ("TooManyPolls", "Too many wait; see `Retry-After`."),
    431: ("Refused", "Path, query and headers together are larger than the server takes."),
    500: ("ServerError", "The server failed."),
    503: ("Unavailable", "No room, or the store does not answer; see `Retry-After`."),
}


def not_found(what: str) -> Refusal:
    return Refusal(404, what)


def status_of(error: PenstockError) -> int:
    return error.status if isinstance(error, Refusal) else statuses.status_of(error)


def name_of(error: PenstockError) -> str:
    """As in the error tree; a kind that is internal goes by its public parent."""
    if isinstance(error, Refusal):
        return MEANING[error.status][0]
    kinds = (kind for kind in type(error).__mro__ if kind.__module__ == "penstock.errors")
    return next(kinds, PenstockError).__name__


def item_error(error: PenstockError | None) -> ItemError | None:
    return None if error is None else ItemError(name_of(error), str(error), error.retryable)
