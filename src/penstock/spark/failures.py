"""Errors that come back through Spark as the errors that they were when a worker raised them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from penstock import errors
from penstock.errors import BackendUnavailable, PenstockError, StorageCorrupt

#: How Python, and Spark after it, write the last line of a traceback.
_RAISED = re.compile(r"penstock\.[\w.]+\.(\w+): (.*)")
#: How Spark names a Parquet file that it cannot read: as a URL, or as it is called where it is not there.
_UNREADABLE = re.compile(r"\[(FAILED_READ_FILE|PATH_NOT_FOUND)[^]]*\] .*? file:/*(/.*?\.parquet)\b")
#: What it says besides if the file may be as good as ever.
_NO_ROOM = "java.lang.OutOfMemoryError"
#: What it says of workers that were killed, or have died, whatever they were doing.
_LOST = re.compile(
    r"(Python worker (?:exited unexpectedly|failed to connect back)[^\n]*|ExecutorLostFailure[^\n]*)"
)


@contextmanager
def translated() -> Iterator[None]:
    """What was an error of Penstock's is one again, and what has a name here gets it; any other stays."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        known = _known(str(error))
        if known is None:
            raise
        raise known from error


def _known(text: str) -> PenstockError | None:
    if found := _RAISED.findall(text):
        return _made(*found[-1])
    if (file := _UNREADABLE.search(text)) and _NO_ROOM not in text:
        path = unquote(file[2]) if file[1] == "FAILED_READ_FILE" else file[2]
        return StorageCorrupt(f"{path} is damaged or not there; put it back from a copy of the archive")
    if lost := _LOST.search(text):
        return BackendUnavailable(
            f"Spark has lost a worker, and gave up: {lost[1].strip():.200}; run it again"
        )
    return None


def _made(name: str, text: str) -> PenstockError:
    """Some are made from parts that a text does not tell: then the nearest that is made from a text."""
    cls = getattr(errors, name, PenstockError)
    plain = next(one for one in cls.__mro__ if "__init__" not in vars(one) or one is PenstockError)
    return plain(text.strip()) if issubclass(plain, PenstockError) else PenstockError(text.strip())
