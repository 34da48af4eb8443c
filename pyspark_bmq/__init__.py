# SPDX-License-Identifier: Apache-2.0
"""Lets Spark find ``format("bmq")`` by itself: it looks for ``DefaultSource`` in modules named ``pyspark_*``.

An import that fails here would hide the sources of every other such module, so it does not fail.
"""

try:
    from bmq.spark.datasource import BmqDataSource as DefaultSource
except ImportError:
    pass
else:
    __all__ = ["DefaultSource"]
