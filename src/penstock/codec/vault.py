"""Sealing and opening records with AES-256-GCM, and tickets: the only file that imports cryptography.

A random nonce under one long-lived key would be good for 2³² records. So a key never encrypts anything
itself: each opening of a store derives a subkey from it and a random salt, and counts its nonces.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.codec.sealed import COUNTER_BYTES, SALT_BYTES, head

KEY_BYTES = 32
VERIFIER_BYTES = 16

#: A subkey is left after so many records, far below what AES-GCM can bear.
RECORDS_PER_SUBKEY = 1 << 32
#: Reading keeps so many subkeys: one for each opening whose records are still read.
SUBKEYS_KEPT = 1024

_SUBKEY_INFO, _VERIFIER_INFO = b"penstock record 1", b"penstock verify 1"
_NONCE_START = bytes(12 - COUNTER_BYTES)

#: (nonce, text, associated data) -> text
_Cipher = Callable[[bytes, bytes, bytes], bytes]

#: (key of the row, value) -> record
Seal = Callable[[bytes, bytes], bytes]
#: (key of the row, record) -> value; None if it does not open
Open = Callable[[bytes, bytes], bytes | None]


def _derived(key: bytes, salt: bytes | None, info: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, info).derive(key)


def verifier(key: bytes) -> bytes:
    """Tells whether a key is the one that a store was written with, and nothing else about it."""
    return _derived(key, None, _VERIFIER_INFO, VERIFIER_BYTES)


class Vault:
    """Keys by id, one of which may be the active one: new records are sealed with it.

    A *place* is a kind of rows, and a record is bound to it and to its row's key: in any other place, or
    under any other key, it does not open.
    """

    def __init__(self, keys: Mapping[str, bytes], active: str | None) -> None:
        self._keys = dict(keys)
        self.active = active
        self._decryption = functools.lru_cache(maxsize=SUBKEYS_KEPT)(self._new_decryption)
        if active is not None:
            self._writing = self._new_subkey(active)

    def _new_subkey(self, key_id: str) -> tuple[bytes, _Cipher, Iterator[int]]:
        # From the system, never from an injected generator: a salt that comes twice would repeat nonces.
        salt = os.urandom(SALT_BYTES)
        return head(key_id, salt), self._cipher(key_id, salt).encrypt, itertools.count()

    def _cipher(self, key_id: str, salt: bytes) -> AESGCM:
        return AESGCM(_derived(self._keys[key_id], salt, _SUBKEY_INFO, KEY_BYTES))

    def _new_decryption(self, start: bytes) -> _Cipher:
        return self._cipher(start[2:-SALT_BYTES].decode(), start[-SALT_BYTES:]).decrypt

    def sealer(self, place: bytes) -> Seal:
        """What seals the values of a place, each under its row's key, with the active key."""

        def seal(key: bytes, value: bytes) -> bytes:
            start, encrypt, counter = self._writing
            # One step of the interpreter: no two threads get the same number.
            number = next(counter)
            if number >= RECORDS_PER_SUBKEY:
                assert self.active is not None
                self._writing = self._new_subkey(self.active)
                return seal(key, value)
            count = number.to_bytes(COUNTER_BYTES, "big")
            return start + count + encrypt(_NONCE_START + count, value, start + place + key)

        return seal

    def opener(self, place: bytes) -> Open:
        """What opens the records of a place."""
        # Neighbours mostly share a subkey: the last one is at hand.
        last: tuple[bytes, int, int, bytes, _Cipher] = (b"\0", 0, 0, b"", _no_cipher)

        def open(key: bytes, record: bytes) -> bytes | None:
            nonlocal last
            start, counter_at, text_at, bound, decrypt = last
            try:
                if not record.startswith(start):
                    counter_at = 2 + record[1] + SALT_BYTES
                    start, text_at = record[:counter_at], counter_at + COUNTER_BYTES
                    bound, decrypt = start + place, self._decryption(start)
                    last = start, counter_at, text_at, bound, decrypt
                nonce = _NONCE_START + record[counter_at:text_at]
                return decrypt(nonce, record[text_at:], bound + key)
            except (InvalidTag, LookupError, ValueError):
                return None

        return open


class Envelope:
    """Values that are given to others and come back as they were: nobody reads, changes or makes one.

    The same value is the same text each time. A *kind* of values does not open as another.
    """

    SECRET_BYTES = 64

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESSIV(secret)

    def seal(self, kind: bytes, value: bytes) -> bytes:
        return self._cipher.encrypt(value, [kind])

    def open(self, kind: bytes, sealed: bytes) -> bytes | None:
        """None: it was not sealed with this secret, as this kind."""
        try:
            return self._cipher.decrypt(sealed, [kind])
        except (InvalidTag, ValueError):
            return None


def _no_cipher(nonce: bytes, text: bytes, bound: bytes) -> bytes:
    raise LookupError
