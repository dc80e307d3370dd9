"""The log of an archive: numbered commits, each one file that is there as a whole or not at all.

A commit says which files belong to the archive from then on, which do not any more, and how far each journal
is archived: data and position are one step. Only files that a commit names are ever read, so what a killed
writer leaves behind is not there. `docs/archive.md` has the form of the files.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidConfig, PenstockError, StorageCorrupt, StorageError, StorageFull
from penstock.spark.archive.layout import LOG_FOLDER, ArchiveTable

T = TypeVar("T")

ARCHIVE_VERSION = 1
#: After so many commits the state is written down as a whole, so that reading it does not read all commits.
STATE_EVERY = 50
_MOMENTS = "MOMENTS"
_PATTERN = frozenset("{}[]*?\\")
#: How often a commit is tried again because others, which it does not touch, came first.
MOST_TRIES = 100


class ArchiveFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One Parquet file: whose rows it has, how many, and from where to where.

    Of events and entries, `end_at_ns` and `end_id` are those of the last (the message's, the entry's);
    `bringing` events brought a body, and `repaired` may have, or not. From `first_hole_seq` to
    `last_hole_seq`, some events only stand for others that the store has lost; 0: none does.
    """

    table: ArchiveTable
    name: str
    generation: int
    day: str
    path: str
    rows: int
    size_bytes: int
    first_seq: int = 0
    last_seq: int = 0
    first_at_ns: int = 0
    last_at_ns: int = 0
    end_at_ns: int = 0
    end_id: str = ""
    bringing: int = 0
    repaired: int = 0
    first_hole_seq: int = 0
    last_hole_seq: int = 0


