"""Columns as Spark's types, the other way round, and Arrow batches in exactly the form that Spark expects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidConfig
from penstock.tables import TableName, Type, columns_of

if TYPE_CHECKING:
    import pyarrow

TYPES: dict[Type, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "timestamp": TimestampType(),
    "map": MapType(StringType(), StringType(), valueContainsNull=False),
    "strings": ArrayType(StringType(), containsNull=False),
    "doubles": ArrayType(DoubleType(), containsNull=False),
}


def spark_schema(table: TableName, columns: Sequence[str] | None = None) -> StructType:
    fields = [StructField(c.name, TYPES[c.type], c.nullable) for c in columns_of(table, columns)]
    return StructType(fields)


def columns_in(schema: StructType, table: TableName, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns that a schema asks for, which may be the user's own: in any order, as many as wanted."""
    names = tuple(schema.fieldNames())
    if columns is not None and names != tuple(columns):
        raise InvalidConfig(f"option columns is {','.join(columns)}, but the schema has {','.join(names)}")
    for column, field in zip(columns_of(table, names), schema.fields, strict=True):
        known = TYPES[column.type].simpleString()
        if field.dataType.simpleString() != known:
            raise InvalidConfig(
                f"column {column.name} of table {table} is {known}, not {field.dataType.simpleString()}"
            )
        if column.nullable and not field.nullable:
            raise InvalidConfig(
                f"column {column.name} of table {table} may be null; the schema says that it is not"
            )
    return names


def conformed(batch: pyarrow.RecordBatch, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """The same rows under another schema, which differs in what may be null at most: nothing is copied."""
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return type(batch).from_arrays(columns, schema=schema)
