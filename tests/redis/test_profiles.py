"""Which server it is: told by what it says, refused where it is another, and what each kind leaves unset."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.backends.redis import profiles
from penstock.backends.redis.differences import DIFFERENCES, OLDEST
from penstock.errors import InvalidConfig, StorageError, Unauthorized
from penstock.redis_settings import FLAVOURS, RedisSettings

#: What servers were seen to say of themselves, in parts; those marked so were not run here.
SAID: dict[str, tuple[dict[str, bytes], tuple[str, str]]] = {
    "redis": (
        {"server": b"# Server\r\nredis_version:7.4.1\r\nredis_mode:standalone\r\n"},
        ("redis", "7.4.1"),
    ),
    "valkey": (
        {"server": b"# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0\r\n"},
        ("valkey", "8.1.0"),
    ),
    "keydb (not run)": (
        {
            "server": b"# Server\r\nredis_version:6.3.4\r\nredis_mode:standalone\r\n",
            "keydb": b"# KeyDB\r\nmvcc_depth:0\r\n",
        },
        ("keydb", "6.3.4"),
    ),
    "dragonfly (not run)": (
        {"server": b"# Server\r\nredis_version:7.4.0\r\ndragonfly_version:df-v1.40.1\r\n"},
        ("dragonfly", "1.40.1"),
    ),
}


def asker(said: dict[str, bytes], hello: list[Any] | None = None) -> profiles.Ask:
    def ask(word: str, section: str = "") -> Any:
        if word == "HELLO":
            if hello is None:
                raise StorageError("ERR unknown command")
            return hello
        if not said:
            raise Unauthorized("NOPERM")
        return said.get(section, b"")

    return ask


@pytest.mark.parametrize("name", SAID)
def test_a_server_is_known_by_what_it_says(name: str) -> None:
    said, expected = SAID[name]
    found = profiles.detect(asker(said), "redis")
    assert (found.flavour, found.version) == expected
    assert found.detected


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("asked", FLAVOURS)
def test_a_url_that_names_another_server_is_refused_with_both_names(name: str, asked: str) -> None:
    said, (flavour, version) = SAID[name]
    settings = RedisSettings(flavour=asked, kind="streams", tls=True)
    profile = profiles.detect(asker(said), asked)
    if asked == flavour:
        profiles.check(profile, settings)
        return
    with pytest.raises(InvalidConfig) as caught:
        profiles.check(profile, settings)
    told = f"says {asked}, but {flavour} {version} answers there; write {flavour}s+streams://"
    assert told in str(caught.value)


@pytest.mark.parametrize("server", [b"redis", b"valkey"])
def test_one_that_forbids_info_is_known_by_its_greeting(server: bytes) -> None:
    hello = [b"server", server, b"version", b"8.0.1", b"proto", 2, b"mode", b"cluster", b"modules", []]
    found = profiles.detect(asker({}, hello), "redis")
    assert (found.flavour, found.version, found.mode) == (server.decode(), "8.0.1", "cluster")


def test_one_that_says_nothing_is_believed_to_be_what_the_url_says() -> None:
    found = profiles.detect(asker({}), "dragonfly")
    assert (found.flavour, found.version, found.detected) == ("dragonfly", "", False)
    profiles.check(found, RedisSettings(flavour="dragonfly"))
    assert not found.has("wait")


def test_replicas_that_cannot_be_waited_for_are_not_asked_for() -> None:
    profile = profiles.detect(asker(SAID["dragonfly (not run)"][0]), "dragonfly")
    with pytest.raises(InvalidConfig, match=r"min_replicas is 1, but dragonfly 1\.40\.1 cannot"):
        profiles.check(profile, RedisSettings(flavour="dragonfly", min_replicas=1))


@pytest.mark.parametrize(("version", "flavour"), [("6.0.16", "redis"), ("5.0", "redis"), ("7.0.0", "valkey")])
def test_a_server_that_is_too_old_is_refused(version: str, flavour: str) -> None:
    profile = profiles.Profile(flavour=flavour, version=version)
    with pytest.raises(InvalidConfig, match=rf"{flavour} {version}; needed: {flavour} [67]\.2 or newer"):
        profiles.check(profile, RedisSettings(flavour=flavour))


def test_what_settings_leave_out_is_what_suits_the_server() -> None:
    plain = profiles.filled(RedisSettings())
    assert (plain.pool_size, plain.read_timeout_s, plain.pipeline_size) == (20, 5, 100)
    assert plain.compression is False
    keydb = profiles.filled(RedisSettings(flavour="keydb", pool_size=3))
    assert (keydb.pool_size, keydb.pipeline_size) == (3, 1000)
    assert None not in (keydb.connect_timeout_s, keydb.read_timeout_s, keydb.write_timeout_s)


def test_every_kind_of_server_has_its_differences() -> None:
    assert set(DIFFERENCES) == set(OLDEST) == set(FLAVOURS)
