# SPDX-License-Identifier: Apache-2.0
"""Spark's filters as subscriptions: messages without a match stay in the queue.

A filter is translated only if the broker selects exactly the rows that Spark would keep. A null is an absent
property, or a property of a type other than the column's. If the difference matters, Spark keeps the filter.
"""

from __future__ import annotations

import importlib
import operator
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyspark
from msgspec.structs import replace
from pyspark.sql.types import StructType

from bmq.errors import InvalidExpression, UsageError
from bmq.spark.batch_reader import BatchReader
from bmq.spark.options import Expressions, ReadOptions
from bmq.subscriptions import Expression, Filter, Operand, P

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter as SparkFilter

__all__ = ["FilteredReader"]

_INTEGERS = {"byte": 8, "short": 16, "integer": 32, "long": 64}

_COMPARISONS = {
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
}

# A string column shows numbers and booleans as text, while the broker compares only strings with strings.
_TEXT_OF_ANOTHER_TYPE = re.compile(r"-?[0-9]+|true|false")


class FilteredReader(BatchReader):
    """Reads the messages that match Spark's filters.

    Raises:
        UsageError: this pyspark does not push filters.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if not hasattr(importlib.import_module("pyspark.sql.datasource"), "EqualTo"):
            raise UsageError(
                f"option pushFilters needs pyspark 4.1 or newer, and this is {pyspark.__version__}: put "
                "the condition into the option expression"
            )
        super().__init__(options, schema)

    def pushFilters(self, filters: list[SparkFilter]) -> Iterable[SparkFilter]:
        """Accept the filters that the broker evaluates exactly like Spark; return the remaining filters."""
        left: list[SparkFilter] = []
        compared: set[Any] = set()
        # Spark adds IS NOT NULL to each comparison. A comparison alone already excludes nulls.
        for each in sorted(filters, key=lambda each: type(each).__name__ == "IsNotNull"):
            attribute = getattr(each, "attribute", None) or getattr(
                getattr(each, "child", None), "attribute", None
            )
            if type(each).__name__ == "IsNotNull" and attribute in compared:
                continue
            condition = translated(each, self._schema)
            if condition is not None and self._narrow(condition):
                compared.add(attribute)
            else:
                left.append(each)
        return left

    def _narrow(self, condition: Filter) -> bool:
        """Add a condition to all subscriptions, unless one would exceed the broker's limits."""
        subscriptions: list[tuple[str, str]] = []
        for name, expression in self._options.expression:
            both = f"{_operand(expression)} && {_operand(str(condition))}" if expression else str(condition)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # conditions may exclude each other
                    Expression(both)
            except InvalidExpression:
                return False
            subscriptions.append((name, both))
        self._options = replace(self._options, expression=Expressions(subscriptions))
        return True


def _operand(expression: str) -> str:
    """Return an expression as an operand of ``&&``."""
    return f"({expression})" if "||" in expression else expression


def translated(condition: SparkFilter, schema: StructType) -> Filter | None:
    """Return a filter that selects exactly the messages that a Spark filter keeps; None if impossible.

    Args:
        condition: Spark's filter.
        schema: columns of the source.
    """
    child: Any = getattr(condition, "child", None)
    negated = child is not None
    given: Any = child if negated else condition
    kind, attribute = type(given).__name__, given.attribute
    column = _column(attribute, schema)
    if column is None:
        return None
    try:
        return _translated(kind, P(attribute[1]), column, getattr(given, "value", None), negated)
    except UsageError:  # a name or value that is impossible in an expression
        return None


def _column(attribute: Sequence[str], schema: StructType) -> str | None:
    """Return the type of a property's column; None for a column without a property."""
    if len(attribute) != 2 or attribute[0] != "properties" or "properties" not in schema.fieldNames():
        return None
    properties = schema["properties"].dataType
    if not isinstance(properties, StructType) or attribute[1] not in properties.fieldNames():
        return None
    return properties[attribute[1]].dataType.typeName()


def _translated(kind: str, name: Operand, column: str, value: Any, negated: bool) -> Filter | None:
    if column in _INTEGERS:
        return _integers(kind, name, _INTEGERS[column], value, negated)
    if kind == "EqualNullSafe" and not negated:
        kind = "EqualTo"
    if column == "boolean" and kind == "EqualTo" and isinstance(value, bool):
        return name == (value is not negated)
    if column == "string" and not negated and kind in ("EqualTo", "In"):
        values = _without_null(kind, value)
        if values and all(type(each) is str and not _TEXT_OF_ANOTHER_TYPE.fullmatch(each) for each in values):
            return name.one_of(*values)
    return None


def _without_null(kind: str, value: Any) -> list[Any]:
    values: Any = value if kind == "In" else [value]
    return [each for each in values if each is not None]


def _integers(kind: str, name: Operand, bits: int, value: Any, negated: bool) -> Filter | None:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    with_null = kind == "In" and None in value
    if kind == "IsNotNull" and not negated:
        return _within(name >= low, name, bits, low=False)
    if kind in _COMPARISONS and type(value) is int and not negated:
        return _within(
            _COMPARISONS[kind](name, value), name, bits, low="Less" in kind, high="Greater" in kind
        )
    if kind not in ("EqualTo", "In", "EqualNullSafe") or (kind == "EqualNullSafe" and negated):
        return None
    values = _without_null(kind, value)
    if not values or not all(type(each) is int and low <= each <= high for each in values):
        return None
    if not negated:
        return name.one_of(*values)
    if with_null:
        return None  # NOT IN (..., NULL) keeps no rows
    apart = name != values[0]
    for each in values[1:]:
        apart = apart & (name != each)
    return _within(apart, name, bits)


def _within(condition: Filter, name: Operand, bits: int, *, low: bool = True, high: bool = True) -> Filter:
    """Add the range of a column's type: numbers outside the range are null in the column."""
    if bits == 64:
        return condition
    if low:
        condition = condition & (name >= -(1 << bits - 1))
    if high:
        condition = condition & (name <= (1 << bits - 1) - 1)
    return condition
