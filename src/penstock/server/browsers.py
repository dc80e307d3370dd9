"""Requests that a browser makes for somebody else's page: an open server does nothing for them.

Whoever visits a page lets it send requests to 127.0.0.1, and a server without credentials knows nobody. With
credentials nothing is lost: a browser has no key that it would send by itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

WHY = (
    "a page of another site asks for this, in a browser; a server without credentials does nothing for it: "
    "give it a file of keys (penstock keys create NAME, and --credentials)"
)
#: What a browser says of a request that a page of the server's own, or the person, makes.
_OWN = ("same-origin", "none")


def is_foreign(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a page that is not this server's own makes it. Other programs say nothing of the kind."""
    origin, host = headers.get("origin"), headers.get("host", "")
    if origin is not None and not (origin.partition("://")[2] == host and _is_here(origin)):
        return True
    site = headers.get("sec-fetch-site")
    if site is not None and site not in _OWN:
        # A link that somebody follows shows what it leads to, and tells the page that it was on nothing.
        return method not in ("GET", "HEAD") or headers.get("sec-fetch-mode") != "navigate"
    # A name of somebody's own can be made to lead here, and the browser takes it for that page's own.
    return headers.get("user-agent", "").startswith("Mozilla/") and not _is_here(f"http://{host}")


def _is_here(url: str) -> bool:
    try:
        name = urlsplit(url).hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
