"""Where queues are said to be: the one region and the one account of a server, in ARNs and URLs."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from penstock.server.sqs.errors import SqsError

#: What a name may have besides, for queues that were not created here.
_SAFE = "-_.~"
_PATH = re.compile(r"/([0-9]{12})/([^/]+)/?")


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

    def queue_of_url(self, url: str) -> str:
        """Whatever host it names: a server may be reached by several. There is one account here."""
        try:
            match = _PATH.fullmatch(urlsplit(url).path)
        except ValueError:
            match = None
        if match is None:
            raise SqsError("InvalidAddress", "The address is not valid for this endpoint.")
        if match[1] != self.account:
            raise SqsError(
                "QueueDoesNotExist", "The specified queue does not exist: it is of another account."
            )
        return unquote(match[2])


def is_of_queue(path: str) -> bool:
    """Whether it is the path of a queue's URL."""
    return _PATH.fullmatch(path) is not None
