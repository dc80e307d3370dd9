"""Requests that a web page of elsewhere makes in a browser of this machine: refused where no key is wanted.

An open server is reached from its own machine alone, but so is every page that is looked at there: a page
can send forms anywhere, and a name of its own can be made to lead here (DNS rebinding). Browsers say where a
request comes from, in `Origin` and `Sec-Fetch-Site`, and the name that it was sent to is in `Host`. Of a GET
they say so to hosts alone that they hold for this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache

#: Ends of names that nobody outside can have: those of RFC 6761, and `host.docker.internal`.
_OWN_ENDS = (".localhost", ".internal", ".test", ".invalid")


def foreign(headers: Mapping[str, str]) -> str | None:
    """Why the request is taken for one of somebody else's page; None if it is not."""
    host = headers.get("host", "")
    origin = headers.get("origin")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or (
        origin is not None and origin.partition("://")[2] != host
    ):
        return "this server has no credentials: it answers no page of elsewhere"
    if not _is_own(host):
        return (
            "this server has no credentials: it answers to addresses and to names of this machine, as in "
            "http://localhost; to be reached by another name, give it keys (penstock keys create)"
        )
    return None


def would_be_told(headers: Mapping[str, str]) -> bool:
    """Whether a browser would have said that a GET is of somebody's page. It is silent to `0.0.0.0`, say."""
    return "sec-fetch-site" in headers or _is_here(headers.get("host", ""))


@lru_cache(maxsize=256)
def _is_here(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].lower().rstrip(".")
    if not name or name == "localhost" or name.endswith(".localhost"):
        return True  # No browser is without a host.
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback and getattr(address, "ipv4_mapped", None) is None


@lru_cache(maxsize=256)
def _is_own(host: str) -> bool:
    """An address, or a name that nobody can have made to lead here: one without a dot, or of these ends."""
    if host.startswith("["):
        return True
    name = host.partition(":")[0].lower().rstrip(".")
    if "." not in name or name.endswith(_OWN_ENDS):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
