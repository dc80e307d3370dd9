"""Where queues are said to be: the one region and the one account of a server, in ARNs and URLs."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from penstock.server.sqs.errors import SqsError

#: What a name may have besides, for queues that were not created here.
_SAFE = "-_.~"
#: Longer URLs are split each time: what is remembered of others' making has its limits.
MOST_REMEMBERED = 1000
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
        split = _account_and_queue if len(url) <= MOST_REMEMBERED else _account_and_queue.__wrapped__
        account, queue = split(url)
        if not queue:
            raise SqsError("InvalidAddress", "The address is not valid for this endpoint.")
        if account != self.account:
            raise SqsError(
                "QueueDoesNotExist", "The specified queue does not exist: it is of another account."
            )
        return queue


@lru_cache(maxsize=1024)
def _account_and_queue(url: str) -> tuple[str, str]:
    """Empty ones of what is no queue's. Clients send the same few URLs with every message."""
    try:
        match = _PATH.fullmatch(urlsplit(url).path)
    except ValueError:
        match = None
    return ("", "") if match is None else (match[1], unquote(match[2]))


def is_of_queue(path: str) -> bool:
    """Whether it is the path of a queue's URL."""
    return _PATH.fullmatch(path) is not None
