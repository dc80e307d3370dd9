"""Who may do what: permissions by queue, and where credentials come from."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, Protocol

Permission = Literal["enqueue", "consume", "read", "admin"]
PERMISSIONS: tuple[Permission, ...] = ("enqueue", "consume", "read", "admin")

#: The name that goes for what is no queue's own: listing queues, state, throttles, worlds, checks.
STORE = ""


class Principal(NamedTuple):
    """Whoever makes a request. Grants are by pattern of queue names, as shells have them; `*` is everything.

    `admin` on a queue implies the other three there. What is the store's own takes a grant on `*`.
    """

    name: str
    grants: Mapping[str, frozenset[Permission]]

    def may(self, permission: Permission, queue: str) -> bool:
        """Whether this is allowed on the queue, or with `STORE` on the store itself."""
        for pattern, permissions in self.grants.items():
            if permission not in permissions and "admin" not in permissions:
                continue
            if pattern == "*" or (queue != STORE and fnmatchcase(queue, pattern)):
                return True
        return False


#: Who everybody is where the server is open: on loopback, without credentials.
ANYBODY = Principal("anybody", {"*": frozenset(PERMISSIONS)})


class Credentials(Protocol):
    """What the server knows of those who call it, as of now: it changes while the server runs."""

    @property
    def required(self) -> bool:
        """False: whoever comes is `ANYBODY`."""
        ...

    def by_token(self, token: str) -> Principal | None:
        """Of an API key (`Authorization: Bearer …`) of the native interface."""
        ...

    def by_access_key(self, access_key: str) -> tuple[Principal, str] | None:
        """Of an AWS access key: who it is, and the secret that signatures are made with."""
        ...

    def by_certificate(self, name: str) -> Principal | None:
        """Of the name in a client's certificate, which the handshake has verified."""
        ...

    def is_good(self, who: Principal) -> bool:
        """Whether one of these, found earlier, would be found again, and be the same."""
        ...
