"""Encryption at rest of an embedded store: which rows are secret, which keys it uses, and its unlocking."""

from __future__ import annotations

import logging

import msgspec

from penstock.backends.embedded import keys
from penstock.backends.embedded.keys import Meta
from penstock.backends.embedded.rows import packed, unpacked
from penstock.backends.unlocking import PLAIN, KeysRow, active_key, is_verified, needed_key, wrong_key
from penstock.codec.sealed import key_id_of, place_of
from penstock.config import EncryptionSettings
from penstock.errors import InvalidConfig
from penstock.keyring import KeyProvider
from penstock.kv.base import Store
from penstock.kv.damage import readable_rows
from penstock.kv.sealed import Rule, SealedStore

log = logging.getLogger("penstock")

#: Where a state row has the length of its reason, the one secret part of it.
_REASON_LENGTH = slice(51, 55)
_NO_REASON = bytes(4)
#: The others are secret, and so is a kind that nobody has thought about. A queue's settings are if they have
#: a script.
_CLEAR_META = frozenset(
    (
        Meta.FORMAT,
        Meta.COUNTERS,
        Meta.WORLD,
        Meta.CURSOR,
        Meta.JOB,
        Meta.LANE_HINT,
        Meta.DUE_HINT,
        Meta.NEXT_NUMBER,
        Meta.OPENINGS,
        Meta.KEYS,
        Meta.REKEY,
    )
)


class _Secrets(msgspec.Struct):
    """What is secret of a queue's settings."""

    on_enqueue: str | None = None
    on_failure: str | None = None
    annotations: dict[str, str] = {}


class _QueueRow(msgspec.Struct, array_like=True):
    qid: int
    settings: _Secrets


_decode_queue = msgspec.msgpack.Decoder(_QueueRow).decode


def _has_secret(value: bytes) -> bool:
    try:
        found = _decode_queue(value[1:]).settings
    except msgspec.DecodeError:
        return False  # Damaged, which whoever reads it says.
    return found.on_enqueue is not None or found.on_failure is not None or bool(found.annotations)


def _is_secret_meta(key: bytes, value: bytes) -> bool:
    return _has_secret(value) if key[0] == Meta.QUEUE else key[0] not in _CLEAR_META


#: Spaces with secret values, and which of their rows are secret. Keys, and all other rows, stay readable.
RULES: dict[str, Rule] = {
    "messages": lambda key, value: True,
    "journal": lambda key, value: True,
    "state": lambda key, value: value[_REASON_LENGTH] != _NO_REASON,
    "meta": _is_secret_meta,
}


class RekeyRow(msgspec.Struct, array_like=True):
    """A rekeying under way: how far it is and what it has found.

    `space` counts through `RULES`; `unreadable` are records that do not open, by the key that they name.
    """

    target: str
    space: int = 0
    position: bytes = b""
    done_bytes: int = 0
    total_bytes: int = 0
    records: int = 0
    rewritten: int = 0
    unreadable: dict[str, int] = {}


_decode_keys = msgspec.msgpack.Decoder(KeysRow).decode
_decode_rekey = msgspec.msgpack.Decoder(RekeyRow).decode

#: By key, records that it should open: space, key of the row, record.
Samples = dict[str, list[tuple[str, bytes, bytes]]]
#: So many of each: some may have been altered.
_SAMPLES = 8


def read_keys(kv: Store) -> KeysRow | None:
    raw = kv.get(keys.meta(Meta.KEYS), kv.space("meta"))
    return None if raw is None else unpacked(raw, _decode_keys, "keys")


def read_rekey(kv: Store) -> RekeyRow | None:
    raw = kv.get(keys.meta(Meta.REKEY), kv.space("meta"))
    return None if raw is None else unpacked(raw, _decode_rekey, "rekey")


def unlock(
    kv: Store, settings: EncryptionSettings, provider: KeyProvider, where: str, *, is_new: bool
) -> Store:
    """The store to use: sealed if it has, or is to have, sealed records; else as it is.

    Every key that the store lists is asked for and verified before anything is written. A key that is new to
    it is listed, durably, before its first use.
    """
    row = read_keys(kv)
    active = active_key(settings, row)
    named: Samples = {}
    if not is_new and (_may_lack_keys(kv) or (row is None and active != PLAIN)):
        named = named_keys(kv)
    if row is None and named:
        log.error("%s has lost the list of its keys: made anew from its records", where)
        active = active if settings.enabled is not None else _only(named, where)
    if row is None and active == PLAIN and not named:
        return kv
    # Only here: a store without encryption does not load the library.
    from penstock.codec.vault import Vault

    verifiers = dict(row.verifiers) if row is not None else {} if is_new else {PLAIN: b""}
    known = {key_id: needed_key(provider, key_id, where) for key_id in {*verifiers, *named, active} - {PLAIN}}
    for key_id, key in known.items():
        verifiers[key_id] = _verified(key_id, key, verifiers.get(key_id), named.get(key_id, []), where)
    if active == PLAIN:
        verifiers[PLAIN] = b""
        log.warning("%s has sealed records, but encryption is off: what is new is written plain", where)
    _note(kv, row, KeysRow(active, verifiers))
    rules = {name: RULES.get(name) for name in keys.SPACES}
    return SealedStore(kv, Vault(known, active or None), rules, takes_plain=PLAIN in verifiers)


def _may_lack_keys(kv: Store) -> bool:
    """Whether the list of keys may have been lost, or be an older one that was below what was lost."""
    return any(loss.space in ("meta", "") for loss in kv.losses())


def named_keys(kv: Store) -> Samples:
    """The keys that records name, each with some of them: they know what a list that was lost has known."""
    found: Samples = {}
    for name in RULES:
        for key, value in readable_rows(kv, kv.space(name), name, b"", None, lambda hole: None):
            if (key_id := key_id_of(value)) is not None:
                samples = found.setdefault(key_id, [])
                if len(samples) < _SAMPLES:
                    samples.append((name, key, value))
    return found


def _only(named: Samples, where: str) -> str:
    if len(named) > 1:
        raise InvalidConfig(
            f"{where} has lost the list of its keys, and records of {', '.join(sorted(named))}: say with "
            "storage.encryption, enabled and key_id, which of them is to be used"
        )
    return next(iter(named))


def _verified(
    key_id: str, key: bytes, expected: bytes | None, samples: list[tuple[str, bytes, bytes]], where: str
) -> bytes:
    """The verifier of a key, which is the right one: by the list, else by what it opens."""
    from penstock.codec.vault import Vault, verifier

    if expected is not None:
        right = is_verified(key, expected)
    else:
        vault = Vault({key_id: key}, None)
        right = not samples or any(
            vault.opener(place_of(name))(row_key, record) is not None for name, row_key, record in samples
        )
    if not right:
        raise wrong_key(key_id, where)
    return verifier(key)


def _note(kv: Store, old: KeysRow | None, new: KeysRow) -> None:
    if old == new:
        return
    batch = kv.batch()
    batch.put(keys.meta(Meta.KEYS), packed(new), kv.space("meta"))
    # Whatever a rekeying to another key has passed may be sealed with this one from now on. It is not
    # turned round either: records are never made plain because a setting was wrong once.
    batch.delete(keys.meta(Meta.REKEY), kv.space("meta"))
    kv.write(batch, sync=True)
