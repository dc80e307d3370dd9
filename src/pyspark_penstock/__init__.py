"""Where Spark finds `format("penstock")`: it looks for a DefaultSource in modules named pyspark_…."""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
