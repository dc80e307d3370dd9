"""Exit codes, and which error ends a command with which: the one table of them."""

from __future__ import annotations

import enum
import shlex

from penstock import errors


class Exit(enum.IntEnum):
    """What a script can tell by the exit code."""

    DONE = 0
    NOTHING = 1
    """Nothing to do, or refused."""
    USAGE = 2
    UNAVAILABLE = 3
    DAMAGED = 4
    DEFECT = 70
    """An error that nobody foresaw: Penstock's fault."""
    INTERRUPTED = 130
    PIPE_CLOSED = 141


#: Every error of Penstock's by its own class: a new one must be given its place here.
EXITS: dict[type[BaseException], Exit] = {
    errors.PenstockError: Exit.NOTHING,
    errors.InvalidConfig: Exit.USAGE,
    errors.InvalidMessage: Exit.USAGE,
    errors.QueueNotFound: Exit.NOTHING,
    errors.QueueAlreadyExists: Exit.NOTHING,
    errors.MessageNotFound: Exit.NOTHING,
    errors.MessageLeased: Exit.NOTHING,
    errors.StaleReceipt: Exit.NOTHING,
    errors.HistoryTruncated: Exit.NOTHING,
    errors.SnapshotNotFound: Exit.NOTHING,
    errors.Unsupported: Exit.NOTHING,
    errors.HookError: Exit.NOTHING,
    errors.Unauthorized: Exit.NOTHING,
    errors.BackendNotInstalled: Exit.UNAVAILABLE,
    errors.BackendUnavailable: Exit.UNAVAILABLE,
    errors.StorageError: Exit.UNAVAILABLE,
    errors.StorageFull: Exit.UNAVAILABLE,
    errors.StoreLocked: Exit.UNAVAILABLE,
    errors.KeyMissing: Exit.UNAVAILABLE,
    errors.StorageCorrupt: Exit.DAMAGED,
    errors.DecryptFailed: Exit.DAMAGED,
    OSError: Exit.UNAVAILABLE,
    KeyboardInterrupt: Exit.INTERRUPTED,
}


def exit_of(error: BaseException) -> Exit:
    """The exit code of an error: its own class's, or that of the nearest class above it."""
    return next((EXITS[cls] for cls in type(error).__mro__ if cls in EXITS), Exit.DEFECT)


def wording(error: BaseException, store: str | None = None) -> str:
    """What went wrong and what to do next, in one line, in the words of the command line.

    `store` is what --store was given: what to do next is to be done there.
    """
    match error:
        case errors.QueueNotFound():
            create = next_step(store, "queues", "create", error.name)
            text = f"queue {error.name!r} does not exist; create it: {create}"
        case errors.QueueAlreadyExists():
            update = next_step(store, "queues", "update", error.name)
            text = f"queue {error.name!r} exists already; change it: {update}"
        case errors.HistoryTruncated():
            commit = next_step(store, "cursors", "commit", "QUEUE", "NAME", str(error.first_seq - 1))
            text = (
                f"the cursor stands at {error.position}, but the journal now starts at {error.first_seq}; "
                f"accept the gap: {commit}"
            )
        case _ if exit_of(error) is Exit.DEFECT:
            text = f"unexpected {type(error).__name__}: {error}; run it again with --debug and report that"
        case _:
            text = str(error) or type(error).__name__
    return text


def next_step(store: str | None, *words: str) -> str:
    """A command that can be pasted into a shell, for the store that was given."""
    return shlex.join(["penstock", *words, *(["--store", store] if store else [])])