class Position(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One history of a queue or world: how far it is archived, and from when to when it counts.

    `at_ns` and `id` are those of the last event, which tell it from another journal of the same name.
    `began_ns`: when the queue was made, or when this history took the place of the one before; 0: not known,
    so always. `gone_ns`: when the queue was deleted; 0: it is there, or the next history says until when.
    `base_seq`, `base_at_ns`: from there on the state of the queue is known; 0: from its first event on.
    `goes_on`: its journal is that of the history before, and begins where events of it were lost.
    """

    generation: int = 1
    seq: int = 0
    at_ns: int = 0
    id: str = ""
    began_ns: int = 0
    gone_ns: int = 0
    base_seq: int = 0
    base_at_ns: int = 0
    goes_on: bool = False


class Commit(msgspec.Struct, kw_only=True):
    """One step. `queues` and `worlds` have those whose position moved; `settings` checksums of changed ones.

    `gone` are queues that were deleted, and when; one that is in `queues` too was then made anew. `forgotten`
    are files whose deletion is over. `store_id` and `store_place` tell whose history it is.
    """

    version: int = ARCHIVE_VERSION
    number: int = 0
    at_ns: int = 0
    what: Literal["archive", "compact", "clean"] = "archive"
    archive_id: str = ""
    store_id: str = ""
    store_place: str = ""
    added: list[ArchiveFile] = []
    removed: list[str] = []
    forgotten: list[str] = []
    queues: dict[str, Position] = {}
    worlds: dict[str, Position] = {}
    settings: dict[str, int] = {}
    gone: dict[str, int] = {}
    counts: dict[str, int] = {}


class ArchiveState(msgspec.Struct, kw_only=True):
    """What all commits up to `number` amount to. `removed` has when each file was; then it may be deleted.

    `queues` have the last history of each; `earlier` those before it, the oldest first.
    """

    version: int = ARCHIVE_VERSION
    number: int = 0
    at_ns: int = 0
    archive_id: str = ""
    store_id: str = ""
    store_place: str = ""
    files: dict[str, ArchiveFile] = {}
    removed: dict[str, int] = {}
    queues: dict[str, Position] = {}
    earlier: dict[str, list[Position]] = {}
    worlds: dict[str, Position] = {}
    settings: dict[str, int] = {}

    @property
    def gone(self) -> dict[str, int]:
        """Queues that the store does not have any more, and since when."""
        return {name: position.gone_ns for name, position in self.queues.items() if position.gone_ns}

    def histories(self, name: str) -> list[Position]:
        """All of a queue's, the oldest first."""
        return [*self.earlier.get(name, ()), self.queues[name]]

    def journal(self, name: str) -> set[int]:
        """The generations of a queue that are of one journal, which is that of the last."""
        found = set()
        for position in reversed(self.histories(name)):
            found.add(position.generation)
            if not position.goes_on:
                break
        return found

    def after(self, commits: Iterable[Commit]) -> ArchiveState:
        """What it is with these, too; this one stays as it is, for others hold it."""
        state = msgspec.structs.replace(
            self,
            files=dict(self.files),
            removed=dict(self.removed),
            queues=dict(self.queues),
            earlier=dict(self.earlier),
            worlds=dict(self.worlds),
            settings=dict(self.settings),
        )
        for commit in commits:
            state._add(commit)
        return state

    def _add(self, commit: Commit) -> None:
        self.number, self.at_ns = commit.number, commit.at_ns
        self.archive_id = self.archive_id or commit.archive_id
        if commit.store_id:
            self.store_id, self.store_place = commit.store_id, commit.store_place
        self.files.update({file.path: file for file in commit.added})
        for path in commit.removed:
            del self.files[path]
            self.removed[path] = commit.at_ns
        for path in commit.forgotten:
            self.removed.pop(path, None)
        for name, gone_ns in commit.gone.items():
            self.queues[name] = msgspec.structs.replace(self.queues[name], gone_ns=gone_ns)
        for name, position in commit.queues.items():
            was = self.queues.get(name)
            if was is not None and was.generation != position.generation:
                self.earlier[name] = [*self.earlier.get(name, ()), was]
            self.queues[name] = position
        self.worlds.update(commit.worlds)
        self.settings.update(commit.settings)


class Moments(msgspec.Struct, kw_only=True):
    """Up to when the archive has all that happened in each queue, which may be nothing: no commit tells.

    It is of the archive after commit `number`, or later.
    """

    version: int = ARCHIVE_VERSION
    number: int = 0
    queues: dict[str, int] = {}

    def of(self, state: ArchiveState) -> dict[str, int]:
        """What holds of a state; of one that is older than the note, nothing."""
        return self.queues if self.number <= state.number else {}


class ArchiveBusy(PenstockError):
    """Another process is archiving into the same folder."""

    retryable = True


class ArchiveLog:
    """The log in one folder. What it reads and writes is on disk before anything goes by it."""

    def __init__(self, folder: str | os.PathLike[str], clock: Clock | None = None) -> None:
        self.root = Path(checked_folder(folder))
        self._folder = self.root / LOG_FOLDER
        self._clock = clock or SystemClock()
        #: As it was last read: only what came since is read again.
        self._known = ArchiveState()

    def exists(self) -> bool:
        return self._folder.is_dir() and any(self._numbers(".json"))

    def check_own(self) -> None:
        """Refuse to begin an archive among the files of others."""
        try:
            if self._folder.is_dir() or not os.listdir(self.root):
                return
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise InvalidConfig(f"{self.root} is a file; an archive is a folder: name another") from None
        raise InvalidConfig(
            f"{self.root} has files in it, and not those of an archive; name a folder that is empty, or that "
            "is not there yet"
        )

    def known_identity(self) -> str | None:
        """What tells this archive from others; None of one that is not begun yet."""
        path = self._folder / "ID"
        return path.read_text() if path.exists() else None

    def identity(self) -> str:
        """The same, made before anything else of the archive."""
        path = self._folder / "ID"
        if not path.exists():
            self._put(path, uuid.uuid4().hex.encode())
        return path.read_text()

    def read(self) -> ArchiveState:
        """How the archive stands. One that nothing was committed to is empty."""
        for _ in range(MOST_TRIES):
            try:
                return self._read()
            except FileNotFoundError:  # Cleaned away since it was listed: there is a newer state.
                continue
        raise StorageCorrupt(f"the log of the archive in {self.root} has a gap: a commit is missing")

    def _read(self) -> ArchiveState:
        written, numbers = max(self._numbers(".state"), default=0), self._numbers(".json")
        state = self._known
        if state.number > max(written, *numbers, 0):  # An older copy was put in its place.
            state = ArchiveState()
        if written > state.number:
            state = self._load(self._path(written, ".state"), ArchiveState)
        since = sorted(number for number in numbers if number > state.number)
        for expected, number in enumerate(since, start=state.number + 1):
            if number != expected:
                raise FileNotFoundError(self._path(expected, ".json"))
        if since:
            state = state.after([self._load(self._path(number, ".json"), Commit) for number in since])
        self._known = state
        return state

    def commit(self, commit: Commit, still_good: Callable[[ArchiveState], bool]) -> ArchiveState:
        """Add a commit behind the last. Where others came first, `still_good` says whether it still holds."""
        for file in commit.added:
            self._check_there(file)
        for _ in range(MOST_TRIES):
            state = self.read()
            if not still_good(state):
                raise ArchiveBusy(
                    f"the archive in {self.root} has changed meanwhile: another process is at work on it; "
                    "what this one wrote is not part of it: run it again when the other is done"
                )
            commit.number, commit.at_ns = state.number + 1, self._clock.now_ns()
            commit.archive_id = self.identity()
            path = self._path(commit.number, ".json")
            if self._put(path, _encoded(commit)):
                if self._is_passed(commit):
                    path.unlink(missing_ok=True)
                    continue
                state = state.after([commit])
                if commit.number % STATE_EVERY == 0:
                    self._put(self._path(commit.number, ".state"), _encoded(state))
                return state
        raise ArchiveBusy(f"the archive in {self.root} is written to by too many others; try again later")

    def _is_passed(self, commit: Commit) -> bool:
        """Whether the log went on without it: others came first, and theirs of its number is tidied away.

        A state that is written down behind it was made with it only if it came at once; its files tell.
        """
        written = max(self._numbers(".state"), default=0)
        if written < commit.number:
            return False
        state = self.read()
        return not any(file.path in state.files or file.path in state.removed for file in commit.added)

    def _check_there(self, file: ArchiveFile) -> None:
        """What a worker wrote is seen here: else its folder of this name is another one.

        It is as good as new: whoever cleans up leaves it alone until it is part of the archive.
        """
        path = self.root / file.path
        try:
            with suppress(PermissionError):  # It is a worker's, who is somebody else.
                os.utime(path)
            found = path.stat().st_size
        except OSError:
            found = -1
        if found != file.size_bytes:
            raise InvalidConfig(
                f"{path}, which a worker has written, is not here: the folder of an archive is one that the "
                "driver and all workers share, under the same path"
            )

    def moments(self) -> Moments:
        """What was noted last. The next run tells it anew: damage is no matter."""
        try:
            return self._load(self._folder / _MOMENTS, Moments)
        except (FileNotFoundError, StorageCorrupt):
            return Moments()

    def note_moments(self, state: ArchiveState, seen_ns: Mapping[str, int]) -> None:
        """Everything of these queues up to then is in the commits. Of two at once, one is heard."""
        known = self.moments().of(state)
        noted = Moments(number=state.number, queues={**known, **seen_ns})
        self._put(self._folder / _MOMENTS, _encoded(noted), replace=True)

    def tidy(self) -> None:
        """Delete commits that a state, written down before the last one, has in it."""
        states = sorted(self._numbers(".state"))
        if len(states) < 2:
            return
        kept = states[-2]
        for number in [one for one in self._numbers(".json") if one <= kept]:
            self._path(number, ".json").unlink(missing_ok=True)
        for number in [one for one in states if one < kept]:
            self._path(number, ".state").unlink(missing_ok=True)

    def _path(self, number: int, kind: str) -> Path:
        return self._folder / f"{number:020}{kind}"

    def _numbers(self, kind: str) -> list[int]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [int(name[:20]) for name in names if name.endswith(kind) and len(name) == 20 + len(kind)]

    def _load(self, path: Path, kind: type[T]) -> T:
        raw = path.read_bytes()
        body, _, checksum = raw.rstrip(b"\n").rpartition(b"\n")
        try:
            if int(checksum, 16) != zlib.crc32(body):
                raise ValueError("its checksum is another")
            version = msgspec.json.decode(body, type=_Versioned).version
            if version > ARCHIVE_VERSION:
                raise InvalidConfig(
                    f"the archive in {self.root} has version {version}; this Penstock reads {ARCHIVE_VERSION}"
                )
            return msgspec.json.decode(body, type=kind)
        except (ValueError, msgspec.MsgspecError) as error:
            raise StorageCorrupt(
                f"{path} is damaged ({error}); restore it from a copy: nothing was changed"
            ) from error

    def _put(self, path: Path, raw: bytes, *, replace: bool = False) -> bool:
        """Durable and whole under its name, or False: somebody else has it. Never half of it."""
        unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            made_folder(self._folder, self.root)
            with open(unfinished, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            (os.replace if replace else os.link)(unfinished, path)
        except FileExistsError:
            return False
        except OSError as error:
            raise storage_error(error, path) from error
        finally:
            unfinished.unlink(missing_ok=True)
        sync_folder(self._folder)
        return True


class _Versioned(msgspec.Struct):
    version: int


def _encoded(value: Commit | ArchiveState | Moments) -> bytes:
    body = msgspec.json.encode(value)
    return body + b"\n%08x\n" % zlib.crc32(body)


def checked_folder(folder: str | os.PathLike[str]) -> str:
    """A folder that driver and workers see under the same name; object stores are refused, by name."""
    text = os.fspath(folder)
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    elif "://" in text:
        raise InvalidConfig(
            f"an archive is a folder that the driver and all workers see, not {text!r:.80}: it needs files "
            "that are created at most once under a name, which object stores do not promise; mount it, or "
            "copy the archive there"
        )
    path = os.path.abspath(os.path.expanduser(text))
    if _PATTERN.intersection(path):
        raise InvalidConfig(
            f"{path!r:.80}: Spark takes {{ }} [ ] * ? and \\ for patterns; use another folder"
        )
    return path


def made_folder(folder: Path, root: Path) -> None:
    """With those above it, up to the root, so that a power cut does not take them away."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    at = folder
    while at != root.parent:
        at = at.parent
        sync_folder(at)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def storage_error(error: OSError, path: Path) -> StorageError:
    """What the system says of a file, as one of our errors."""
    kind = StorageFull if error.errno in (28, 122) else StorageError
    return kind(f"{path} cannot be written: {error.strerror}")
