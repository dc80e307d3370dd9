"""Tables as Spark's schemas: the same as Arrow's to the letter, whole or in part."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType, TimestampType

from penstock.errors import InvalidConfig, InvalidMessage
from penstock.spark.schema import columns_in, conformed, spark_schema
from penstock.tables import TABLES, TableName, arrow_schema


@pytest.mark.parametrize("table", TABLES)
def test_spark_makes_of_its_schema_what_the_batches_have(table: TableName) -> None:
    assert to_arrow_schema(spark_schema(table), timezone="UTC").equals(arrow_schema(table))


def test_some_columns_in_any_order_are_a_schema() -> None:
    schema = spark_schema("events", ("kind", "seq"))

    assert schema.simpleString() == "struct<kind:string,seq:bigint>"
    assert columns_in(schema, "events", None) == ("kind", "seq")


def test_a_schema_of_the_users_own_may_be_looser_in_what_may_be_null() -> None:
    text = StringType()
    own = (
        StructType().add("headers", MapType(text, text)).add("throttle_keys", ArrayType(text)).add("id", text)
    )
    expected = to_arrow_schema(own, timezone="UTC")
    strict = arrow_schema("messages", ("headers", "throttle_keys", "id"))
    batch = pa.RecordBatch.from_pylist(
        [{"headers": {"a": "b"}, "throttle_keys": ["x"], "id": "1"}], schema=strict
    )

    assert columns_in(own, "messages", None) == ("headers", "throttle_keys", "id")
    loose = conformed(batch, expected)
    assert loose.schema.equals(expected)
    assert loose.to_pylist() == batch.to_pylist()


_TYPES = {"string": StringType(), "bigint": LongType(), "timestamp": TimestampType()}


@pytest.mark.parametrize(
    ("name", "kind", "columns", "error", "says"),
    [
        ("nope", "string", None, InvalidMessage, "table events has no column 'nope'; it has: queue, seq"),
        ("seq", "string", None, InvalidConfig, "column seq of table events is bigint, not string"),
        ("due_at", "timestamp", None, InvalidConfig, "column due_at of table events may be null"),
        ("seq", "bigint", ("kind",), InvalidConfig, "option columns is kind, but the schema has seq"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_by_name(
    name: str, kind: str, columns: tuple[str, ...] | None, error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as refused:
        columns_in(StructType([StructField(name, _TYPES[kind], nullable=False)]), "events", columns)

    assert says in str(refused.value)
