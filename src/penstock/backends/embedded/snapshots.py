"""Snapshots of a store, as folders below its own: taken by the owner, read, renewed and released by anyone.

A snapshot is a folder `snapshots/<id>` with the database as it was, mostly as second names of files that the
store has too, in `store`, and a file `LEASE` that says when it was taken, and whose time of modification is
when the snapshot ends. Whoever reads moves that time on; whoever is done removes the folder. Nobody has to be
asked for either, so that nothing is left for ever of readers that were killed, and nothing is taken from
readers of a store that has no owner now.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import socket
from pathlib import Path

import msgspec

from penstock.backends.bulk import Snapshot
from penstock.backends.embedded.engine import Engine
from penstock.backends.embedded.sweep import apply_waiting
from penstock.clock import NS_PER_S, Clock, to_ns
from penstock.errors import InvalidMessage, SnapshotNotFound, StorageError, StorageFull, Unsupported
from penstock.message import format_id, parse_id
from penstock.settings import MAX_DURATION_S

log = logging.getLogger("penstock")

READER = "rocksdb"
FOLDER = "snapshots"
STORE = "store"
LEASE = "LEASE"
#: Behind the name of a snapshot that is being removed: nobody opens it any more.
_GOING = ".going"

#: How often the owner looks for snapshots that have ended.
LOOK_EVERY_NS = 10 * NS_PER_S


class Snapshots:
    """Those of one store, for its owner."""

    def __init__(self, engine: Engine, path: str | None, backend: str) -> None:
        self._engine = engine
        self._folder = None if path is None else Path(os.path.realpath(path), FOLDER)
        self._backend = backend
        self._next_look_ns = 0

    def take(self, lifetime_s: float, chosen: str | None = None) -> Snapshot:
        """Everything as it stands, or as it stood when the snapshot of that id was taken.

        The lock is held meanwhile: what is in it is then in tables, synced.
        """
        if self._folder is None:
            raise Unsupported("take_snapshot of a store in memory", "bulk_read", self._backend, (READER,))
        _check_lifetime(lifetime_s)
        if chosen is not None:
            parse_id(chosen)  # It becomes the name of a folder.
        engine = self._engine
        engine.check_usable()
        apply_waiting(engine)
        with engine.lock:
            engine.check_usable()
            at_ns = engine.clock.now_ns()
            snapshot_id = chosen or format_id(engine.ids.one(at_ns))
            place = self._folder / snapshot_id
            found = Snapshot(
                reader=READER, id=snapshot_id, place=str(place), at_ns=at_ns, lifetime_s=float(lifetime_s)
            )
            if chosen is not None and (taken := _taken(found, engine.clock)) is not None:
                return taken
            try:
                self._make(place, at_ns, at_ns + to_ns(lifetime_s))
                engine.kv.checkpoint(str(place / STORE))
            except BaseException as error:
                remove(place)
                if isinstance(error, OSError):
                    raise _refused(place, error) from error
                raise
        log.info("snapshot id=%s lifetime_s=%g", snapshot_id, lifetime_s)
        return found

    def _make(self, place: Path, at_ns: int, until_ns: int) -> None:
        """The lease comes first: a folder that is left half made ends too."""
        place.parent.mkdir(mode=0o700, exist_ok=True)
        place.mkdir(mode=0o700)
        (place / LEASE).touch(mode=0o600)
        (place / LEASE).write_text(str(at_ns))
        os.utime(place / LEASE, ns=(until_ns, until_ns))

    def sweep(self, *, at_once: bool = False) -> int:
        """Remove those that have ended; how many there were. Looks now and then only, unless `at_once`."""
        now_ns = self._engine.clock.now_ns()
        if self._folder is None or (now_ns < self._next_look_ns and not at_once):
            return 0
        self._next_look_ns = now_ns + LOOK_EVERY_NS
        try:
            found = [self._folder / name for name in os.listdir(self._folder)]
        except OSError:  # None was ever taken.
            return 0
        with self._engine.lock:  # One that is being taken, or asked for again, has not ended.
            ended = [_out_of_reach(place) for place in found if _end_ns(place) <= now_ns]
        for place in ended:
            shutil.rmtree(place, ignore_errors=True)
            log.info("snapshot id=%s is removed", place.stem)
        return len(ended)


def _check_lifetime(lifetime_s: float) -> None:
    number = isinstance(lifetime_s, int | float) and not isinstance(lifetime_s, bool)
    if not number or not 1 <= lifetime_s <= MAX_DURATION_S:
        raise InvalidMessage(f"lifetime_s is {lifetime_s!r:.40}; accepted: 1 to {MAX_DURATION_S:.0f} seconds")


def _taken(snapshot: Snapshot, clock: Clock) -> Snapshot | None:
    """One of that id that is there already, renewed; what its maker left unfinished makes room."""
    place = Path(snapshot.place)
    try:
        renew(snapshot, clock)
        at_ns = int((place / LEASE).read_text())
    except (SnapshotNotFound, OSError, ValueError):
        at_ns = 0
    if at_ns and (place / STORE).is_dir():
        return msgspec.structs.replace(snapshot, at_ns=at_ns)
    remove(place)
    return None


def _refused(place: Path, error: OSError) -> StorageError:
    kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
    return kind(f"cannot make the snapshot {place}: {error.strerror}; free some space, or mend the folder")


def _end_ns(place: Path) -> int:
    """When a snapshot ends; one that is being removed, or was never finished, at once."""
    if place.name.endswith(_GOING):
        return 0
    try:
        return (place / LEASE).stat().st_mtime_ns
    except OSError:
        return 0


def remove(place: Path) -> None:
    """What is not there is no error."""
    shutil.rmtree(_out_of_reach(place), ignore_errors=True)


def _out_of_reach(place: Path) -> Path:
    """Under another name, so that no reader opens what is half gone."""
    if place.name.endswith(_GOING):
        return place
    going = place.with_name(place.name + _GOING)
    shutil.rmtree(going, ignore_errors=True)
    with contextlib.suppress(OSError):
        place.rename(going)
    return going


def release(snapshot: Snapshot) -> None:
    """Remove it, wherever its store is now; but nothing that is no snapshot, whatever the value says."""
    place = Path(snapshot.place)
    if place.parent.name == FOLDER and (place / LEASE).is_file():
        remove(place)


def renew(snapshot: Snapshot, clock: Clock) -> None:
    """It lives for its lifetime from now."""
    until_ns = clock.now_ns() + to_ns(snapshot.lifetime_s)
    try:
        os.utime(os.path.join(snapshot.place, LEASE), ns=(until_ns, until_ns))
    except OSError as error:
        raise _not_found(snapshot) from error


def check_moment(snapshot: Snapshot) -> None:
    """That the one in its place is not another, which was taken under its id when it was gone."""
    with contextlib.suppress(OSError, ValueError):
        if int(Path(snapshot.place, LEASE).read_text()) == snapshot.at_ns:
            return
    raise _not_found(snapshot)


def _not_found(snapshot: Snapshot) -> SnapshotNotFound:
    place = Path(snapshot.place)
    if not place.parent.parent.is_dir():
        return SnapshotNotFound(
            f"snapshot {snapshot.id} is in {place}, which machine {socket.gethostname()} does not see: "
            "read where the store's folder is, or mount it here under the same path"
        )
    return SnapshotNotFound(
        f"snapshot {snapshot.id} is not in {place.parent} any more: it was released, or nobody read from it "
        f"for {snapshot.lifetime_s:g} s; take another, with a longer lifetime if need be"
    )
