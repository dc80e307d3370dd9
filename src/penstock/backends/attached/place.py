"""The folder as a meeting place: who owns the store in it, and where its owner listens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.backends.attached.wire import SOCKET_NAME
from penstock.errors import StorageError

#: Locked by the owner for as long as it lives; holds its process number, for people.
LOCK_NAME = "OWNER"

#: How long one looks for an owner before one gives up, and how often.
PATIENCE_S = 10.0
LOOK_EVERY_S = 0.01

#: The longest path that a Unix socket's address holds.
_ADDRESS_BYTES = 100

#: Folders that this process, or the one that it was forked from, owns: folder -> owning process.
_owned: dict[str, int] = {}

#: Every socket of this process that leads to or from a store. A fork closes its copies: with one of them, a
#: process that has died would seem to be there still, to those attached to it or to its owner.
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
#: Held while a socket comes into being, and during a fork: none escapes. Guards `_owned` too.
_lock = threading.RLock()


def _close_inherited() -> None:
    for one in list(_sockets):
        one.close()
    _sockets.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_close_inherited)


class Ownership:
    """The right to open the database of a folder. It ends with the process, however that ends."""

    def __init__(self, folder: str, file: int) -> None:
        self._folder = folder
        self._file = file

    @classmethod
    def take(cls, folder: str) -> Ownership | None:
        """None while another has it, be it this very process or the one that it was forked from."""
        folder = os.path.realpath(folder)
        with _lock:
            # To open the lock's file once more, and close it, would let go of the lock.
            if folder in _owned:
                return None
            file = _locked(folder)
            if file is None:
                return None
            _owned[folder] = os.getpid()
        with contextlib.suppress(OSError):  # A full disk does not keep anyone from reading.
            os.ftruncate(file, 0)
            os.pwrite(file, b"%d\n" % os.getpid(), 0)
        return cls(folder, file)

    def release(self) -> None:
        with _lock:
            if _owned.get(self._folder) == os.getpid():
                del _owned[self._folder]
                os.close(self._file)


def _locked(folder: str) -> int | None:
    """The lock's file, open and locked; None while another has it."""
    try:
        file = os.open(os.path.join(folder, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageError(
            f"{folder} is not writable ({error.strerror}); change its permissions or choose another path"
        ) from error
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def forked_from_owner(folder: str) -> bool:
    """Whether this process is a fork of one that had the folder's database open."""
    return _owned.get(os.path.realpath(folder), os.getpid()) != os.getpid()


@contextmanager
def _address(folder: str, name: str) -> Iterator[str]:
    """A path for a socket's address, short enough also where the folder's own is not."""
    path = os.path.join(os.path.realpath(folder), name)
    if len(os.fsencode(path)) < _ADDRESS_BYTES:
        yield path
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{name}"
    finally:
        os.close(handle)


def _new_socket() -> socket.socket:
    with _lock:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _sockets.add(made)
    return made


def _set_patience(peer: socket.socket, seconds: float) -> None:
    """How long connecting waits behind others that are not let in: a time limit would not wait at all."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), 0))


def connect(folder: str) -> socket.socket:
    """A connection to the folder's owner; `OSError` where nobody listens, or nobody is let in."""
    peer = _new_socket()
    try:
        with _address(folder, SOCKET_NAME) as address:
            _set_patience(peer, PATIENCE_S)
            peer.connect(address)
        _set_patience(peer, 0)
    except BaseException:
        peer.close()
        raise
    return peer


def listen(folder: str) -> socket.socket:
    """Take the place of whoever listened before. Only the owner may call this."""
    door = _new_socket()
    name = f"{SOCKET_NAME}.{os.getpid()}"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
        with _address(folder, name) as address:
            door.bind(address)
        # Closed to others before it has its name: nobody comes in between.
        os.chmod(os.path.join(folder, name), 0o600)
        door.listen(128)
        door.setblocking(False)
        os.rename(os.path.join(folder, name), os.path.join(folder, SOCKET_NAME))
    except BaseException:
        door.close()
        raise
    return door


def accept(door: socket.socket) -> socket.socket:
    """The next one to come in; `OSError` when the door is closed, or nobody can be let in now."""
    visitors = select.poll()
    visitors.register(door, select.POLLIN)
    while True:
        visitors.poll()
        with _lock, contextlib.suppress(BlockingIOError):
            peer, _ = door.accept()
            _sockets.add(peer)
            peer.setblocking(True)
            return peer


def leave(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, SOCKET_NAME))
