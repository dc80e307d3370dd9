"""The contract of `penstock.kv.base.Store` as tests: one class to subclass per implementation.

::

    class TestMyStore(StoreSuite):
        def make(self, folder: str) -> Store:
            return MyStore(folder, SPACES)

        def open_checkpoint(self, path: str) -> Store: ...
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StorageError
from penstock.kv.base import Reader, Row, Space, Store

SPACES = ("left", "right")
"""The spaces that a store under test is opened with."""

Model = dict[str, dict[bytes, bytes]]
Change = tuple[str, str, bytes, bytes]

# Few distinct bytes, so that random keys collide, nest as prefixes and meet the ends of the byte order.
keys = st.lists(st.sampled_from([0x00, 0x01, 0x7F, 0xFE, 0xFF]), max_size=4).map(bytes)
bounds = st.none() | keys
changes = st.tuples(st.sampled_from(["put", "delete", "delete_range"]), st.sampled_from(SPACES), keys, keys)


def put(store: Store, space: Space, rows: dict[bytes, bytes], *, sync: bool = False) -> None:
    """Write `rows` to `space` in one batch."""
    batch = store.batch()
    for key, value in rows.items():
        batch.put(key, value, space)
    store.write(batch, sync=sync)


def numbered(count: int) -> dict[bytes, bytes]:
    """Rows that sort in the order of their numbers."""
    return {b"%06d" % number: b"value %d" % number for number in range(count)}


def within(rows: dict[bytes, bytes], lower: bytes, upper: bytes | None) -> list[Row]:
    """What a scan should give, worked out the slow and obvious way."""
    return sorted(row for row in rows.items() if lower <= row[0] and (upper is None or row[0] < upper))


def apply_to_model(change: Change, model: Model) -> None:
    kind, name, first, second = change
    rows = model[name]
    if kind == "put":
        rows[first] = second
    elif kind == "delete":
        rows.pop(first, None)
    else:
        for key, _ in within(rows, *sorted((first, second))):
            del rows[key]


def write_changes(store: Store, batch_of: list[Change]) -> None:
    batch = store.batch()
    for kind, name, first, second in batch_of:
        space = store.space(name)
        if kind == "put":
            batch.put(first, second, space)
        elif kind == "delete":
            batch.delete(first, space)
        else:
            batch.delete_range(min(first, second), max(first, second), space)
    store.write(batch)


def empty(store: Store) -> None:
    """Remove every key that `keys` can draw."""
    write_changes(store, [("delete_range", name, b"", b"\xff" * 5) for name in SPACES])


def assert_agrees(
    reader: Reader,
    space: Space,
    rows: dict[bytes, bytes],
    lower: bytes,
    upper: bytes | None,
    limit: int | None,
) -> None:
    """All three ways of reading give what the model gives."""
    expected = within(rows, lower, upper)
    assert list(reader.scan(space, b"", None)) == within(rows, b"", None)
    assert list(reader.scan(space, lower, upper, limit=limit)) == expected[:limit]
    assert list(reader.scan(space, lower, upper, reverse=True, limit=limit)) == expected[::-1][:limit]
    asked = [lower, *rows, b"missing"]
    assert reader.get_many(asked, space) == [rows.get(key) for key in asked]
    assert [reader.get(key, space) for key in asked] == [rows.get(key) for key in asked]


class StoreSuite:
    """Every sentence of the contract. Subclass it, and say how to make a store and how to open a copy."""

    def make(self, folder: str) -> Store:
        """An empty store with `SPACES`, in `folder` (which does not exist yet) if it needs one."""
        raise NotImplementedError

    def open_checkpoint(self, path: str) -> Store:
        """The copy that `checkpoint(path)` made."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = self.make(str(tmp_path / "store"))
        yield store
        store.close()

    @pytest.fixture
    def left(self, store: Store) -> Space:
        return store.space("left")

    @pytest.fixture
    def right(self, store: Store) -> Space:
        return store.space("right")

    # Point reads

    def test_get_gives_the_value_or_none(self, store: Store, left: Space) -> None:
        put(store, left, {b"a": b"1"})
        assert store.get(b"a", left) == b"1"
        assert store.get(b"b", left) is None

    def test_get_many_keeps_the_order_of_the_keys_and_marks_misses(self, store: Store, left: Space) -> None:
        put(store, left, {b"a": b"1", b"b": b"2", b"c": b""})
        assert store.get_many([b"c", b"x", b"a", b"a"], left) == [b"", None, b"1", b"1"]
        assert store.get_many((b"b",), left) == [b"2"]
        assert store.get_many([], left) == []

    def test_any_bytes_are_keys_and_values(self, store: Store, left: Space) -> None:
        rows = {b"": b"empty key", b"\0": b"", b"\xff" * 9: b"\0\xff", bytes(range(256)): bytes(range(256))}
        put(store, left, rows)
        assert list(store.scan(left, b"", None)) == sorted(rows.items())
        assert store.get_many(list(rows), left) == list(rows.values())

    def test_a_large_value_comes_back_whole(self, store: Store, left: Space) -> None:
        value = bytes(range(256)) * 4096
        put(store, left, {b"large": value})
        assert store.get(b"large", left) == value
        assert list(store.scan(left, b"", None)) == [(b"large", value)]

    # Scans

    @pytest.mark.parametrize(
        ("lower", "upper"),
        [
            (b"", None),
            (b"000003", b"000007"),
            (b"0000035", b"0000065"),
            (b"000990", None),
            (b"", b"000001"),
            (b"000005", b"000005"),
            (b"000007", b"000003"),
            (b"", b""),
            (b"a", b"b"),
            (b"\xff", None),
        ],
    )
    def test_scan_gives_lower_to_before_upper_both_ways(
        self, store: Store, left: Space, lower: bytes, upper: bytes | None
    ) -> None:
        rows = numbered(1000)
        put(store, left, rows)
        chunks = list(store.scan_chunks(left, lower, upper, max_rows=16, max_bytes=10_000))
        assert [row for chunk in chunks for row in zip(*chunk, strict=True)] == within(rows, lower, upper)
        assert all(len(found) == 16 for found, _ in chunks[:-1])
        expected = within(rows, lower, upper)
        assert list(store.scan(left, lower, upper)) == expected
        assert list(store.scan(left, lower, upper, reverse=True)) == expected[::-1]

    @pytest.mark.parametrize("limit", [0, 1, 2, 127, 128, 129, 999, 1000, 1001, 5000])
    def test_limit_counts_from_the_end_that_the_scan_starts_at(
        self, store: Store, left: Space, limit: int
    ) -> None:
        rows = numbered(1000)
        put(store, left, rows)
        assert list(store.scan(left, b"", None, limit=limit)) == sorted(rows.items())[:limit]
        descending = sorted(rows.items(), reverse=True)
        assert list(store.scan(left, b"", None, reverse=True, limit=limit)) == descending[:limit]

    def test_a_scan_survives_writes_and_gives_each_untouched_row_once(
        self, store: Store, left: Space
    ) -> None:
        put(store, left, numbered(1000))
        seen = []
        for key, _ in store.scan(left, b"", None):
            seen.append(key)
            batch = store.batch()
            batch.delete(key, left)
            batch.put(b"!" + key, b"behind the scan", left)
            store.write(batch)
        assert seen == list(numbered(1000))

    # Batches

    def test_a_batch_is_invisible_until_written(self, store: Store, left: Space) -> None:
        batch = store.batch()
        batch.put(b"a", b"1", left)
        assert store.get(b"a", left) is None
        store.write(batch)
        assert store.get(b"a", left) == b"1"

    def test_changes_of_a_batch_apply_in_order(self, store: Store, left: Space) -> None:
        batch = store.batch()
        batch.put(b"a", b"1", left)
        batch.put(b"a", b"2", left)
        batch.put(b"b", b"1", left)
        batch.delete(b"b", left)
        batch.put(b"c", b"1", left)
        batch.delete_range(b"c", b"d", left)
        batch.put(b"c1", b"after", left)
        batch.delete(b"never there", left)
        store.write(batch)
        assert list(store.scan(left, b"", None)) == [(b"a", b"2"), (b"c1", b"after")]

    def test_delete_range_spares_its_upper_bound(self, store: Store, left: Space) -> None:
        put(store, left, numbered(10))
        batch = store.batch()
        batch.delete_range(b"000002", b"000008", left)
        batch.delete_range(b"000000", b"000000", left)
        store.write(batch)
        assert [key for key, _ in store.scan(left, b"", None)] == [b"000000", b"000001", b"000008", b"000009"]
        assert store.get(b"000005", left) is None

    def test_an_empty_batch_and_a_sync_of_nothing_are_no_errors(self, store: Store) -> None:
        store.write(store.batch())
        store.write(store.batch(), sync=True)
        store.sync()

    def test_a_batch_is_used_once(self, store: Store, left: Space) -> None:
        batch = store.batch()
        batch.put(b"a", b"1", left)
        store.write(batch)
        with pytest.raises(StorageError):
            store.write(batch)

    def test_readers_see_a_batch_whole_or_not_at_all(self, store: Store, left: Space, right: Space) -> None:
        """A snapshot, which alone can look at two rows at one moment, never finds them unequal."""
        put(store, left, {b"n": b"0"})
        put(store, right, {b"n": b"0"})
        done = threading.Event()
        torn: list[object] = []

        def read() -> None:
            while not done.is_set():
                snapshot = store.snapshot()
                if snapshot.get(b"n", left) != snapshot.get(b"n", right):
                    torn.append(snapshot)
                snapshot.release()
                list(store.scan(left, b"", None))
                store.get_many([b"n", b"missing"], right)

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        for number in range(300):
            batch = store.batch()
            batch.put(b"n", b"%d" % number, left)
            batch.put(b"n", b"%d" % number, right)
            store.write(batch, sync=number % 100 == 0)
        done.set()
        for reader in readers:
            reader.join()
        assert not torn

    # Spaces

    def test_spaces_do_not_see_each_other(self, store: Store, left: Space, right: Space) -> None:
        put(store, left, {b"a": b"left"})
        put(store, right, {b"a": b"right", b"b": b"right"})
        batch = store.batch()
        batch.delete_range(b"", b"\xff", right)
        store.write(batch)
        assert list(store.scan(left, b"", None)) == [(b"a", b"left")]
        assert list(store.scan(right, b"", None)) == []

    def test_an_unknown_space_is_an_error(self, store: Store) -> None:
        with pytest.raises(StorageError, match="nowhere"):
            store.space("nowhere")

    # Snapshots

    def test_a_snapshot_does_not_change(self, store: Store, left: Space, right: Space) -> None:
        rows = numbered(600)
        put(store, left, rows)
        snapshot = store.snapshot()
        batch = store.batch()
        batch.delete_range(b"000100", b"000500", left)
        batch.put(b"000000", b"changed", left)
        batch.put(b"new", b"new", left)
        batch.put(b"new", b"new", right)
        store.write(batch)
        assert list(snapshot.scan(left, b"", None)) == sorted(rows.items())
        assert list(snapshot.scan(left, b"", None, reverse=True)) == sorted(rows.items(), reverse=True)
        assert list(snapshot.scan(left, b"000099", b"000101", limit=2)) == within(rows, b"000099", b"000101")
        assert list(snapshot.scan(left, b"0", b"000002", reverse=True, limit=1)) == [(b"000001", b"value 1")]
        assert snapshot.get_many([b"000000", b"new", b"000300"], left) == [b"value 0", None, b"value 300"]
        assert snapshot.get(b"new", right) is None
        snapshot.release()

    def test_two_scans_of_one_snapshot_do_not_disturb_each_other(self, store: Store, left: Space) -> None:
        rows = sorted(numbered(700).items())
        put(store, left, dict(rows))
        snapshot = store.snapshot()
        pairs = zip(snapshot.scan(left, b"", None), snapshot.scan(left, b"", None, reverse=True), strict=True)
        assert list(pairs) == list(zip(rows, rows[::-1], strict=True))
        snapshot.release()

    def test_a_released_snapshot_answers_no_more(self, store: Store, left: Space) -> None:
        snapshot = store.snapshot()
        snapshot.release()
        snapshot.release()
        with pytest.raises(StorageError):
            snapshot.get(b"a", left)

    # Whole ranges

    def test_chunks_end_where_they_are_large_enough(self, store: Store, left: Space) -> None:
        put(store, left, {b"%03d" % number: bytes(1000) for number in range(200)})
        sizes = [len(k) for k, _ in store.scan_chunks(left, b"", None, max_rows=1000, max_bytes=50_000)]
        assert sum(sizes) == 200
        assert all(40 <= size < 70 for size in sizes[:-1])

    def test_a_range_is_cut_into_parts_of_about_one_size(self, store: Store, left: Space) -> None:
        rows = numbered(10_000)
        put(store, left, rows)
        store.compact()
        assert store.split(left, b"", None, 1) == []
        for lower, upper in ((b"", None), (b"002", b"0075"), (b"009999", None), (b"x", None), (b"5", b"4")):
            inside = within(rows, lower, upper)
            cuts = store.split(left, lower, upper, 4)
            assert cuts == sorted(set(cuts))
            assert all(lower < cut and (upper is None or cut < upper) for cut in cuts)
            edges = [lower, *cuts, upper]
            sizes = [len(within(rows, low or b"", high)) for low, high in pairwise(edges)]
            if len(inside) > 4:
                assert len(sizes) == 4
                assert max(sizes) < 0.5 * len(inside)

    # Copies, size, end of life

    def test_a_checkpoint_is_a_copy_as_of_its_moment(self, store: Store, left: Space, tmp_path: Path) -> None:
        put(store, left, numbered(100))
        store.checkpoint(str(tmp_path / "copy"))
        put(store, left, {b"later": b"1"})
        copy = self.open_checkpoint(str(tmp_path / "copy"))
        assert dict(copy.scan(copy.space("left"), b"", None)) == numbered(100)
        put(copy, copy.space("left"), {b"only here": b"1"})
        assert store.get(b"only here", left) is None
        copy.close()

    def test_a_checkpoint_overwrites_nothing(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "taken").mkdir()
        with pytest.raises(StorageError, match="taken"):
            store.checkpoint(str(tmp_path / "taken"))
        assert list((tmp_path / "taken").iterdir()) == []

    def test_approximate_size_follows_the_content(self, store: Store, left: Space) -> None:
        before = store.approximate_size()
        put(store, left, {b"%d" % number: bytes(100_000) for number in range(20)})
        assert 2_000_000 <= store.approximate_size() - before < 20_000_000

    def test_ingest_refuses_what_is_no_sorted_file(self, store: Store, left: Space, tmp_path: Path) -> None:
        """A store that takes no files at all raises the same."""
        (tmp_path / "junk.sst").write_bytes(b"junk")
        with pytest.raises(StorageError):
            store.ingest([str(tmp_path / "junk.sst")], left)

    def test_closing_twice_is_no_error_and_other_calls_raise(
        self, store: Store, left: Space, tmp_path: Path
    ) -> None:
        batch = store.batch()
        store.close()
        store.close()
        for call in (
            lambda: store.get(b"a", left),
            lambda: store.get_many([b"a"], left),
            lambda: store.scan(left, b"", None),
            lambda: list(store.scan_chunks(left, b"", None, max_rows=1, max_bytes=1)),
            lambda: store.split(left, b"", None, 2),
            lambda: store.space("left"),
            store.batch,
            lambda: store.write(batch),
            store.sync,
            store.snapshot,
            lambda: store.checkpoint(str(tmp_path / "copy")),
            lambda: store.ingest([], left),
            store.approximate_size,
            store.compact,
        ):
            with pytest.raises(StorageError, match="closed"):
                call()

    # Compaction

    def test_compaction_changes_nothing_that_can_be_read(self, store: Store, left: Space) -> None:
        put(store, left, numbered(1000))
        batch = store.batch()
        batch.delete_range(b"000100", b"000200", left)
        batch.delete(b"000500", left)
        batch.put(b"000501", b"anew", left)
        store.write(batch)
        snapshot, before = store.snapshot(), dict(store.scan(left, b"", None))
        store.compact()
        assert dict(store.scan(left, b"", None)) == before
        assert dict(snapshot.scan(left, b"", None)) == before
        snapshot.release()
        store.compact()
        put(store, left, {b"after": b"1"})
        assert store.get(b"after", left) == b"1"

    # Everything together

    def test_any_sequence_of_batches_agrees_with_a_dictionary(self, store: Store) -> None:
        # Inside the test, so that Hypothesis sees one function per store rather than one for all of them.
        @settings(max_examples=100, deadline=None)
        @given(
            batches=st.lists(st.lists(changes, max_size=8), max_size=12),
            snapshot_after=st.integers(0, 12),
            lower=keys,
            upper=bounds,
            limit=st.none() | st.integers(0, 6),
        )
        def agrees(
            batches: list[list[Change]],
            snapshot_after: int,
            lower: bytes,
            upper: bytes | None,
            limit: int | None,
        ) -> None:
            empty(store)
            model: Model = {name: {} for name in SPACES}
            snapshot, frozen = store.snapshot(), deepcopy(model)
            for number, batch_of in enumerate(batches):
                write_changes(store, batch_of)
                for change in batch_of:
                    apply_to_model(change, model)
                if number == snapshot_after:
                    snapshot.release()
                    snapshot, frozen = store.snapshot(), deepcopy(model)
            for name in SPACES:
                space = store.space(name)
                assert_agrees(store, space, model[name], lower, upper, limit)
                assert_agrees(snapshot, space, frozen[name], lower, upper, limit)
            snapshot.release()

        agrees()
