"""Bad rows of a write: a Parquet file for each partition that has some, there once its job is committed.

Each run of a job has files of its own, hidden until just before its commit; the answer says which run
counted, and the files of the others go. Killed before its commit has begun, a run leaves files that the next
one takes away; killed later, it may leave those of earlier runs too, until the job is run again: never fewer.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.backends.bulk import Txn, WriteTicket, Written
from penstock.backends.embedded.staged import sync
from penstock.clock import SystemClock, to_ns
from penstock.errors import InvalidConfig

if TYPE_CHECKING:
    import pyarrow


#: What an attempt has left that nobody came back to is thrown away after so long.
HIDDEN_KEPT_S = 86_400.0


class Hidden(NamedTuple):
    """Where bad rows are, where they belong, and the machine that has written them."""

    path: str
    final: str
    host: str


class SetAside:
    """The bad rows of one attempt at a partition. Hidden from readers of the folder until `reveal`.

    They are as secret as the messages that they did not become: nobody else may look at them.
    """

    def __init__(self, folder: str, job: str, run: str, partition: int) -> None:
        self._final = Path(folder, f"{job}-{run}-{partition:05}.parquet")
        self._hidden = self._final.with_name(f".{self._final.stem}-{os.urandom(6).hex()}.unfinished")
        self._writer: Any = None

    def __call__(self, batch: pyarrow.RecordBatch) -> None:
        import pyarrow.parquet

        if self._writer is None:
            try:
                _make_folder(self._hidden.parent)
                self._hidden.touch(mode=0o600)
                self._writer = pyarrow.parquet.ParquetWriter(self._hidden, batch.schema)
            except OSError as error:
                raise InvalidConfig(
                    f"option rejectsPath: {self._hidden.parent} cannot be written: {error.strerror}"
                ) from error
        self._writer.write_batch(batch)

    def close(self) -> Hidden | None:
        """Everything on disk, as the messages will be; None if there were no bad rows."""
        if self._writer is None:
            return None
        self._writer.close()
        with self._hidden.open("rb") as file:
            os.fsync(file.fileno())
        return Hidden(str(self._hidden), str(self._final), socket.gethostname())


def _make_folder(folder: Path) -> None:
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in new:
        sync(path.parent)


def job_name(txn: Txn, queue: str | None) -> str:
    """How the files of a job begin: the same whenever it is run again."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", txn.app)[:40].lstrip("_") or "job"
    raw = txn.app.encode() + (b"" if queue is None else b"\0" + queue.encode())
    return f"{name}-{hashlib.blake2b(raw, digest_size=4).hexdigest()}-{txn.version}"


def run_name(ticket: str) -> str:
    """What tells the files of one run of a job from those of another, by the id of its ticket."""
    return ticket[:12]


def reveal(folder: str, found: Sequence[Hidden]) -> None:
    """Those of a run, durably, in their places; all of them or none. Done twice is as once."""
    missing = [one for one in found if not Path(one.path).exists() and not Path(one.final).exists()]
    if missing:
        raise InvalidConfig(
            f"option rejectsPath: bad rows that machine {missing[0].host} has put into {folder} are not "
            f"there on {socket.gethostname()}, where the driver is: name a folder that all of them share"
        )
    for one in found:
        with suppress(FileNotFoundError):
            Path(one.path).replace(one.final)
    if found:
        sync(Path(folder))


def settle(folder: str, job: str, ticket: WriteTicket, written: Written) -> None:
    """After the commit: of all that runs of the job have revealed, what counted stays."""
    files = _by_run(folder, job)
    own, counted = run_name(ticket.id), run_name(written.by or ticket.id)
    losers = files.keys() - {counted}
    if written.superseded:
        losers = {own}
    elif written.rejected and counted not in files:
        # They are in another folder, perhaps: what is here besides may be all that there is.
        losers = {own} if len(files) > 1 else set()
    for run in losers & files.keys():
        for path in files[run]:
            path.unlink(missing_ok=True)


def _by_run(folder: str, job: str) -> dict[str, list[Path]]:
    named = re.compile(rf"{re.escape(job)}-([0-9a-f]+)-[0-9]{{5,}}\.parquet")
    files: dict[str, list[Path]] = {}
    for path in Path(folder).glob("*.parquet"):
        if found := named.fullmatch(path.name):
            files.setdefault(found[1], []).append(path)
    return files


def drop_hidden(folder: str, job: str) -> None:
    """What attempts of a job have left that were not committed, and others long ago."""
    before_ns = SystemClock().now_ns() - to_ns(HIDDEN_KEPT_S)
    for path in Path(folder).glob(".*.unfinished"):
        with suppress(FileNotFoundError):
            if path.name.startswith(f".{job}-") or path.stat().st_mtime_ns < before_ns:
                path.unlink()
