"""The keys of an encrypted store of any kind: its list of them, and whether they are the right ones."""

from __future__ import annotations

import hmac

import msgspec

from penstock.errors import DecryptFailed, InvalidConfig, KeyMissing
from penstock.keyring import ACCEPTED_IDS, KEY_BYTES, KeyProvider, is_key_id, variable
from penstock.settings import EncryptionSettings

#: In place of a key's id: values that are not sealed.
PLAIN = ""


class KeysRow(msgspec.Struct, array_like=True):
    """The key that new records are sealed with, and a verifier of every one that some may be sealed with.

    Clear, for it is read before any key is known. `PLAIN` stands for values that are not sealed.
    """

    active: str
    verifiers: dict[str, bytes]


def active_key(settings: EncryptionSettings, row: KeysRow | None) -> str:
    """The key to seal with. A setting that was left open follows the store."""
    if settings.enabled is None:
        return PLAIN if row is None else row.active
    if not settings.enabled:
        return PLAIN
    if not is_key_id(settings.key_id):
        raise InvalidConfig(f"encryption.key_id is {settings.key_id!r:.80}; accepted: {ACCEPTED_IDS}")
    return settings.key_id


def needed_key(provider: KeyProvider, key_id: str, where: str) -> bytes:
    """A key, which must be there."""
    key = provider.key(key_id)
    if key is None:
        raise KeyMissing(
            f"{where} needs the key {key_id!r}, which is not there; set {variable(key_id)} to its 64 "
            "hexadecimal digits, or have it in the key_file or key_command of its encryption"
        )
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise InvalidConfig(f"key {key_id!r}: the key provider must give {KEY_BYTES} bytes")
    return key


def is_verified(key: bytes, expected: bytes) -> bool:
    """Whether a key is the one that the list has this verifier of."""
    # Only here: a store without encryption does not load the library.
    from penstock.codec.vault import verifier

    return hmac.compare_digest(expected, verifier(key))


def wrong_key(key_id: str, where: str) -> DecryptFailed:
    return DecryptFailed(
        f"key {key_id!r} is not the one that {where} was written with; "
        f"put the right one into {variable(key_id)}, or where else the store's keys come from"
    )
