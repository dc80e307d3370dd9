"""Where queues are said to be: the one region and the one account of a server, in ARNs and URLs."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from penstock.server.sqs.errors import SqsError

#: What a name may have besides, for queues that were not created here.
_SAFE = "-_.~"


class Place(NamedTuple):
    """As `server.sqs` has it."""

    region: str
    account: str

    def arn(self, queue: str) -> str:
        return f"arn:aws:sqs:{self.region}:{self.account}:{queue}"

    def queue_of_arn(self, text: str) -> str | None:
        beginning = self.arn("")
        return text.removeprefix(beginning) if text.startswith(beginning) and text != beginning else None

    def path(self, queue: str) -> str:
        return f"/{self.account}/{quote(queue, safe=_SAFE)}"


def queue_of_path(path: str) -> str | None:
    """The queue's name of the path of its URL, or None for any other path."""
    match = re.fullmatch(r"/[0-9]{12}/([^/]+)/?", path)
    return unquote(match[1]) if match else None


def queue_of_url(url: str) -> str:
    """Whatever host it names: a server may be reached by several."""
    try:
        queue = queue_of_path(urlsplit(url).path)
    except ValueError:
        queue = None
    if queue is None:
        raise SqsError("InvalidAddress", "The address is not valid for this endpoint.")
    return queue
