"""What is damaged or cannot be opened: named, or set aside where that is asked for; the rest is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from penstock import NewMessage
from penstock.config import Config, EncryptionSettings, StorageSettings
from tests.spark.stores import KEY, KEY_VARIABLE, broken, load


@pytest.mark.parametrize(("table", "space"), [("events", "journal"), ("messages", "messages")])
def test_damage_is_an_error_that_names_its_queue(
    spark: SparkSession, tmp_path: Path, table: str, space: str
) -> None:
    path = broken(tmp_path / "store", space)

    with pytest.raises(PySparkException) as failed:
        load(spark, path, table).collect()

    assert "StorageCorrupt: queue 'broken'" in str(failed.value)
    assert load(spark, path, table, queue="sound").count() == 3


@pytest.mark.parametrize(("table", "space"), [("events", "journal"), ("messages", "messages")])
def test_or_is_set_aside_and_counted(spark: SparkSession, tmp_path: Path, table: str, space: str) -> None:
    path = broken(tmp_path / "store", space)
    rejects = tmp_path / "rejects"

    found = load(spark, path, table, rejectsPath=rejects)

    assert {row["queue"]: row["count"] for row in found.groupBy("queue").count().collect()} == {
        "sound": 3,
        "broken": 2,
    }
    (file,) = rejects.glob("*.jsonl")
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert {one["name"] for one in told} == {"broken"}
    assert sum(one["rows"] for one in told) == 1
    assert found.count() == 5
    assert len([*rejects.iterdir()]) == 1


def sealed(folder: Path, key_file: Path) -> str:
    key_file.write_text(f"tests = {KEY}\n")
    key_file.chmod(0o600)
    encryption = EncryptionSettings(enabled=True, key_id="tests", key_file=str(key_file))
    settings = StorageSettings(path=str(folder), durability="os", encryption=encryption)
    with penstock.open(Config(source="test", default=settings)) as ps:
        ps.create_queue("orders").enqueue_many([NewMessage(b"secret %d" % n) for n in range(5)])
    return str(folder)


def test_an_encrypted_store_is_read_with_its_key_from_the_environment(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sealed(tmp_path / "store", tmp_path / "keys")
    monkeypatch.delenv(KEY_VARIABLE, raising=False)  # Spark's processes have had it from the start.

    payloads = load(spark, path, "messages", columns="payload").collect()

    assert sorted(bytes(row["payload"]) for row in payloads) == [b"secret %d" % n for n in range(5)]


def other_key(folder: Path, key_file: Path) -> str:
    """The same with a key of which Spark's processes have nothing in their environment."""
    key_file.write_text(f"hidden = {'7e' * 32}\n")
    key_file.chmod(0o600)
    encryption = EncryptionSettings(enabled=True, key_id="hidden", key_file=str(key_file))
    settings = StorageSettings(path=str(folder), durability="os", encryption=encryption)
    with penstock.open(Config(source="test", default=settings)) as ps:
        ps.create_queue("orders").enqueue_many([NewMessage(b"secret %d" % n) for n in range(5)])
    return str(folder)


def test_or_from_a_file_or_from_a_command(spark: SparkSession, tmp_path: Path) -> None:
    path = other_key(tmp_path / "store", tmp_path / "keys")
    command = tmp_path / "tell"
    command.write_text(f'#!/bin/sh\n[ "$1" = hidden ] && echo {"7e" * 32}\n')
    command.chmod(0o700)

    by_file = load(spark, path, "messages", keyFile=tmp_path / "keys")
    by_command = load(spark, path, "events", keyCommand=command)

    assert by_file.filter("payload = CAST('secret 3' AS BINARY)").count() == 1
    assert by_command.count() == 5


def test_without_its_key_it_is_refused_by_the_keys_name(spark: SparkSession, tmp_path: Path) -> None:
    path = other_key(tmp_path / "store", tmp_path / "keys")

    with pytest.raises(PySparkException) as failed:
        load(spark, path, "messages").count()

    assert "KeyMissing" in str(failed.value)
    assert "PENSTOCK_KEY_HIDDEN" in str(failed.value)
    with pytest.raises(PySparkException, match="key_file /no/such/file cannot be read"):
        load(spark, path, "messages", keyFile="/no/such/file").count()


def test_a_key_that_the_owner_has_is_needed_by_the_readers_too(spark: SparkSession, tmp_path: Path) -> None:
    other_key(tmp_path / "store", tmp_path / "keys")
    settings = StorageSettings(
        path=str(tmp_path / "store"),
        encryption=EncryptionSettings(key_id="hidden", key_file=str(tmp_path / "keys")),
    )
    with (
        penstock.open(Config(source="test", default=settings)),
        pytest.raises(PySparkException, match="KeyMissing"),
    ):
        load(spark, str(tmp_path / "store"), "messages").count()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"quue": "a"}, "option 'quue' is not known; known: url, table, queue"),
        ({"table": "jobs"}, "option table is 'jobs'; accepted: messages, events"),
        ({"columns": "nope"}, "table events has no column 'nope'"),
        ({"minPartitions": "0"}, "option minPartitions is '0'"),
        ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger goes with a stream only"),
        ({"startingOffsets": '{"nope": 1}'}, "option startingOffsets has queue 'nope', which is not read"),
        ({"endingOffsets": '{"orders": 6}'}, "queue 'orders' ends at 5, before 6"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], says: str
) -> None:
    path = sealed(tmp_path / "store", tmp_path / "keys")

    with pytest.raises(PySparkException) as failed:
        load(spark, path, "events" if "table" not in options else options.pop("table"), **options).count()

    assert says in str(failed.value)


def test_a_folder_without_a_store_is_named_and_left_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException) as failed:
        load(spark, str(tmp_path / "typo"), "events").count()

    assert f"there is no store in {tmp_path / 'typo'}; check option url" in str(failed.value)
    assert not (tmp_path / "typo").exists()


def test_events_that_retention_has_removed_are_an_error_only_if_they_were_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "store")
    with penstock.open(f"rocksdb:{path}?durability=os") as ps:
        queue = ps.create_queue("orders", journal_max_bytes=1)
        for _ in range(5):
            queue.enqueue(b"x")
        for _ in range(20):
            ps.sweep()
        first, last = queue.stats().first_seq, queue.stats().last_seq
    assert first > 2

    assert load(spark, path, "events").count() == last - first + 1
    with pytest.raises(PySparkException, match=f"HistoryTruncated.*now starts at {first}"):
        load(spark, path, "events", startingOffsets='{"orders": 1}').count()
    passed_over = load(spark, path, "events", startingOffsets='{"orders": 1}', failOnDataLoss="false")
    assert passed_over.count() == last - first + 1
