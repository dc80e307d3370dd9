"""Errors that come back through Spark as the errors that they were when a worker raised them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from penstock import errors
from penstock.errors import PenstockError

#: How Python, and Spark after it, write the last line of a traceback.
_RAISED = re.compile(r"penstock\.[\w.]+\.(\w+): (.*)")
#: How Spark names a Parquet file whose pages do not have their checksums, or that it cannot read at all.
_UNREADABLE = re.compile(r"\[FAILED_READ_FILE[^]]*\] .*? file:/*(/.*?\.parquet)\b")


@contextmanager
def translated() -> Iterator[None]:
    """What was an error of Penstock's is one again; any other stays what it is."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        found = _RAISED.findall(str(error))
        if not found and (file := _UNREADABLE.search(str(error))):
            path = unquote(file[1])
            raise errors.StorageCorrupt(
                f"{path} is damaged or not there; put it back from a copy of the archive"
            ) from error
        if not found:
            raise
        raise _made(*found[-1]) from error


def _made(name: str, text: str) -> PenstockError:
    """Some are made from parts that a text does not tell: then the nearest that is made from a text."""
    cls = getattr(errors, name, PenstockError)
    plain = next(one for one in cls.__mro__ if "__init__" not in vars(one) or one is PenstockError)
    return plain(text.strip()) if issubclass(plain, PenstockError) else PenstockError(text.strip())
