"""Sealed records: what opens, what does not, and that no nonce comes twice."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec import vault as vaults
from penstock.codec.sealed import COUNTER_BYTES, SALT_BYTES, key_id_of, refuse_sealed
from penstock.codec.vault import Vault, verifier
from penstock.errors import DecryptFailed

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
PLACE, ROW = b"\x08messages", bytes(20)


def seal(vault: Vault, value: bytes) -> bytes:
    return vault.sealer(PLACE)(ROW, value)


def opened(vault: Vault, record: bytes, row: bytes = ROW, place: bytes = PLACE) -> bytes | None:
    return vault.opener(place)(row, record)


@pytest.fixture
def vault() -> Vault:
    return Vault({"main": KEY}, "main")


def nonce(record: bytes) -> bytes:
    """Salt and counter: what must never come twice under a key."""
    at = 2 + record[1]
    return record[at : at + SALT_BYTES + COUNTER_BYTES]


@given(value=st.binary(max_size=2000), row=st.binary(max_size=60))
def test_a_sealed_value_opens_where_it_belongs(value: bytes, row: bytes) -> None:
    vault = Vault({"main": KEY}, "main")
    record = vault.sealer(PLACE)(row, value)
    assert opened(Vault({"main": KEY}, None), record, row) == value
    assert key_id_of(record) == "main"
    # Shorter ones may be in the counter, or in the salt by chance.
    assert len(value) < 16 or value not in record


def test_the_same_value_never_looks_the_same(vault: Vault) -> None:
    records = {seal(vault, b"value") for _ in range(100)}
    assert len({nonce(record) for record in records}) == 100


def test_each_vault_has_a_salt_of_its_own() -> None:
    salts = {nonce(seal(Vault({"main": KEY}, "main"), b""))[:SALT_BYTES] for _ in range(20)}
    assert len(salts) == 20


def test_no_nonce_comes_twice_in_threads_or_when_a_subkey_is_used_up(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vaults, "RECORDS_PER_SUBKEY", 300)
    records: list[bytes] = []

    def work() -> None:
        records.extend(seal(vault, b"value") for _ in range(1000))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    nonces = {nonce(record) for record in records}
    assert len(nonces) == len(records) == 4000
    assert len({each[:SALT_BYTES] for each in nonces}) >= 4000 // 300
    assert all(opened(vault, record) == b"value" for record in records)


@pytest.mark.parametrize("at", range(2 + 4 + SALT_BYTES + COUNTER_BYTES + len(b"value") + 16))
def test_a_record_with_any_byte_changed_does_not_open(vault: Vault, at: int) -> None:
    record = bytearray(seal(vault, b"value"))
    record[at] ^= 1
    assert at == 0 or opened(vault, bytes(record)) is None


@given(length=st.integers(0, 60))
def test_a_record_that_was_cut_does_not_open(length: int) -> None:
    vault = Vault({"main": KEY}, "main")
    record = seal(vault, b"a value of some bytes")
    assert opened(vault, record[:length]) is None


@pytest.mark.parametrize("row", [b"", ROW + b"\0", ROW[:-1], ROW[:-1] + b"\1"])
def test_a_record_does_not_open_under_another_key(vault: Vault, row: bytes) -> None:
    record = seal(vault, b"value")
    open_record = vault.opener(PLACE)
    assert open_record(row, record) is None
    assert open_record(ROW, record) == b"value"
    assert open_record(row, record) is None


def test_a_record_does_not_open_in_another_place(vault: Vault) -> None:
    assert opened(vault, seal(vault, b"value"), place=b"\x07journal") is None


def test_a_record_opens_with_the_key_that_it_names_alone() -> None:
    record = seal(Vault({"main": KEY}, "main"), b"value")
    assert opened(Vault({"main": OTHER}, None), record) is None
    assert opened(Vault({"other": KEY}, None), record) is None
    assert opened(Vault({"other": OTHER, "main": KEY}, "other"), record) == b"value"


def test_a_verifier_tells_keys_apart_and_is_not_a_part_of_one() -> None:
    assert verifier(KEY) == verifier(bytes(KEY)) != verifier(OTHER)
    assert verifier(KEY) not in KEY


def test_more_openings_than_are_kept_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vaults, "SUBKEYS_KEPT", 3)
    records = [seal(Vault({"main": KEY}, "main"), b"%d" % n) for n in range(10)]
    reader = Vault({"main": KEY}, None)
    for _ in range(2):
        assert [opened(reader, record) for record in records] == [b"%d" % n for n in range(10)]


def test_a_refusal_names_what_and_which_key_and_shows_nothing_of_the_record(vault: Vault) -> None:
    record = seal(vault, b"value")
    with pytest.raises(DecryptFailed, match=r"body of 51 bytes, sealed with key .main., does not open"):
        refuse_sealed(record, "message body")
    for plain in (b"", b"\1", b"\1value"):
        refuse_sealed(plain, "message body")
    for stump in (b"\xe1", b"\xe1\xff", b"\xe1\x04ma"):
        with pytest.raises(DecryptFailed):
            refuse_sealed(stump, "message body")
