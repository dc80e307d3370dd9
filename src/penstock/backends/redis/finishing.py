"""What a rekeying waits for behind its last value: logs that forget what was, replicas that have what is."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from penstock.backends.redis.connecting import Server
from penstock.backends.redis.profiles import parse_info
from penstock.backends.redis.topology import Node
from penstock.errors import PenstockError
from penstock.redis_settings import endpoint

log = logging.getLogger("penstock")


class Finishing:
    """Looks after the servers that a store is on."""

    def __init__(self, server: Server) -> None:
        self._server = server
        #: How far replicas have to be, by master, as it was when one rekeying looked at them first.
        self._wanted: dict[Node, int] = {}
        self._of = b""

    def forget_logs(self) -> bool:
        """Have servers write their logs anew: they hold what was replaced. False while one is at that."""
        told = self._persistence()
        if any(map(_is_rewriting, told)):
            return False  # What it writes may be older than the last value.
        if any(one.get("aof_enabled") != "0" for one in told):
            for node, said in self._server.each("BGREWRITEAOF").items():
                if isinstance(said, PenstockError):
                    _warn(node, said)
        return True

    def waits_for(self, rekeying: bytes) -> str:
        """That logs are written, or a cluster's replicas have what was there when this was asked first.

        One server's replicas have its list of keys behind all that is sealed with them; those of a cluster's
        other masters know nothing of that list.
        """
        told = self._persistence()
        if any(map(_is_rewriting, told)):
            return "a server writes its log anew"
        if rekeying != self._of:
            self._of, self._wanted = rekeying, {}
        for node, one in self._replication() if self._server.settings.cluster else ():
            if not self._follow(node, parse_info(one)):
                return f"a replica of {endpoint(*node)} does not have everything yet"
        if any(one.get("aof_last_bgrewrite_status", "ok") != "ok" for one in told):
            log.warning("a log could not be rewritten, and may still hold what was sealed otherwise")
        return ""

    def _follow(self, node: Node, said: dict[str, str]) -> bool:
        """Those that are connected."""
        wanted = self._wanted.setdefault(node, int(said.get("master_repl_offset", 0)))
        replicas = [value for name, value in said.items() if name.startswith("slave") and "offset=" in value]
        have = [dict(part.split("=", 1) for part in one.split(",")) for one in replicas]
        return all(one.get("state") == "online" and int(one["offset"]) >= wanted for one in have)

    def _persistence(self) -> list[dict[str, str]]:
        return [parse_info(one) for one in self._server.everywhere("INFO", "persistence")]

    def _replication(self) -> Iterator[tuple[Node, object]]:
        yield from self._server.told("INFO", "replication").items()


def _is_rewriting(said: dict[str, str]) -> bool:
    return "1" in (said.get("aof_rewrite_in_progress"), said.get("aof_rewrite_scheduled"))


def _warn(node: Node, error: PenstockError) -> None:
    log.warning(
        "%s: its log may still hold what was sealed otherwise; have it rewritten: %s",
        endpoint(*node),
        error,
    )
