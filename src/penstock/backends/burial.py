"""What burial does to a message's headers: where it died and why, put there and taken away again."""

from __future__ import annotations

import msgspec

from penstock.codec.body import Body
from penstock.message import OWNED_HEADER_PREFIX

ORIGIN = OWNED_HEADER_PREFIX + "origin"
REASON = OWNED_HEADER_PREFIX + "reason"
ATTEMPTS = OWNED_HEADER_PREFIX + "attempts"


def buried(body: Body, origin: str, attempts: int, reason: str) -> Body:
    """As it lies in the dead-letter queue; the first origin stays when it dies again."""
    headers = {
        **body.headers,
        ORIGIN: body.headers.get(ORIGIN, origin),
        REASON: reason,
        ATTEMPTS: str(attempts),
    }
    return _with(body, headers)


def revived(body: Body) -> Body:
    """As it was before it died: without the headers that burial added."""
    return _with(body, {k: v for k, v in body.headers.items() if k not in (ORIGIN, REASON, ATTEMPTS)})


def _with(body: Body, headers: dict[str, str]) -> Body:
    # A dead message no longer expires: it stays until someone has looked at it.
    return msgspec.structs.replace(body, headers=headers, expires_at_ns=0)
