"""Who makes a request, by its bearer token or its certificate."""

from __future__ import annotations

from penstock.errors import Unauthorized
from penstock.server.access import ANYBODY, Credentials, Principal
from penstock.server.endpoint import Request


def principal(request: Request, credentials: Credentials) -> Principal:
    """Whoever it is; raises `Unauthorized` for who shows nothing that is known, or nothing any more.

    A token that is not good is refused, whatever certificate comes with it.
    """
    if not credentials.required:
        return ANYBODY
    given = request.headers.get("authorization", "")
    scheme, _, token = given.partition(" ")
    if scheme.lower() == "bearer":
        who = credentials.by_token(token.strip())
    elif not given and request.certificate is not None:
        who = credentials.by_certificate(request.certificate)
    else:
        who = None
    if who is None:
        raise Unauthorized(
            "this server wants a key that it knows: send the header `Authorization: Bearer KEY`, with a key "
            "of `penstock keys create`"
        )
    return who


def heard_while_good(request: Request, who: Principal, credentials: Credentials) -> Request:
    """Who waits, or reads on, is heard as long as he would be let in: then what comes is not for him."""
    if not credentials.required:
        return request
    there = request.listening
    return request._replace(listening=lambda: there() and credentials.is_good(who))
