"""What is secret of a store on Redis, sealed before it is sent and opened when it comes back; and its keys.

Many processes have a store open, and one of them may bring another key, or the first. The list of keys stands
in the store; who meets a record or a queue that is newer than the list it knows reads it again.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.backends.redis.connecting import Arg, Server
from penstock.backends.redis.keys import Keys
from penstock.backends.redis.scripts import script
from penstock.backends.unlocking import PLAIN, KeysRow, active_key, is_verified, needed_key, wrong_key
from penstock.codec.sealed import COUNTER_BYTES, SALT_BYTES, SEALED_VERSION, key_id_of, not_sealed, place_of
from penstock.errors import KeyMissing, StorageCorrupt
from penstock.keyring import KeyProvider, is_key_id, variable
from penstock.settings import EncryptionSettings

if TYPE_CHECKING:
    from penstock.codec.vault import Open, Seal, Vault

log = logging.getLogger("penstock")

#: Kinds of secret values. Each is bound to its kind and to its row: a body to number of queue and message id.
BODIES, REASONS, FRAMES, VALUES, QUEUES, QUARANTINE, SECRET = (
    "bodies",
    "reasons",
    "frames",
    "values",
    "queues",
    "quarantine",
    "secret",
)
_PLACES = (BODIES, REASONS, FRAMES, VALUES, QUEUES, QUARANTINE, SECRET)

ROW_VERSION = b"\x01"
#: Fields of the store's own hash.
KEYS_FIELD, SECRET_FIELD = b"keys", b"secret"
SECRET_BYTES = 32
_TAG_BYTES = 16
_TAKEN = 0

_MARK = bytes((SEALED_VERSION,))
_decode_row = msgspec.msgpack.Decoder(KeysRow).decode


class _State(NamedTuple):
    """The list of keys as it was read last, and what comes of it."""

    #: As it is stored, b"" for a store that never had one.
    raw: bytes
    row: KeysRow | None
    vault: Vault | None
    seal: dict[str, Seal]
    open: dict[str, Open]


_NONE = _State(b"", None, None, {}, {})


class Seals:
    """Seals and opens the values of one store."""

    def __init__(
        self, server: Server, keys: Keys, settings: EncryptionSettings, provider: KeyProvider, where: str
    ) -> None:
        self._server = server
        self._key = keys.store
        self._provider = provider
        self._where = where
        self._lock = threading.Lock()
        self._state = _NONE
        #: What dedup ids are hashed with; b"" for a store that was begun without encryption.
        self.dedup_secret = b""
        #: Whether this opening has changed the list of a store that others may have open.
        self.brought_key = False
        self._unlock(settings)

    # -- what it is

    @property
    def fence(self) -> bytes:
        """The list as this process knows it: a script that stores something secret refuses another one."""
        return self._state.raw

    @property
    def active(self) -> str | None:
        """The key that new values are sealed with."""
        row = self._state.row
        return None if row is None else row.active or None

    @property
    def row(self) -> KeysRow | None:
        return self._state.row

    @property
    def takes_plain(self) -> bool:
        """Whether secret values may be plain: they are, until a rekeying has sealed them."""
        row = self._state.row
        return row is None or PLAIN in row.verifiers

    # -- values

    def seal(self, place: str, key: bytes, value: bytes) -> bytes:
        state = self._state
        return value if not state.seal else state.seal[place](key, value)

    def open(self, place: str, key: bytes, raw: bytes) -> bytes:
        """A value; what does not open is passed on as it is stored, and every decoder refuses it."""
        if raw[:1] != _MARK:
            return raw if self.takes_plain else not_sealed(raw)
        plain = self.opened(place, key, raw)
        return raw if plain is None else plain

    def opened(self, place: str, key: bytes, raw: bytes) -> bytes | None:
        """A sealed value, None if it does not open."""
        state = self._state
        plain = state.open[place](key, raw) if state.open else None
        if plain is None and self.look():
            state = self._state
            plain = state.open[place](key, raw) if state.open else None
        if not state.open:
            raise self._lost_list(raw)
        return plain

    def _lost_list(self, raw: bytes) -> KeyMissing:
        key_id = key_id_of(raw) or ""
        return KeyMissing(
            f"{self._where} has records sealed with key {key_id!r}, but lost the list of its keys; open it "
            f"with encryption enabled and this key_id, and the key in {variable(key_id)}"
        )

    def is_sealed(self, raw: bytes) -> bool:
        """Whether a value of any bytes is a sealed one: it looks so, and names a key of this store."""
        key_id = key_id_of(raw) or ""
        if len(raw) < 2 + len(key_id) + SALT_BYTES + COUNTER_BYTES + _TAG_BYTES:
            return False
        return is_key_id(key_id) and (self._lists(key_id) or (self.look() and self._lists(key_id)))

    def _lists(self, key_id: str) -> bool:
        row = self._state.row
        return row is not None and key_id in row.verifiers

    # -- keys

    def look(self) -> bool:
        """Read the list again; whether it is another one. What it names is needed from then on."""
        raw = bytes(self._server.command("HGET", self._key, KEYS_FIELD) or b"")
        if raw == self._state.raw:
            return False
        with self._lock:
            if raw != self._state.raw:
                self._take(raw, self._known(_decoded(raw)))
        return True

    def _unlock(self, settings: EncryptionSettings) -> None:
        """All keys that the store lists are verified before anything is written; a new one is listed."""
        while True:
            raw, secret = self._server.command("HMGET", self._key, KEYS_FIELD, SECRET_FIELD)
            is_new = not self._server.command("EXISTS", self._key)
            raw = bytes(raw or b"")
            row = _decoded(raw)
            active = active_key(settings, row)
            if row is None and active == PLAIN:
                if secret is not None and secret[:1] == _MARK:
                    raise self._lost_list(secret)
                self.dedup_secret = (secret or b"")[1:]
                return
            wanted = KeysRow(active, dict(row.verifiers) if row else {} if is_new else {PLAIN: b""})
            known = self._known(wanted)
            if active == PLAIN:
                wanted.verifiers[PLAIN] = b""
                log.warning(
                    "%s has sealed records, but encryption is off: what is new is written plain", self._where
                )
            self._check_secret(known, secret)
            if wanted == row or self.note(wanted, known, raw, fresh=is_new):
                self._take(raw if wanted == row else _encoded(wanted), known)
                self.brought_key = wanted != row and not is_new
                return

    def _check_secret(self, known: dict[str, bytes], secret: bytes | None) -> None:
        """A list that was lost has verified nothing: the store's own secret tells whether a key is right."""
        key_id = None if secret is None else key_id_of(secret)
        if secret is None or key_id is None:
            return
        if key_id not in known:
            raise self._lost_list(secret)
        from penstock.codec.vault import Vault

        if Vault(known, None).opener(place_of(SECRET))(b"", secret) is None:
            raise wrong_key(key_id, self._where)

    def _known(self, row: KeysRow | None) -> dict[str, bytes]:
        """Every key of a list, the active one included, each of them the right one."""
        known: dict[str, bytes] = {}
        if row is None:
            return known
        from penstock.codec.vault import verifier

        for key_id in sorted({*row.verifiers, row.active} - {PLAIN}):
            key = known[key_id] = needed_key(self._provider, key_id, self._where)
            expected = row.verifiers.setdefault(key_id, verifier(key))
            if not is_verified(key, expected):
                raise wrong_key(key_id, self._where)
        return known

    def note(
        self,
        row: KeysRow | None,
        known: dict[str, bytes],
        was: bytes,
        *,
        fresh: bool = False,
        run_id: str = "",
    ) -> bool:
        """Write the list, unless it is not as it was; a store that is begun with it gets its secret."""
        secret = b""
        if fresh and row is not None:
            from penstock.codec.vault import Vault

            sealer = Vault(known, row.active).sealer(place_of(SECRET))
            secret = sealer(b"", ROW_VERSION + os.urandom(SECRET_BYTES))
        args: list[Arg] = [-1, os.urandom(16) + b"0", was, _encoded(row), int(fresh), secret, run_id]
        done: bool = self._server.run(script("keys"), [self._key], args)[0] == _TAKEN
        return done

    def let_go(self, row: KeysRow | None, run_id: str) -> bool:
        """The list is this one from now on; False if it is not as it was known, or this is another server."""
        known = self._known(row)
        if not self.note(row, known, self.fence, run_id=run_id):
            return False
        with self._lock:
            self._take(_encoded(row), known)
        return True

    def _take(self, raw: bytes, known: dict[str, bytes]) -> None:
        row = _decoded(raw)
        if row is None:
            self._state = _NONE
            return
        from penstock.codec.vault import Vault

        vault = Vault(known, row.active or None)
        openers = {place: vault.opener(place_of(place)) for place in _PLACES}
        sealers = {place: vault.sealer(place_of(place)) for place in _PLACES if row.active}
        # Read once: it never becomes another, but may be sealed with a key that this list does not have yet.
        secret = None if self.dedup_secret else self._server.command("HGET", self._key, SECRET_FIELD)
        if secret is not None:
            plain = openers[SECRET](b"", secret) if secret[:1] == _MARK else secret
            if plain is None:
                raise StorageCorrupt(f"{self._where}: the secret of its dedup ids does not open")
            self.dedup_secret = plain[1:]
        self._state = _State(raw, row, vault, sealers, openers)


def _decoded(raw: bytes) -> KeysRow | None:
    if not raw:
        return None
    try:
        return _decode_row(raw[1:])
    except msgspec.DecodeError as error:
        raise StorageCorrupt(f"list of keys does not decode: {error}") from error


def _encoded(row: KeysRow | None) -> bytes:
    return b"" if row is None else ROW_VERSION + msgspec.msgpack.encode(row)
