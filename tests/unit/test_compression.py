"""Compressed bodies: smaller where that is possible, bounded where they lie about their size."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from random import Random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import ManualClock, NewMessage, StorageCorrupt
from penstock.backends.embedded.keys import SPACES
from penstock.codec.body import BODY_VERSION, COMPRESSED_VERSION, Body, decode_body, encode_body
from penstock.codec.compression import compressed, decompressed
from penstock.kv.rocksdb import RocksStore
from penstock.message import MAX_PAYLOAD_BYTES

LIMIT = 10_000
NOISE = Random(7).randbytes(2000)


def body(payload: bytes) -> Body:
    return Body(4, 1, 1, 2, 3, "key", {"name": "value"}, (), "dedup", payload)


@given(payload=st.binary(max_size=3000), over=st.integers(0, 3000))
def test_a_body_comes_back_whatever_its_payload(payload: bytes, over: int) -> None:
    raw = encode_body(body(payload), over)
    assert decode_body(raw) == body(payload)
    assert len(raw) <= len(encode_body(body(payload)))
    assert raw[0] == BODY_VERSION or len(payload) > over


def test_only_what_is_over_the_size_and_becomes_smaller_is_compressed() -> None:
    assert encode_body(body(b"x" * 100), 100)[0] == BODY_VERSION
    assert encode_body(body(b"x" * 101), 100)[0] == COMPRESSED_VERSION
    assert encode_body(body(NOISE), 100) == encode_body(body(NOISE))
    assert encode_body(body(b""), 0)[0] == BODY_VERSION
    assert len(encode_body(body(b"x" * 100_000), 0)) < 200


def test_a_payload_of_the_largest_size_fits() -> None:
    payload = bytes(MAX_PAYLOAD_BYTES)
    raw = encode_body(body(payload), 0)
    assert len(raw) < 10_000
    assert decode_body(raw).payload == payload


def bomb(size: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(size))


def lying(size: int, claimed: int) -> bytes:
    """A frame of `size` bytes that claims another size."""
    honest = bomb(size)
    at = honest.index(zstandard.MAGIC_NUMBER.to_bytes(4, "little")) + 5
    for width in (8, 4, 2, 1):
        found = honest[at : at + width]
        offset = 256 if width == 2 else 0
        if int.from_bytes(found, "little") + offset == size:
            return honest[:at] + (claimed - offset).to_bytes(width, "little") + honest[at + width :]
    raise AssertionError("no size in the frame")


def without_size(size: int) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(bytes(size))


@pytest.mark.parametrize(
    "packed",
    [
        bomb(LIMIT + 1),
        bomb(1 << 28),
        lying(70_000, 1000),
        lying(70_000, 9000),
        without_size(100),
        bomb(100)[:-1],
        bomb(100) + b"more",
        bomb(100) + bomb(100),
        b"",
        b"\0",
        NOISE,
    ],
)
def test_what_is_too_large_or_does_not_decompress_is_damage(packed: bytes) -> None:
    with pytest.raises(StorageCorrupt, match="compressed payload"):
        decompressed(packed, LIMIT)


def test_a_bomb_in_a_body_is_damage() -> None:
    raw = encode_body(body(b"x" * 1000), 0)
    head = raw[: -len(compressed(b"x" * 1000) or b"")]
    with pytest.raises(StorageCorrupt, match=f"the limit is {MAX_PAYLOAD_BYTES}"):
        decode_body(head + bomb(MAX_PAYLOAD_BYTES + 1))


@given(flips=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 7)), min_size=1, max_size=3))
def test_a_flipped_bit_never_raises_anything_but_damage(flips: list[tuple[int, int]]) -> None:
    raw = bytearray(encode_body(body(bytes(range(200)) * 20), 0))
    for at, bit in flips:
        raw[at % len(raw)] ^= 1 << bit
    with contextlib.suppress(StorageCorrupt):
        decode_body(bytes(raw))


def test_threads_compress_beside_each_other() -> None:
    wrong = []

    def work(seed: int) -> None:
        rng = Random(seed)
        for _ in range(300):
            payload = rng.randbytes(50) * rng.randint(2, 200)
            packed = compressed(payload)
            if packed is None or decompressed(packed, LIMIT) != payload:
                wrong.append(payload)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_damaged_compressed_body_goes_to_quarantine_and_the_others_are_delivered(tmp_path: Path) -> None:
    with penstock.open(tmp_path, clock=ManualClock()) as ps:
        q = ps.create_queue("q", compress_over_bytes=10)
        q.enqueue_many([NewMessage(b"%d" % n * 1000) for n in range(5)])
    store = RocksStore.open(tmp_path, SPACES)
    space = store.space("messages")
    key, value = next(store.scan(space, b"", None))
    assert value[0] == COMPRESSED_VERSION
    batch = store.batch()
    batch.put(key, value[:-3], space)
    store.write(batch)
    del space, batch
    store.close()
    with penstock.open(tmp_path, clock=ManualClock()) as ps:
        assert any("decompress" in problem.what for problem in ps.check().problems)
        assert [d.payload[:1] for d in ps.queue("q").lease(9)] == [b"1", b"2", b"3", b"4"]
        assert [item.space for item in ps.quarantine()] == ["messages"]
        assert ps.check().problems == []


def versions(ps: penstock.Penstock) -> list[int]:
    kv = ps._default.engine.kv  # type: ignore[attr-defined]  # the rows behind the facade
    return [value[0] for _, value in kv.scan(kv.space("messages"), b"", None)]


@pytest.mark.parametrize("way", ["enqueue", "with an id", "delayed", "upsert", "move", "bury"])
def test_whichever_way_a_payload_comes_into_the_queue_it_is_stored_compressed(way: str) -> None:
    payload = b"x" * 1000
    with penstock.open("memory:", clock=ManualClock()) as ps:
        q = ps.create_queue("small", compress_over_bytes=10)
        other = ps.create_queue("other", dead_letter="small")
        if way == "enqueue":
            q.enqueue(payload)
        elif way == "with an id":
            q.enqueue(payload, id="0190b5c4-7d3a-7000-8000-000000000001")
        elif way == "delayed":
            q.enqueue(payload, delay_s=5)
        elif way == "upsert":
            (first,) = q.upsert([NewMessage(b"")])
            q.upsert([NewMessage(payload, id=first.id)])
        elif way == "move":
            other.move([other.enqueue(payload)], "small")
        else:
            other.enqueue(payload)
            other.reject([other.lease()[0].receipt])
        assert versions(ps) == [COMPRESSED_VERSION]
        ps.update_queue("small", compress_over_bytes=None)
        assert [message.payload for message in q.iter()] == [payload]
